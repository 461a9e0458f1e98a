"""A recorded run and some minutes -> its findings, each with a Bound measured in trials of the same command."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hotloop.change.apply import ABLATIONS
from hotloop.change.tune.bounds import measure_bound, steps_to_recur
from hotloop.change.tune.script import Refusal
from hotloop.change.tune.statements import leave_out_statements
from hotloop.change.tune.study import CodeChanged, Study, choose_limits, drop_outputs
from hotloop.change.tune.trials import Bench, Ran
from hotloop.change.tune.workspace import WorkspacePlan, code_outside, plan_workspace
from hotloop.core.ablations import Ablation
from hotloop.core.decode import decode, to_plain
from hotloop.core.findings import Bound, Finding
from hotloop.core.measurement import Measurement
from hotloop.core.report import Report
from hotloop.core.strategy import Strategy
from hotloop.judge.diagnose import RULES

from .trial_runs import attach_trial, measure_run

NAME, FOLDER = "bounds.json", "bounds"
"""The bounds of a run's findings, and the trials that measure them, in the run's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedRun:
    """A recorded run whose findings get bounds. ``plan`` is the command's folder before it ran; trials run in
    ``folder``."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    plan: WorkspacePlan
    folder: Path
    strategy: Strategy


def prepare_bounds(
    command: tuple[str, ...], variables: Mapping[str, str], cwd: Path, folder: Path, strategy: Strategy
) -> BoundedRun:
    """A run that is about to start: its files are read now, so that no trial finds what the run has written."""
    plan = plan_workspace(cwd, outside=code_outside(command, cwd))
    folder = folder.resolve() / FOLDER
    return BoundedRun(command=command, variables=dict(variables), plan=plan, folder=folder, strategy=strategy)


def measure_bounds(
    run: BoundedRun,
    report: Report,
    observed: Measurement | None,
    until_s: float,
    emit: Callable[[str], None],
    is_wanted: Callable[[Finding], bool] = lambda finding: True,
) -> Report:
    """The report with bounds for the findings of its steps, in their order, until a reading of the monotonic clock.

    ``observed`` is what the run itself measured. An interrupt ends it and keeps the bounds so far.
    """
    run = replace(run, plan=drop_outputs(run.plan))
    findings = list(report.findings)
    wanted = [at for at, finding in enumerate(findings) if find_ablation(finding) is not None and is_wanted(finding)]
    try:
        for turn, at in enumerate(wanted, 1):
            finding, ablation = findings[at], find_ablation(findings[at])
            assert ablation is not None
            emit(f"{finding.rule}: timing the training without it ({ablation.summary})")
            measure = partial(measure_bound, waiting_count=len(wanted) - turn, until_s=until_s)
            bound = _measure(ablation, finding, report, run, observed, measure)
            findings[at] = replace(finding, bound=bound)
            emit(f"{finding.rule}: {_describe(bound)}")
    except CodeChanged as error:
        emit(str(error))
    except KeyboardInterrupt:
        emit("interrupted: the bounds so far are kept")
    finally:
        shutil.rmtree(run.folder / "work", ignore_errors=True)
    return replace(report, findings=tuple(findings))


def measure_recorded_bounds(run: BoundedRun, report: Report, budget_s: float, emit: Callable[[str], None]) -> Report:
    """Like ``measure_bounds`` for a run of ``hotloop run``, whose folder keeps the bounds."""
    until_s, folder = time.monotonic() + budget_s, run.folder.parent
    bounded = measure_bounds(run, report, measure_run(folder), until_s, emit)
    bounds = {_key_of(finding): finding.bound for finding in bounded.findings if finding.bound is not None}
    (folder / NAME).write_text(json.dumps(to_plain(bounds)))
    return bounded


def find_ablation(finding: Finding) -> Ablation | None:
    """What takes the finding's cost away; None for a rule that names nothing, and for a cost of the start."""
    rule = next((rule for rule in RULES.values() if rule.id == finding.rule), None)
    if rule is None or not rule.ablation or finding.base != "steady":
        return None
    return ABLATIONS[rule.ablation]


def make_bench(run: BoundedRun, ablation: str = "") -> Bench:
    """Where trials of the command run, without the cost that the ablation of this id takes away."""
    attach = partial(attach_trial, run.command, run.variables, deep=False, ablation=ablation)
    return Bench(command=run.command, plan=run.plan, folder=run.folder, environment=attach, measure=measure_run)


def _measure(
    ablation: Ablation,
    finding: Finding,
    report: Report,
    run: BoundedRun,
    observed: Measurement | None,
    measure: Callable[..., Bound],
) -> Bound:
    def refuse(reason: str) -> Bound:
        return Bound(ablation=ablation.id, saving=None, pairs=0, reason=reason)

    step = report.step
    if observed is None or step is None:
        return refuse("the run has no steps to compare")
    if len({rank.host for rank in report.ranks}) > 1:
        return refuse("its ranks are on several hosts, and trials start on this one")
    bench, without = make_bench(run), make_bench(run, ablation.id)
    if ablation.edits_statements:
        try:
            files = leave_out_statements(finding.where, run.plan.source.resolve())
        except Refusal as refusal:
            return refuse(str(refusal))
        without = replace(bench, patched=files)
    start_s = (step.time_to_first_step_ns or 0) * 1e-9
    limits = choose_limits(observed, start_s, min(steps_to_recur(report, finding), step.count))
    study = Study(bench=bench, limits=limits)
    benches = {"A": bench, "B": without}

    def run_side(side: str, number: int) -> Ran:
        return study.run(f"{finding.rule}-{side}", benches[side], run.strategy, number)

    share = None if report.breakdown is None or finding.phase is None else report.breakdown.share(finding.phase)
    return measure(
        ablation,
        finding,
        run_side,
        phase_ratio=share,
        process_s=start_s + (limits.steps or 0) * observed.step_ns * 1e-9,
        clock_s=time.monotonic,
    )


def _describe(bound: Bound) -> str:
    """One line for the person who waits."""
    if bound.saving is None:
        return f"no bound: {bound.reason}"
    low, high = bound.saving.low_ratio, bound.saving.high_ratio
    return f"leaving this out saves {low:.0%} to {high:.0%} ({bound.pairs} pairs; {bound.reason})"


def recall_bounds(report: Report, folder: Path) -> Report:
    """The report with the bounds that were measured of its run. Raises RecordingError for a damaged file."""
    try:
        bounds = decode(dict[str, Bound], json.loads((folder / NAME).read_text()), NAME)
    except (FileNotFoundError, ValueError):
        return report
    return replace(
        report, findings=tuple(replace(finding, bound=bounds.get(_key_of(finding))) for finding in report.findings)
    )


def _key_of(finding: Finding) -> str:
    """The same for the finding of a rule at a place, whenever the run is reported."""
    where = finding.where[0] if finding.where else None
    return finding.rule if where is None else f"{finding.rule} {where.file}:{where.line}"
