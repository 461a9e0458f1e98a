"""A training command and a budget -> its baseline's Report with the trials of its fixes, and the strategy proven."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.agent.attach.launching import prepare_environment
from hotloop.agent.attach.run_folder import write_manifest
from hotloop.agent.replay.collector import Collector
from hotloop.change.apply import TECHNIQUES, check_strategy
from hotloop.change.tune.attempt import OBSERVED, TuningAttempt, observe_baseline, run_attempt, stop_early
from hotloop.change.tune.quality import excuse_norms
from hotloop.change.tune.search import least_steps
from hotloop.change.tune.study import CodeChanged, Progress, Request, Study, choose_limits, drop_outputs
from hotloop.change.tune.supervisor import CORES_FILE
from hotloop.change.tune.trials import PATCH_RATIO, Bench, Budget, read_left
from hotloop.change.tune.tuner import BaselineFailed, Campaign
from hotloop.change.tune.workspace import WorkspaceError, code_outside, plan_workspace, written_outside
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Strategy
from hotloop.evidence.analyze.measurement import measure_training
from hotloop.evidence.analyze.trainings import analyze_run
from hotloop.evidence.telemetry.host_load import read_others_ratio
from hotloop.evidence.trace.recording import move_places, read_run

from .runs import Probe, no_probe, report_run

Emit = Callable[[str], None]
check = partial(check_strategy, techniques=TECHNIQUES)


def tune_command(request: Request, progress: Progress, emit: Emit, *, probe: Probe = no_probe) -> None:
    """Observe the baseline, try candidates. ``progress`` holds the outcome, whatever ends this."""
    budget = Budget(whole_s=request.budget_s, begun_s=time.monotonic(), kept_ratio=PATCH_RATIO)
    begun_wall_s = time.time()
    outside = code_outside(request.command, request.cwd)
    plan = plan_workspace(request.cwd, without=[request.folder], outside=outside)
    progress.warnings = plan.warnings

    attach = partial(attach_trial, request.command, request.variables)
    bench = Bench(
        command=request.command,
        plan=plan,
        folder=request.folder,
        environment=partial(attach, deep=False),
        measure=measure_run,
    )
    emit("measuring the baseline")
    seeing = replace(bench, environment=partial(attach, deep=True))
    ran, observed = observe_baseline(seeing, budget, progress)
    run_folder = request.folder / "trials" / OBSERVED
    run = move_places(read_run(run_folder), request.folder / "work" / OBSERVED / request.cwd.name, request.cwd)
    progress.report = report_run(run, folder=run_folder, probe=probe)
    written = written_outside(plan, begun_wall_s)
    if written:
        progress.warnings += ("the script overwrites your files: " + ", ".join(written),)
    bench = replace(bench, plan=drop_outputs(plan))
    try:
        limits = choose_limits(observed, ran.duration_s, least_steps(progress.report.findings))
        study = Study(bench=bench, limits=limits)
        progress.campaign = Campaign(
            goal=request.goal,
            check=check,
            run=study.run_strategy,
            clock_s=time.monotonic,
            budget=budget,
            emit=emit,
            process_s=ran.duration_s,
        )
        attempt = TuningAttempt(
            study=study,
            campaign=progress.campaign,
            observed=observed,
            report=progress.report,
            techniques=request.techniques,
        )
        run_attempt(attempt, request, progress)
    except (BaselineFailed, CodeChanged, WorkspaceError) as error:
        stop_early(request, progress, error)
    finally:
        shutil.rmtree(request.folder / "work", ignore_errors=True)


def measure_run(folder: Path) -> Measurement | None:
    """A trial's run folder -> what its largest training measured; None when none was seen."""
    processes = read_run(folder).processes
    training = next(iter(analyze_run(processes)), None)
    if training is None:
        return None
    left = read_left(folder, training.lead.rank.pid)
    others = partial(read_others_ratio, folder / CORES_FILE)
    return excuse_norms(measure_training(training, processes, left, others), TECHNIQUES)


@contextmanager
def attach_trial(
    command: Sequence[str],
    variables: Mapping[str, str],
    strategy: Strategy,
    run_folder: Path,
    trial: Mapping[str, Any],
    *,
    deep: bool,
) -> Iterator[dict[str, str]]:
    """The environment that makes a command train under a strategy, recorded into a folder."""
    write_manifest(run_folder, command, [])
    options = {"deep": deep, "trace": None, "nvtx": False, "trial": dict(trial)}
    collector = Collector(run_folder / "processes")
    collector.start()
    try:
        yield prepare_environment(variables, run_folder, options, collector, strategy or None)
    finally:
        collector.stop()
