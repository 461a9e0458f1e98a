"""What the GPU tests are made of, on the CPU: the trainings that can run here, the small reader, and the skip."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from . import trainings
from .conftest import ROOT, describe_run, result_path
from .reading import check_rows
from .training import TRAININGS, train, train_both


@pytest.mark.parametrize("name", ["eager", "reduce_overhead"])
def test_a_training_is_the_same_with_the_agent(name: str, tmp_path: Path) -> None:
    without, with_agent = train_both(name, "cpu", tmp_path)
    assert with_agent.result == without.result
    assert sum(row["forwards"] > 0 for row in with_agent.seen.rows) == without.result["steps"]
    assert len({row["index"] for row in with_agent.seen.rows}) == len(with_agent.seen.rows)
    assert with_agent.seen.of_kind("process")[0]["accelerator"] is None


def test_the_timeline_s_ranges_are_found(tmp_path: Path) -> None:
    ran = train("timeline", "cpu", tmp_path, attached=True)
    assert {phase: len(values) for phase, values in ran.result["kernels_ns"].items()} == {
        "forward": 10,
        "backward": 10,
        "optimizer": 10,
    }
    assert ran.device_times() == {}


def test_kernels_are_summed_by_the_range_in_which_they_start(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    ranges = [
        {"cat": "user_annotation", "name": f"phase {n}", "ts": ts, "dur": 100} for n, ts in (("a", 0), ("b", 200))
    ]
    kernels = [{"cat": "kernel", "name": "k", "ts": ts, "dur": 10} for ts in (5, 50, 150, 250)]
    path.write_text(json.dumps({"traceEvents": [*kernels, *ranges]}))
    assert trainings.kernel_times(str(path)) == {"a": [20_000.0], "b": [10_000.0]}


@pytest.mark.parametrize("name", ["prefetch", "device_bound", "runtime_calls", "overhead"])
def test_the_other_trainings_run(name: str) -> None:
    assert trainings.TRAININGS[name]("cpu")["steps"] > 0


def test_a_broken_row_is_refused(tmp_path: Path) -> None:
    """Meta-test of check_rows."""
    rows = train("prefetch", "cpu", tmp_path, attached=True).seen.rows
    check_rows(rows)
    with pytest.raises(AssertionError):
        check_rows((rows[0] | {"forward_ns": rows[0]["forward_ns"] + 1}, *rows[1:]))
    with pytest.raises(AssertionError):
        check_rows((rows[0], rows[2]))
    with pytest.raises(AssertionError):
        check_rows(())


def test_results_go_where_out_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    assert result_path() == tmp_path / "gpu.json"
    monkeypatch.delenv("OUT")
    assert result_path() == ROOT / "benchmarks" / "results" / "gpu.json"
    assert json.dumps(describe_run("a device"))


def test_without_a_device_every_gpu_test_is_skipped_and_says_why(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "OUT": str(tmp_path)}
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "gpu.sh")], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SKIPPED [11] tests/gpu/test_cuda.py: no CUDA device" in done.stdout
    assert "SKIPPED [6] tests/gpu/test_planted.py" in done.stdout
    assert "passed" not in done.stdout
    assert not list(tmp_path.iterdir()), "a result was written although nothing ran"


def test_trainings_know_nothing_of_hotloop() -> None:
    code = TRAININGS.read_text()
    assert "import hotloop" not in code
    assert "from hotloop" not in code
