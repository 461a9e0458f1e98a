"""Pairs of traces, before and after a fix -> how far the re-timed graph of the first is from the second's step.

Run by `make what-if`: 25 pairs, about 12 minutes on two quiet cores. Each script is traced on the CPU by
`hotloop run --trace` as it is and with its fix, interleaved; the forecast comes from the trace without the fix alone.
Pairs marked later were written after the model of the what-if, which was not changed by them. Where ../shared/traces is
there, the pair of ResNet-50 traces with 0 and 4 loader workers is added. The table is written after every pair; what it
lacks at this commit is measured. docs/accuracy.md takes its last section from it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import passes
from passes import RESULTS, ROOT

from hotloop.core.graph import Change
from hotloop.core.trace import Trace
from hotloop.core.trace_analysis import WhatIf
from hotloop.evidence.analyze.timeline.reduce import lay_groundwork
from hotloop.evidence.analyze.timeline.what_if import forecast
from hotloop.evidence.trace.inputs import map_traces

SCRIPTS = ROOT / "tests" / "zoo" / "scripts"
TRACES = ROOT.parent / "shared" / "traces"
RESULT = RESULTS / "what_if_pairs.json"
LATER = ROOT / "benchmarks" / "what_if_later.py"
WAIT_COUNT, WARMUP_COUNT, ACTIVE_COUNT = 30, 3, 40
STEPS_COUNT = WAIT_COUNT + WARMUP_COUNT + ACTIVE_COUNT + 3
REPEATS = 2
TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Pair:
    """A script, what its fix does to its arguments, and the same as a change of the graph."""

    name: str
    script: Path
    arguments: tuple[str, ...]
    fix: tuple[str, ...]
    change: str
    """Kind of Change."""
    is_later: bool = False


def _zoo(script: str, fix: tuple[str, ...], change: str) -> tuple[Pair, ...]:
    path = SCRIPTS / f"{script}.py"
    return tuple(Pair(f"{script} {n}", path, ("--level", str(n)), fix, change) for n in (1, 2, 3))


def _later(name: str, arguments: str, fix: str, change: str) -> Pair:
    words = (*arguments.split(), "--threads", "1")
    return Pair(name, LATER, words, tuple(fix.split()), change, is_later=True)


PAIRS = (
    *_zoo("input_transform", ("--prepared",), "no-input-wait"),
    _later(
        "conv python, accumulating", "--model conv --loading python --cost-us 200 --batch 16 --accumulate 2",
        "--loading none --cost-us 0", "no-input-wait",
    ),
)  # fmt: skip


def main() -> int:
    commit = passes.describe_commit()
    old = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    rows: list[dict[str, Any]] = old["pairs"] if old.get("commit") == commit else []
    done = {(row["pair"], row["fix"]) for row in rows}
    works = {(pair.name, " ".join(pair.fix)): partial(measure_pair, pair) for pair in PAIRS}
    if TRACES.is_dir():
        works[RESNET] = compare_resnet
    for key in works.keys() - done:
        rows.append(works[key]())
        print(json.dumps(rows[-1]), flush=True)
        place = {"date": date.today().isoformat(), "commit": commit, "machine": passes.describe_machine()}
        rows.sort(key=lambda row: list(works).index((row["pair"], row["fix"])))
        RESULT.write_text(passes.draw_raw({**place, "repeats": REPEATS, "pairs": rows}), encoding="utf-8")
    return 0


def measure_pair(pair: Pair) -> dict[str, Any]:
    """Both sides traced REPEATS times, interleaved; of each side the run with the shortest step counts."""
    change = Change(kind=pair.change)
    before: list[WhatIf] = []
    after: list[int] = []
    with tempfile.TemporaryDirectory(prefix="hotloop-pairs-") as folder:
        for turn in range(REPEATS):
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


RESNET = ("resnet50 (published traces)", "num_workers=4")


def compare_resnet() -> dict[str, Any]:
    """Published traces of one training without and with four loader workers; their other phases differ as well."""
    change = Change(kind="no-input-wait")
    one, other = (forecast_file(TRACES / f"resnet50_workers_{n}", change) for n in (0, 4))
    told = describe_pair(*RESNET, change, one, other.measured_step_ns)
    return told | {"later": False}


if __name__ == "__main__":
    sys.exit(main())
