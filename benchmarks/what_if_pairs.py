"""Pairs of traces, before and after a fix -> how far the re-timed graph of the first is from the second's step.

Run by `make what-if`: 25 pairs, about 12 minutes on two quiet cores. Each script is traced on the CPU by
`hotloop run --trace` as it is and with its fix, interleaved; the forecast comes from the trace without the fix alone.
Pairs marked later were written after the model of the what-if, which was not changed by them. Where ../shared/traces is
there, the pair of ResNet-50 traces with 0 and 4 loader workers is added. Writes benchmarks/results/what_if_pairs.json
after every pair, and goes on there when it was broken off (--fresh: from the beginning); `make zoo-report` takes its
table from it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raw import describe_commit, draw_raw

from hotloop.analyze.timeline.reduce import lay_groundwork
from hotloop.analyze.timeline.what_if import forecast
from hotloop.core.graph import Change, WhatIf
from hotloop.core.trace import Trace
from hotloop.trace.inputs import map_traces

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "tests" / "zoo" / "scripts"
TRACES = ROOT.parent / "shared" / "traces"
RESULT = ROOT / "benchmarks" / "results" / "what_if_pairs.json"
LATER = ROOT / "benchmarks" / "what_if_later.py"
WAIT_COUNT, WARMUP_COUNT, ACTIVE_COUNT = 30, 3, 40
STEPS_COUNT = WAIT_COUNT + WARMUP_COUNT + ACTIVE_COUNT + 3
REPEATS = 2
TIMEOUT_S = 240.0
LEVELS = (1, 2, 3)


@dataclass(frozen=True)
class Pair:
    """A script, what its fix does to its arguments, and the same as a change of the graph."""

    name: str
    script: Path
    arguments: tuple[str, ...]
    fix: tuple[str, ...]
    change: str
    """Kind of Change; its number comes from ``workers``."""
    workers: int = 0
    is_later: bool = False


def _zoo(script: str, fix: tuple[str, ...], change: str, workers: int = 0) -> tuple[Pair, ...]:
    path = SCRIPTS / f"{script}.py"
    return tuple(Pair(f"{script} {n}", path, ("--level", str(n)), fix, change, workers) for n in (1, 2, 3))


def _later(name: str, arguments: str, fix: str, change: str, workers: int = 0, threads: int = 1) -> Pair:
    words = (*arguments.split(), "--threads", str(threads))
    return Pair(name, LATER, words, tuple(fix.split()), change, workers, is_later=True)


PAIRS = (
    *_zoo("input_transform", ("--workers", "2"), "loader-workers", 2),
    *_zoo("input_transform", ("--prepared",), "no-input-wait"),
    *_zoo("input_collate", ("--workers", "2"), "loader-workers", 2),
    *_zoo("input_storage", ("--workers", "4"), "loader-workers", 4),
    _later("gru storage", "--model gru --loading storage --cost-us 900", "--workers 2", "loader-workers", 2),
    _later("mlp python", "--model mlp --loading python --cost-us 150 --batch 64", "--workers 1", "loader-workers", 1),
    _later("conv tensors", "--model conv --loading tensors --cost-us 400", "--workers 2", "loader-workers", 2, 2),
    _later(
        "wide mixed, accumulating", "--model wide --loading mixed --cost-us 500 --batch 16 --accumulate 4",
        "--workers 3", "loader-workers", 3,
    ),
    _later("mlp storage", "--model mlp --loading storage --cost-us 1200", "--workers 8", "loader-workers", 8),
    _later("gru python", "--model gru --loading python --cost-us 700", "--workers 2", "loader-workers", 2, 2),
    _later(
        "conv python, accumulating", "--model conv --loading python --cost-us 200 --batch 16 --accumulate 2",
        "--loading none --cost-us 0", "no-input-wait",
    ),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="pairs whose name holds this")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--fresh", action="store_true", help="forget the pairs of an earlier, broken off run")
    options = parser.parse_args(argv)
    result = {
        "schema": "hotloop.what-if-pairs/2",
        "date": datetime.date.today().isoformat(),
        "commit": describe_commit(),
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "torch": _torch_version(),
        },
        "repeats": options.repeats,
        "pairs": [] if options.fresh else read_done(options.out, options.repeats),
    }
    rows: list[dict[str, Any]] = result["pairs"]
    done = {(row["pair"], row["fix"]) for row in rows}
    for pair in PAIRS:
        if options.only in pair.name and (pair.name, " ".join(pair.fix)) not in done:
            rows.append(measure_pair(pair, options.repeats))
            keep(options.out, result)
            print(json.dumps(rows[-1]), flush=True)
    if TRACES.is_dir() and options.only in "resnet50" and not any(row["pair"].startswith("resnet50") for row in rows):
        rows.append(compare_resnet())
        print(json.dumps(rows[-1]), flush=True)
    keep(options.out, result)
    for which, part in (("earlier", [r for r in rows if not r["later"]]), ("later", [r for r in rows if r["later"]])):
        near = sum(abs(row["forecast_saving_ratio"] - row["realised_saving_ratio"]) <= 0.10 for row in part)
        print(f"{which}: {near} of {len(part)} within 0.10")
    return 0


def read_done(path: Path, repeats: int) -> list[dict[str, Any]]:
    """The pairs of a run at this commit that was broken off; none of a run that is complete or of another commit."""
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    expected = len(PAIRS) + TRACES.is_dir()
    same = found.get("commit") == describe_commit() and found.get("repeats") == repeats
    rows: list[dict[str, Any]] = found["pairs"]
    return rows if same and found.get("schema") == "hotloop.what-if-pairs/2" and len(rows) < expected else []


def keep(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(draw_raw(result))
    part.replace(path)


def measure_pair(pair: Pair, repeats: int) -> dict[str, Any]:
    """Both sides traced ``repeats`` times, interleaved; of each side the run with the shortest step counts."""
    # The cores are in the trace: nothing is added to what it holds.
    change = Change(kind=pair.change, workers_count=pair.workers)
    before: list[WhatIf] = []
    after: list[int] = []
    with tempfile.TemporaryDirectory(prefix="hotloop-pairs-") as folder:
        for turn in range(repeats):
            for is_fixed in (False, True):
                words = (*pair.arguments, *(pair.fix if is_fixed else ()), "--steps", str(STEPS_COUNT))
                target = trace_script(pair.script, words, Path(folder, f"{turn}-{is_fixed}"))
                found = forecast_file(target, Change(kind="fused-launches") if is_fixed else change)
                if is_fixed:
                    after.append(found.measured_step_ns)
                else:
                    before.append(found)
    fastest = min(before, key=lambda one: one.measured_step_ns)
    return describe_pair(pair.name, " ".join(pair.fix), change, fastest, min(after)) | {"later": pair.is_later}


def describe_pair(name: str, fix: str, change: Change, found: WhatIf, after_ns: int) -> dict[str, Any]:
    return {
        "pair": name,
        "fix": fix,
        "change": change.kind,
        "value": change.workers_count or None,
        "basis": found.basis,
        "before_ns": found.measured_step_ns,
        "replayed_ns": found.replayed_step_ns,
        "forecast_ns": found.step_ns,
        "low_ns": found.low_step_ns,
        "high_ns": found.high_step_ns,
        "after_ns": after_ns,
        "forecast_saving_ratio": round(found.saving_mid_ratio, 4),
        "realised_saving_ratio": round(1 - after_ns / found.measured_step_ns, 4),
    }


def trace_script(script: Path, arguments: Sequence[str], folder: Path) -> Path:
    """The trace that hotloop keeps of a run of the script."""
    folder.mkdir()
    plan = f"{WAIT_COUNT}:{WARMUP_COUNT}:{ACTIVE_COUNT}:1"
    hotloop = str(Path(sys.executable).with_name("hotloop"))
    command = [
        hotloop,
        "run",
        "-q",
        "--no-probe",
        "--no-deep",
        "--trace",
        plan,
        "--",
        sys.executable,
        str(script),
        *arguments,
    ]
    subprocess.run(
        command, check=True, timeout=TIMEOUT_S, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    (trace,) = folder.rglob("*.pt.trace.json")
    return trace


def forecast_file(path: Path, change: Change) -> WhatIf:
    done = map_traces([path], partial(_forecast, change=change), 1)
    return done.traces[0].result


def _forecast(trace: Trace, change: Change) -> WhatIf:
    ground = lay_groundwork(trace, "default")
    (found,) = forecast(trace, ground.links, ground.classes, ground.steps, [[change]])
    return found


def compare_resnet() -> dict[str, Any]:
    """Published traces of one training without and with four loader workers; their other phases differ as well."""
    change = Change(kind="no-input-wait")
    one, other = (forecast_file(TRACES / f"resnet50_workers_{n}", change) for n in (0, 4))
    told = describe_pair("resnet50 (published traces)", "num_workers=4", change, one, other.measured_step_ns)
    return told | {"later": False}


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


if __name__ == "__main__":
    sys.exit(main())
