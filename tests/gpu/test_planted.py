"""Rules that need a device's timeline: a planted fault is found and its healthy twin is silent, on traces of a GPU.

The traces are judged where hotloop's own libraries are installed. Where only torch is, they are recorded, and kept in
planted.tar beside the results either way: unpacked, `hotloop trace FILE` judges them on any machine.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import planted
from .conftest import result_path

PROGRAM = Path(__file__).with_name("planted.py")
HAS_READER = all(importlib.util.find_spec(name) for name in ("numpy", "msgspec", "isal"))
KINDS = ("planted", "healthy")


def record(name: str, device: str, folder: Path) -> dict[str, Path]:
    command = [sys.executable, str(PROGRAM), name, device, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return {kind: folder / f"{name}.{kind}.json.gz" for kind in KINDS}


def judge(path: Path) -> tuple[dict[str, float | None], dict[str, str]]:
    """(cost of every finding, reason of every rule that was not judged)."""
    from hotloop.pipeline.traces import report_traces

    report = report_traces([path])
    return {f.rule: f.cost_ratio for f in report.findings}, {s.rule: s.reason for s in report.skipped}


def check(name: str, kind: str, path: Path) -> dict[str, Any]:
    found, skipped = judge(path)
    assert name not in skipped, skipped[name]
    assert (name in found) == (kind == "planted"), found
    return {"cost_ratio": found.get(name), "findings": sorted(found)}


@pytest.mark.gpu
@pytest.mark.parametrize("name", planted.TWINS)
def test_a_planted_fault_is_found_and_its_twin_is_silent(
    name: str, tmp_path: Path, measure: Callable[..., None]
) -> None:
    paths = record(name, "cuda", tmp_path)
    kept = result_path().with_name("planted.tar")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(kept, "a") as archive:
        for path in paths.values():
            assert path.stat().st_size > 0
            archive.add(path, arcname=path.name)
    measure(judged={kind: check(name, kind, path) for kind, path in paths.items()} if HAS_READER else None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_trainings_run_on_a_cpu_and_show_their_steps(kind: str, tmp_path: Path) -> None:
    """Their code, not their faults: without a device the rules are not judged, and say so."""
    for name in planted.TWINS:
        path = tmp_path / f"{name}.json.gz"
        planted.record(name, "cpu", str(path), planted=kind == "planted")
        found, skipped = judge(path)
        assert name not in found
        if name != "memory-growth":
            assert "trace" in skipped[name]


def test_every_rule_that_a_trace_judges_by_its_device_has_twins() -> None:
    """The rules marked d in the design; memory-headroom is judged on runs alone. memory-growth comes on top."""
    from hotloop.judge.diagnose import RULES

    by_device = {"pageable-transfer", "launch-bound", "host-sync", "memory-pressure", "allocator-thrash"}
    assert by_device <= set(planted.TWINS)
    assert all(RULES[name].judge_trace is not None for name in planted.TWINS)
    assert RULES["memory-headroom"].judge_trace is None
