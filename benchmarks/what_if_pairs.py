"""Pairs of traces, before and after a fix -> how far the re-timed graph of the first is from the second's step.

Run by `make what-if` (about ten minutes). Each script of the zoo is traced on the CPU as it is and with its fix,
interleaved; the forecast comes from the trace without the fix alone. Where ../shared/traces is there, the pair of
ResNet-50 traces with 0 and 4 loader workers is added. Writes benchmarks/results/what_if_pairs.json, from which
`make zoo-report` takes its table.
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
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.analyze.timeline.reduce import lay_groundwork
from hotloop.analyze.timeline.what_if import forecast
from hotloop.core.graph import Change, WhatIf
from hotloop.core.trace import Trace
from hotloop.trace.inputs import map_traces

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "tests" / "zoo" / "scripts"
TRACES = ROOT.parent / "shared" / "traces"
RESULT = ROOT / "benchmarks" / "results" / "what_if_pairs.json"
LAUNCHER = ROOT / "benchmarks" / "trace_script.py"
WAIT_COUNT, ACTIVE_COUNT = 40, 40
REPEATS = 3
TIMEOUT_S = 240.0
LEVELS = (1, 2, 3)


@dataclass(frozen=True)
class Pair:
    """A script, what its fix does to its arguments, and the same as a change of the graph."""

    script: str
    fix: tuple[str, ...]
    change: str
    """Kind of Change; its number comes from ``value`` or, for matrix products, from a measurement."""
    value: int = 0


PAIRS = (
    Pair("input_transform", ("--workers", "2"), "loader-workers", 2),
    Pair("input_transform", ("--prepared",), "no-input-wait"),
    Pair("input_collate", ("--workers", "2"), "loader-workers", 2),
    Pair("input_storage", ("--workers", "4"), "loader-workers", 4),
    Pair("lm_float32", ("--fixed",), "faster-matmuls"),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="scripts whose name holds this")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(argv)
    rows = []
    for pair in PAIRS:
        if options.only in pair.script:
            for level in LEVELS:
                rows.append(measure_pair(pair, level, options.repeats))
                print(json.dumps(rows[-1]), flush=True)
    if TRACES.is_dir() and options.only in "resnet50":
        rows.append(compare_resnet())
        print(json.dumps(rows[-1]), flush=True)
    result = {
        "schema": "hotloop.what-if-pairs/1",
        "date": datetime.date.today().isoformat(),
        "commit": describe_commit(),
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "torch": _torch_version(),
        },
        "repeats": options.repeats,
        "pairs": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    near = sum(abs(row["forecast_saving_ratio"] - row["realised_saving_ratio"]) <= 0.10 for row in rows)
    print(f"{near} of {len(rows)} within 0.10; {options.out} written")
    return 0


def measure_pair(pair: Pair, level: int, repeats: int) -> dict[str, Any]:
    """Both sides traced ``repeats`` times, interleaved; of each side the run with the shortest step counts."""
    change = Change(
        kind=pair.change,
        workers_count=pair.value if pair.change == "loader-workers" else 0,
        cores_count=len(os.sched_getaffinity(0)) if pair.change == "loader-workers" else 0,
    )
    before: list[WhatIf] = []
    after: list[int] = []
    with tempfile.TemporaryDirectory(prefix="hotloop-pairs-") as folder:
        for _ in range(repeats):
            for arguments in ((), pair.fix):
                target = Path(folder) / "trace.json"
                trace_script(pair.script, ("--level", str(level), *arguments), target)
                if pair.change == "faster-matmuls" and not before:
                    change = replace(change, factor=measure_matmul_factor(target))
                found = forecast_file(target, change if not arguments else Change(kind="fused-launches"))
                if arguments:
                    after.append(found.measured_step_ns)
                else:
                    before.append(found)
    fastest = min(before, key=lambda one: one.measured_step_ns)
    return describe_pair(f"{pair.script} {level}", " ".join(pair.fix), change, fastest, min(after))


def describe_pair(name: str, fix: str, change: Change, found: WhatIf, after_ns: int) -> dict[str, Any]:
    return {
        "pair": name,
        "fix": fix,
        "change": change.kind,
        "value": change.workers_count or (round(change.factor, 2) if change.factor != 1.0 else None),
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


def trace_script(script: str, arguments: Sequence[str], target: Path) -> None:
    command = [sys.executable, str(LAUNCHER), str(target), str(WAIT_COUNT), str(ACTIVE_COUNT)]
    command += [str(SCRIPTS / f"{script}.py"), *arguments]
    subprocess.run(command, check=True, timeout=TIMEOUT_S, cwd=target.parent, stdout=subprocess.DEVNULL)


def forecast_file(path: Path, change: Change) -> WhatIf:
    done = map_traces([path], partial(_forecast, change=change), 1, write_cache=False)
    return done.traces[0].result


def _forecast(trace: Trace, change: Change) -> WhatIf:
    ground = lay_groundwork(trace, "default")
    return forecast(trace, ground.links, ground.classes, ground.steps, [change])


def compare_resnet() -> dict[str, Any]:
    """Published traces of one training without and with four loader workers; their other phases differ as well."""
    change = Change(kind="no-input-wait")
    one, other = (forecast_file(TRACES / f"resnet50_workers_{n}", change) for n in (0, 4))
    return describe_pair("resnet50 (published traces)", "num_workers=4", change, one, other.measured_step_ns)


def measure_matmul_factor(trace: Path) -> float:
    """How many times faster the products of this trace's own shapes are in bfloat16 here, one operand converted as
    autocast does; one thread, min of 5, weighted by how often each shape is used."""
    import torch

    torch.set_num_threads(1)
    counts: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("name") in ("aten::mm", "aten::addmm", "aten::bmm"):
            counts[tuple(tuple(dims) for dims in event["args"]["Input Dims"] if len(dims) > 1)[-2:]] += 1
    times = {False: 0.0, True: 0.0}
    for (first, second), count in counts.items():
        a, b = torch.randn(first), torch.randn(second)
        half = b.bfloat16()
        times[False] += count * _time_product(a, b)
        times[True] += count * _time_product(a, half)
    return times[False] / times[True]


def _time_product(a: Any, b: Any) -> float:
    """Seconds of the fastest of five products in the type of the second operand."""
    times = []
    for _ in range(6):
        started = time.perf_counter()
        a.to(b.dtype) @ b
        times.append(time.perf_counter() - started)
    return min(times[1:])


def describe_commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "no-commit"


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


if __name__ == "__main__":
    sys.exit(main())
