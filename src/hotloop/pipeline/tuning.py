"""A training command and a budget -> its baseline's Report with the trials of its fixes, and the strategy proven."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hotloop.change.apply import TECHNIQUES, check_strategy
from hotloop.change.tune.attempt import OBSERVED, TuningAttempt, observe_baseline, run_attempt, stop_early
from hotloop.change.tune.goals import SPEED
from hotloop.change.tune.search import least_steps
from hotloop.change.tune.study import CodeChanged, Progress, Request, Study, choose_limits, drop_outputs
from hotloop.change.tune.trials import PATCH_RATIO, Bench, Budget
from hotloop.change.tune.tuner import BaselineFailed, Campaign
from hotloop.change.tune.workspace import (
    WorkspaceError,
    WorkspacePlan,
    code_outside,
    plan_workspace,
    written_outside,
)
from hotloop.core.findings import Finding
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Strategy
from hotloop.evidence.trace.recording import move_places, read_run

from .bounding import FOLDER, BoundedRun, measure_bounds
from .runs import Probe, no_probe, report_run
from .trial_runs import attach_trial, measure_run

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
        if request.goal == SPEED:
            _bound_by_hand(request, study.bench.plan, progress, observed, budget, emit)
    except (BaselineFailed, CodeChanged, WorkspaceError) as error:
        stop_early(request, progress, error)
    finally:
        shutil.rmtree(request.folder / "work", ignore_errors=True)


def _bound_by_hand(
    request: Request, plan: WorkspacePlan, progress: Progress, observed: Measurement, budget: Budget, emit: Emit
) -> None:
    """What a perfect fix could save of each finding that no technique treats, in the time that is left."""
    run = BoundedRun(
        command=request.command,
        variables=request.variables,
        plan=plan,
        folder=request.folder / FOLDER,
        strategy=Strategy(),
    )

    def is_by_hand(finding: Finding) -> bool:
        return finding.fix is None or finding.fix.technique not in request.techniques

    assert progress.report is not None
    progress.report = measure_bounds(run, progress.report, observed, budget.until_s, emit, is_by_hand)
