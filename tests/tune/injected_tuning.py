"""A tuning over candidates that misbehave, as a program of its own: folder of the project, then the technique's ids.

The trainer needs no torch: it writes what the agent and the recording would tell. Each process adds a line to the file
``starts``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.core.applied import AppliedTechnique
from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Choice, Strategy
from hotloop.core.tuning import Trial
from hotloop.tune.search import Candidate
from hotloop.tune.study import Store
from hotloop.tune.trials import Bench, Budget, Ran, TrialLimits, run_trial
from hotloop.tune.tuner import Campaign, describe_trials, strategy_key, tune_candidates
from hotloop.tune.workspace import plan_workspace

TRAINER = """
import json, os, signal, subprocess, sys, time
act, folder = os.environ["ACT"], os.environ["FOLDER"]
with open(os.environ["STARTS"], "a") as starts:
    starts.write(f"{act} {os.getpid()}\\n")
if act == "memory":
    raise MemoryError("cannot allocate 9 GiB")
if act == "hang":
    open(folder + "/progress", "w").close()
    time.sleep(60)
if act == "fault":
    os.kill(os.getpid(), signal.SIGSEGV)
if act == "orphans":
    for _ in range(2):
        child = subprocess.Popen(["sleep", "60"], start_new_session=True, env={})
        with open(os.environ["STARTS"], "a") as starts:
            starts.write(f"orphan {child.pid}\\n")
if act == "wait":
    time.sleep(60)
losses = [2.0 - 0.01 * i for i in range(40)]
if act == "diverge":
    losses[20:] = [float("nan")] * 20
with open(folder + "/told.json", "w") as file:
    json.dump({"step_ns": 5e5 if act in ("good", "orphans") else 1e6, "losses": losses}, file)
"""
LIMITS = TrialLimits(steps=40, seconds=None, timeout_s=30.0, start_s=30.0, stall_s=0.5)


def tune(project: Path, names: list[str]) -> tuple[Trial, ...]:
    """Tune the candidates with a store beside the project; everything that runs is in ``starts``."""
    starts = project.parent / "starts"

    @contextmanager
    def environment(strategy: Strategy, folder: Path, options: Mapping[str, Any]) -> Iterator[dict[str, str]]:
        act = "+".join(choice.technique for choice in strategy.choices) or "baseline"
        act = next((one for one in act.split("+") if one != "good"), "good")
        yield {"PATH": os.environ["PATH"], "FOLDER": str(folder), "ACT": act, "STARTS": str(starts)}

    bench = Bench(
        command=(sys.executable, "-S", "train.py"),
        plan=plan_workspace(project),
        folder=project.parent / "out",
        environment=environment,
        measure=lambda folder: measure(folder),
        least_memory_ratio=0.0,
    )
    store = Store(project.parent / "tune.sqlite")
    campaign = Campaign(
        goal="speed",
        check=lambda strategy: strategy,
        run=partial(run_stored, store, bench),
        clock_s=time.monotonic,
        budget=Budget(whole_s=60.0, begun_s=time.monotonic()),
        emit=lambda text: None,
    )
    candidates = [
        Candidate(
            id=name,
            strategy=Strategy(choices=(Choice(technique=name),)),
            forecast=None,
            rules=("r",),
            numerics=Numerics.REORDERED,
        )
        for name in names
    ]
    observed = measure_text(json.dumps({"step_ns": 1e6, "losses": [2.0 - 0.01 * i for i in range(40)]}), ())
    try:
        tune_candidates(campaign, candidates, [observed])
        return describe_trials(campaign)
    finally:
        store.close()


def run_stored(store: Store, bench: Bench, strategy: Strategy, number: int) -> Ran:
    """As the pipeline does: what is stored is not run again."""
    known = store.get("study", strategy_key(strategy), number)
    if known is not None:
        return known
    ran = run_trial(bench, strategy, LIMITS, f"{strategy_key(strategy)}-{number}")
    store.put("study", strategy_key(strategy), number, ran)
    return ran


def measure(folder: Path) -> Measurement | None:
    told = folder / "told.json"
    return measure_text(told.read_text(), ("good", "diverge", "orphans", "wait")) if told.exists() else None


def measure_text(text: str, applied: tuple[str, ...]) -> Measurement:
    told = json.loads(text)
    return Measurement(
        step_ns=told["step_ns"],
        steady_count=30,
        samples_per_step=None,
        tokens_per_step=None,
        peak_bytes=None,
        one_time_ns=None,
        losses=tuple(told["losses"]),
        applied=tuple(
            AppliedTechnique(
                technique=one, settings={}, status="applied", detail="", target=None, where=None, numerics="reordered"
            )
            for one in applied
        ),
    )


if __name__ == "__main__":
    found = tune(Path(sys.argv[1]), sys.argv[2:])
    print(json.dumps([asdict(one) for one in found]))
