"""A training command and a budget -> its baseline's Report with the trials of its fixes, and the strategy proven."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.analyze.summary import summarize_breakdown, summarize_memory, summarize_strategy
from hotloop.analyze.trainings import Training, analyze_run, find_unit_drift
from hotloop.apply import TECHNIQUES, check_strategy
from hotloop.apply.environment import set_variables
from hotloop.attach import child
from hotloop.attach.run_folder import write_manifest
from hotloop.core.errors import HotloopError
from hotloop.core.findings import Where
from hotloop.core.phases import PHASES
from hotloop.core.recording import FIELD
from hotloop.core.redact import redact_command
from hotloop.core.report import AppliedTechnique, Report
from hotloop.core.strategy import Strategy, strategy_to_mapping, strategy_to_toml
from hotloop.core.tuning import PatchCheck, Tuning
from hotloop.trace.recording import RunRecording, read_run
from hotloop.tune.goals import COST, DOMINATED, MEMORY, PARETO, SPEED, standing_to_mapping
from hotloop.tune.history import NAME as HISTORY
from hotloop.tune.history import read_history, remember_forecasts
from hotloop.tune.memory_candidates import add_memory_candidates
from hotloop.tune.patch import Patch
from hotloop.tune.patch import make_patch as make_source_patch
from hotloop.tune.patch_check import check_patch, describe_unchecked
from hotloop.tune.search import Candidate, find_candidates
from hotloop.tune.statistics import Comparison
from hotloop.tune.store import Store
from hotloop.tune.suggested import group_candidates, make_optuna, tune_suggested
from hotloop.tune.trials import LOST, OK, Bench, Limits, Measurement, Ran, run_trial
from hotloop.tune.tuner import (
    Arm,
    BaselineFailed,
    Campaign,
    best_arm,
    choose_pareto,
    compare_arm,
    end_early,
    go_on,
    judge,
    rank_arms,
    strategy_key,
    tell_reference,
    tell_trials,
    tune_candidates,
)
from hotloop.tune.workspace import (
    Plan,
    WorkspaceError,
    changed_code,
    changed_files,
    code_outside,
    plan_workspace,
    written_outside,
)

from .host_load import read_host_load
from .runs import Probe, no_probe, report_run

OBSERVED = "baseline-observed"
OBSERVE_RATIO = 0.1
"""Share of the budget that the first look may take for its steps, within these seconds."""
OBSERVE_S = (3.0, 30.0)
STEADY_S = 3.0
LEAST_PACE_READINGS = 10
"""Fewer timings of the fixed piece of work tell nothing of the machine's pace."""
PATCH_RATIO = 0.15
"""Share of the budget that is kept for running the patched source, which the proof of a strategy leaves."""
STEPS = (30, 400)
"""Steps of a trial: at least and at most; between them as many as fill STEADY_S."""


class TuneError(HotloopError):
    """The command cannot be tuned; the text says why."""


class CodeChanged(Exception):
    """Code that trials read where it lies is another one than before: what runs now is no more what was observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to tune. ``command`` is resolved; ``variables`` is the environment to start it in."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    cwd: Path
    folder: Path
    store: Path
    budget_s: float
    goal: str
    make_probe: Callable[[Path], Probe] = lambda folder: no_probe
    price_per_hour: float | None = None
    """Of everything that the command runs on."""
    options: tuple[str, ...] = ()
    """What else was asked for on the command line, to ask for it again."""
    typed: tuple[str, ...] = ()
    """The command as it was typed, to ask for it again; ``command`` where that is not known."""


@dataclass(slots=True)
class Progress:
    """What there is to report so far; filled while tuning, read also after an interruption."""

    report: Report | None = None
    campaign: Campaign | None = None
    warnings: tuple[str, ...] = ()
    patch: Patch | None = None
    check: PatchCheck | None = None
    """What is known of the patch; None where it changes nothing."""
    reference: str = "baseline"
    """What everything is held against, by name."""
    launches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """How candidates start the command, by id, where that differs."""
    go_on: tuple[str, ...] = ()
    """The words of the command that goes on where this one stopped for want of time, secrets included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """What a look at the baseline leaves for those who run trials."""

    store: Store
    study: str
    bench: Bench
    limits: Limits
    campaign: Campaign
    observed: Measurement
    report: Report


TryOut = Callable[[Trials, Callable[[str], None]], None]
"""Chooses candidates and runs them in ``trials.campaign``."""


def try_findings(trials: Trials, tell: Callable[[str], None]) -> None:
    """The fixes of the findings; under the goals memory and pareto also what saves memory."""
    candidates = _choose_candidates(trials)
    tell(_describe_plan(candidates, trials.limits))
    tune_candidates(trials.campaign, candidates, [trials.observed])


def try_suggestions(trials: Trials, tell: Callable[[str], None]) -> None:
    """The same candidates, in combinations that Optuna suggests."""
    candidates = _choose_candidates(trials)
    tell(f"{sum(not c.why_not for c in candidates)} candidates for optuna, {trials.limits.steps} steps in each process")
    tune_suggested(trials.campaign, candidates, [trials.observed], make_optuna(group_candidates(candidates)))


def with_patch(search: TryOut, request: Request, progress: Progress) -> TryOut:
    """The search, and what its outcome is worth as a change of the source: part of the time is kept for that."""

    def try_out(trials: Trials, tell: Callable[[str], None]) -> None:
        campaign = trials.campaign
        deadline_s = campaign.deadline_s
        campaign.deadline_s -= PATCH_RATIO * request.budget_s
        try:
            search(trials, tell)
            campaign.deadline_s = deadline_s
            if best_arm(campaign) is None:
                go_on(campaign)  # no patch to check so far: its time goes to the proof
        except (BaselineFailed, CodeChanged) as error:
            campaign.deadline_s = deadline_s
            _end_early(request, progress, error)
        parts = (trials.store, trials.study, trials.bench, trials.limits)
        check_source(request, progress, trials.bench.plan, lambda files: partial(run_patched, *parts, files))

    return try_out


def _choose_candidates(trials: Trials) -> tuple[Candidate, ...]:
    campaign, techniques = trials.campaign, dict(TECHNIQUES.items())
    candidates = find_candidates(trials.report.findings, techniques, campaign.check, trials.bench.plan.source)
    if campaign.goal in (MEMORY, PARETO):
        candidates = add_memory_candidates(
            candidates,
            techniques,
            campaign.check,
            goal=campaign.goal,
            rank_count=trials.observed.rank_count or 1,
            has_accelerator=any(rank.memory.allocated_bytes is not None for rank in trials.report.ranks),
        )
    return candidates


def tune_command(
    request: Request,
    progress: Progress,
    tell: Callable[[str], None],
    *,
    baseline: Strategy = Strategy(),  # noqa: B008 (frozen)
    try_out: TryOut,
) -> None:
    """Observe the baseline, try candidates. ``progress`` holds the outcome, whatever ends this."""
    began_s, began_wall_s = time.monotonic(), time.time()
    progress.go_on = _say_go_on(request)
    outside = code_outside(request.command, request.cwd)
    plan = plan_workspace(request.cwd, without=[request.folder], outside=outside)
    progress.warnings = plan.warnings
    bench = Bench(
        command=request.command,
        plan=plan,
        folder=request.folder,
        environment=partial(attach_trial, request, deep=False),
        measure=measure_run,
    )
    tell("observing the baseline")
    limits = Limits(
        steps=None,
        seconds=min(max(OBSERVE_S[0], OBSERVE_RATIO * request.budget_s), OBSERVE_S[1]),
        timeout_s=max(60.0, 0.5 * request.budget_s),
        start_s=max(60.0, 0.4 * request.budget_s),
        stall_s=max(30.0, 0.2 * request.budget_s),
    )
    ran = run_trial(replace(bench, environment=partial(attach_trial, request, deep=True)), baseline, limits, OBSERVED)
    run_folder = request.folder / "trials" / OBSERVED
    if ran.ended != OK or ran.measured is None:
        raise TuneError(
            f"the command cannot be tuned: its first run ended with {ran.ended}: {ran.reason}; "
            + "".join(f"{warning}; " for warning in progress.warnings)
            + f"its output is in {run_folder}"
        )
    run = _restore_places(read_run(run_folder), request.folder / "work" / OBSERVED / request.cwd.name, request.cwd)
    progress.report = report_run(run, folder=run_folder, probe=request.make_probe(run_folder))
    written = written_outside(plan, began_wall_s)
    if written:
        progress.warnings += ("the script writes over files of yours: " + ", ".join(written),)
    plan = _without_outputs(plan)
    bench = replace(bench, plan=plan)
    study = _describe_study(request, plan.code_hash, _lead_facts(run))
    store = Store(request.store)
    try:
        # Processes of an earlier tuning count only when they are as long as those of this one: keep its length.
        limits = choose_limits(ran.measured, ran.duration_s)
        limits = replace(limits, steps=store.keep_steps(study, limits.steps or STEPS[0]))
        campaign = progress.campaign = Campaign(
            goal=request.goal,
            check=lambda strategy: check_strategy(strategy, TECHNIQUES),
            run=partial(_run_stored, store, study, bench, limits),
            clock_s=time.monotonic,
            deadline_s=began_s + request.budget_s,
            tell=tell,
            process_s=ran.duration_s,
            price_per_hour=request.price_per_hour,
        )
        trials = Trials(
            store=store,
            study=study,
            bench=bench,
            limits=limits,
            campaign=campaign,
            observed=ran.measured,
            report=progress.report,
        )
        try_out(trials, tell)
    except (BaselineFailed, CodeChanged, WorkspaceError) as error:
        _end_early(request, progress, error)
    finally:
        store.close()
        shutil.rmtree(request.folder / "work", ignore_errors=True)


def _end_early(request: Request, progress: Progress, error: Exception) -> None:
    """Nothing more can be run, and what was compared is told. Raises TuneError where that is nothing."""
    why = str(error)
    if isinstance(error, BaselineFailed):
        why += f"; the outputs are in {request.folder / 'trials'}"
    if progress.campaign is None or not end_early(progress.campaign, str(error)):
        raise TuneError(why) from error
    progress.warnings += (f"ended early: {why}",)
    progress.campaign.tell(f"ended early: {why}")


def _without_outputs(plan: Plan) -> Plan:
    """The plan without what the command itself wrote in its first run: results that have the suffix of a setting."""
    written = [one for one in changed_code(plan) if one.path.suffix not in (".py", ".sh", ".ipynb")]
    return replace(plan, watched=tuple(one for one in plan.watched if one not in written))


def check_source(
    request: Request,
    progress: Progress,
    plan: Plan,
    run_with: Callable[[Mapping[str, bytes]], Callable[[int], Ran]],
) -> None:
    """Make the patch of what was proven and run the patched copy beside the unchanged one, as long as there is time."""
    campaign = progress.campaign
    assert campaign is not None
    best = best_arm(campaign)
    patch = progress.patch = make_patch(progress, request)
    if best is None or not patch.files:
        return
    names = _name_files(patch, request)
    changed = [*changed_files(plan, names), *(str(one.path) for one in changed_code(plan))]
    if changed:
        why = f"{', '.join(changed)} changed since the tuning began: the patch is of another source than what ran"
        progress.check = describe_unchecked(patch, names, why)
        return
    progress.check = describe_unchecked(patch, names, "it was interrupted before the patched source was run")
    campaign.tell("running the patched source without a strategy")
    after = {name: change.after for name, change in zip(names, patch.files, strict=True)}
    progress.check = check_patch(campaign, best, run_with(after), progress.check)


def settle_patch(progress: Progress, request: Request) -> Patch:
    """The patch that was made, else one of what was proven. What was never run is marked so in ``progress``."""
    patch = progress.patch = progress.patch or make_patch(progress, request)
    if progress.check is None and patch.files:
        why = "the patched source was not run: read it before you apply it"
        progress.check = describe_unchecked(patch, _name_files(patch, request), why)
    return patch


def _name_files(patch: Patch, request: Request) -> tuple[str, ...]:
    root = request.cwd.resolve()
    return tuple(change.path.relative_to(root).as_posix() for change in patch.files)


def _describe_plan(candidates: Sequence[Candidate], limits: Limits) -> str:
    """What is about to be tried, by name, for the person who waits."""
    names = [one.id for one in candidates if not one.why_not]
    if not names:
        return "no finding of the baseline names a technique that could be tried"
    return f"to try, in fresh processes of {limits.steps} steps each: {', '.join(names)}"


def _say_go_on(request: Request) -> tuple[str, ...]:
    """The same tuning with three times the budget: its finished processes count."""
    out = ("-o", os.path.relpath(request.folder)) if request.store.parent == request.folder else ()
    budget = f"{math.ceil(3 * request.budget_s / 60)}m"
    command = request.typed or request.command
    return ("hotloop", "tune", "--budget", budget, *request.options, *out, "--", *command)


def reveal_next(progress: Progress, report: Report) -> str:
    """The command that goes on, to be run as it is; empty where the report has it so, or names another one.

    It holds secrets of the command line, which are for the terminal that they were typed into and for no file.
    """
    command = shlex.join(progress.go_on)
    hidden = shlex.join(redact_command(progress.go_on))
    return command if report.next_command == hidden != command else ""


def choose_limits(measured: Measurement, duration_s: float) -> Limits:
    """How long a trial is: as many steps as fill STEADY_S behind a warm-up, and a wide limit for everything."""
    step_s = measured.step_ns * 1e-9
    steps = min(max(round(STEADY_S / max(step_s, 1e-6)) + 5, STEPS[0]), STEPS[1])
    expected_s = duration_s + steps * step_s
    return Limits(
        steps=steps,
        seconds=None,
        timeout_s=120.0 + 4.0 * expected_s,
        start_s=120.0 + 2.0 * duration_s,
        stall_s=max(60.0, 30.0 * step_s, duration_s),
    )


def finish_report(progress: Progress, goal: str, strategy_file: str) -> tuple[Report, Strategy]:
    """The baseline's report with what was found so far, and the strategy that was proven (it may choose nothing)."""
    assert progress.report is not None
    campaign = progress.campaign
    best = None if campaign is None else best_arm(campaign)
    strategy = Strategy(name="fast")
    if campaign is not None and best is not None:
        strategy = replace(best.candidate.strategy, name="fast")
    tuning = Tuning(
        verdict=_describe_outcome(progress, goal, best),
        goal=goal,
        strategy_file=strategy_file,
        trials=()
        if campaign is None
        else tuple(replace(one, launch=progress.launches.get(one.id, {})) for one in tell_trials(campaign)),
        baseline=_describe_baseline(campaign),
        patch=progress.check,
        warnings=progress.warnings,
        reference=None if campaign is None else tell_reference(campaign, progress.reference),
        pareto=()
        if campaign is None or goal != PARETO
        else tuple(standing_to_mapping(one, progress.reference) for one in rank_arms(campaign)),
        price_per_hour=None if campaign is None else campaign.price_per_hour,
    )
    next_command = progress.report.next_command
    if strategy:
        command = shlex.join(progress.report.command) or "COMMAND"
        next_command = f"hotloop run --strategy {shlex.quote(strategy_file)} -- {command}"
    elif campaign is not None and any(arm.is_out_of_time for arm in campaign.arms):
        next_command = shlex.join(redact_command(progress.go_on)) or next_command
    return replace(progress.report, tune=tuning, next_command=next_command), strategy


def front_strategies(progress: Progress) -> dict[str, Strategy]:
    """With the goal pareto: the strategy of every candidate that nothing is proven to dominate, by a name for its file.

    Candidates whose numbers could not be judged are left out, as they are from fast.toml.
    """
    if progress.campaign is None or progress.campaign.goal != PARETO:
        return {}
    kept = {
        one.point.id for one in rank_arms(progress.campaign) if one.standing != DOMINATED and one.point.is_adoptable
    }
    return {
        re.sub(r"[^A-Za-z0-9]+", "-", arm.candidate.id).strip("-") or "candidate": Strategy(
            name=arm.candidate.id, choices=arm.candidate.strategy.choices
        )
        for arm in progress.campaign.arms
        if arm.candidate.id in kept and arm.candidate.strategy
    }


def _describe_outcome(progress: Progress, goal: str, best: Arm | None) -> str:
    """One sentence: what is written, what it wins by the goal, and what it costs where that is known."""
    campaign = progress.campaign
    if goal == PARETO and campaign is not None:
        _, why = choose_pareto(campaign)
        if best is None:
            return f"fast.toml is empty: {why}"
        parts = [
            f"speed {_ratio_words(compare_arm(campaign, best, SPEED))}",
            f"memory saving {_ratio_words(compare_arm(campaign, best, MEMORY))}",
        ]
        return f"{why} ({', '.join(parts)}){_launch_words(progress, best)}"
    if campaign is None or best is None:
        won = {MEMORY: "smaller", COST: "cheaper"}.get(goal, "faster")
        return f"No change was proven {won}; fast.toml is empty."
    found = judge(campaign, best)
    names = " + ".join(choice.technique for choice in best.candidate.strategy.choices) or best.candidate.id
    what = {MEMORY: "smaller peak memory", COST: "cheaper"}.get(goal, "faster")
    side = ""
    if goal in (MEMORY, COST):
        speed = compare_arm(campaign, best, SPEED)
        side = "" if speed.speedup_ratio is None else f"; its speed is {_ratio_words(speed)} of before"
    return (
        f"{found.speedup_ratio:.2f}x {what} with {names} "
        f"({found.low_ratio:.2f}–{found.high_ratio:.2f}, n = {found.n} pairs of processes){side}"
        f"{''.join(f'; it overrides {one}' for one in tell_overrides(progress))}{_launch_words(progress, best)}"
    )


def tell_overrides(progress: Progress) -> tuple[str, ...]:
    """What the proven strategy replaces of the script's own settings, with file and line."""
    campaign = progress.campaign
    best = None if campaign is None else best_arm(campaign)
    if campaign is None or best is None:
        return ()
    return next(trial.overrides for trial in tell_trials(campaign) if trial.id == best.candidate.id)


def _ratio_words(found: Comparison) -> str:
    if found.speedup_ratio is None:
        return "not known"
    bounds = "" if found.low_ratio is None else f" ({found.low_ratio:.2f}–{found.high_ratio:.2f})"
    return f"{found.speedup_ratio:.2f}x{bounds}"


def _launch_words(progress: Progress, best: Arm) -> str:
    """What the strategy file cannot hold: how the command was started."""
    launch = progress.launches.get(best.candidate.id)
    if not launch:
        return ""
    told = [f"{key} = {value}" for key, value in launch.items()]
    return f"; the file holds its techniques only, start the command with {', '.join(told)}"


def keep_history(report: Report, root: Path) -> Report:
    """Add this tuning's forecast errors to the history under ``root``, and that history to the report."""
    history = root / HISTORY
    if report.tune is not None:
        try:
            remember_forecasts(report.tune, history)
        except OSError as error:
            warning = f"forecast errors could not be added to {history}: {error.strerror}"
            report = replace(report, tune=replace(report.tune, warnings=(*report.tune.warnings, warning)))
    return replace(report, forecast_history=read_history(history))


def measure_run(folder: Path) -> Measurement | None:
    """A trial's run folder -> what its largest training measured; None when none was seen."""
    run = read_run(folder)
    trainings = analyze_run(run.processes)
    if not trainings:
        return None
    training = trainings[0]
    told = _read_told(folder, training.lead.rank.pid)
    load = read_host_load(folder, run, training)
    memory = summarize_memory(training)
    return Measurement(
        step_ns=training.analysis.step_ns,
        steady_count=training.lead.rank.steady_count,
        samples_per_step=_total(training, "samples_per_step"),
        tokens_per_step=_total(training, "tokens_per_step"),
        peak_bytes=None if memory is None else memory.peak_bytes,
        rank_peak_bytes=_largest([process.memory.peak_bytes for process in training.processes]),
        rank_count=len(training.processes),
        form=_describe_form(training),
        others_ratio=None if load is None else load.others_ratio,
        pace_ns=_pace_ns(told, run, training),
        threads_count=training.lead.rank.torch_threads,
        work_drifts=find_unit_drift(training.processes, training.analysis.unit) is not None,
        exchanges=any(r.ddp is not None or r.mean["collectives"] > 0 for r in training.analysis.ranks),
        one_time_ns=_one_time_ns(run, training),
        breakdown={name: phase.mean_ns for name, phase in _phases(training)},
        losses=tuple(told.get("losses") or ()),
        losses_per_row=float(told.get("losses_per_row") or 0.0),
        losses_unseen=str(told.get("unseen", "the trial left no losses")),
        norms=tuple((int(row), value) for row, value in told.get("norms") or ()),
        norms_unseen=str(told.get("norms_unseen", "the trial left no gradient norms")),
        applied=tuple(
            {
                "technique": one.technique,
                "settings": dict(one.settings),
                "status": one.status,
                "detail": one.detail,
                "numerics": one.numerics,
                "explicit": one.explicit,
                "values": dict(one.values),
                "target": one.target,
                "where": None if one.where is None else [one.where.file, one.where.line, one.where.function],
            }
            for one in summarize_strategy(training)
        ),
    )


def _restore_places(run: RunRecording, workspace: Path, cwd: Path) -> RunRecording:
    """The run with the places of the working copy, which is gone, as places of the user's own files."""
    old, new = str(workspace), str(cwd)

    def restore(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(old, new) if old in value else value
        if isinstance(value, dict):
            return {key: restore(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(restore(one) for one in value)
        return value

    processes = tuple(replace(p, process=restore(p.process), facts=restore(p.facts)) for p in run.processes)
    return replace(run, processes=processes)


def _phases(training: Training) -> list[tuple[str, Any]]:
    breakdown = summarize_breakdown(training)
    return [] if breakdown is None else [(name, breakdown.phases[name]) for name in PHASES]


def _describe_form(training: Training) -> str:
    """Ranks, DistributedDataParallel and dtypes, in a few words; what was not seen is left out."""
    lead, count = training.lead.rank, len(training.processes)
    dtype = (lead.model_dtype or "").removeprefix("torch.")
    if lead.autocast_dtype is not None:
        dtype = f"{dtype} under {lead.autocast_dtype} autocast".strip()
    ranks = "1 process" if count == 1 else f"{count} ranks"
    return ", ".join(part for part in (ranks, "DDP" if lead.ddp is not None else "", dtype) if part)


def _largest(peaks: Sequence[int | None]) -> int | None:
    """None when one of them is unknown: it could be the largest."""
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def _total(training: Training, name: str) -> float | None:
    """Per step of all ranks together; of one process where they have no rank."""
    counts: list[float] = [getattr(rank, name) for rank in training.analysis.ranks]
    if not all(counts):
        return None
    return sum(counts) if training.lead.rank.rank is not None else sum(counts) / len(counts)


def _one_time_ns(run: RunRecording, training: Training) -> int | None:
    """From the moment that torch was there to the first steady step, without as many steady steps."""
    lead = training.lead.rank
    process = next((p for p in run.processes if p.process.get("pid") == lead.pid), None)
    if process is None or lead.warmup_count >= len(process.rows):
        return None
    until_ns = int(process.rows[lead.warmup_count][FIELD["start_ns"]])
    return max(0, round(until_ns - lead.warmup_count * lead.step_mean_ns))


def _pace_ns(told: Mapping[str, Any], run: RunRecording, training: Training) -> float | None:
    """Mean time of the fixed piece of work after the steps that settled, without its largest twentieth.

    None where other processes of the training (ranks, loader workers) run beside it.
    """
    lead = training.lead.rank
    if len(training.processes) > 1 or any(loader.num_workers != 0 for loader in lead.loaders):
        return None
    process = next((p for p in run.processes if p.process.get("pid") == lead.pid), None)
    if process is None or lead.warmup_count >= len(process.rows):
        return None
    first_row = int(process.rows[lead.warmup_count][FIELD["index"]])
    found = sorted(ns for row, ns in told.get("pace") or () if row >= first_row)
    kept = found[: len(found) - len(found) // 20]
    return sum(kept) / len(kept) if len(found) >= LEAST_PACE_READINGS else None


def _read_told(folder: Path, pid: int) -> Mapping[str, Any]:
    try:
        told = json.loads((folder / f"trial-{pid}.json").read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def attach_trial(
    request: Request, strategy: Strategy, run_folder: Path, trial: Mapping[str, Any], *, deep: bool
) -> dict[str, str]:
    write_manifest(run_folder, request.command, [])
    options: dict[str, Any] = {"deep": deep, "trace": None, "nvtx": False, "trial": dict(trial)}
    variables = dict(request.variables)
    if strategy:
        variables, options["variables"] = set_variables(strategy, variables)
        options["strategy"] = strategy_to_mapping(strategy)
    return child.attach_environment(variables, run_folder, options)


def _run_stored(store: Store, study: str, bench: Bench, limits: Limits, strategy: Strategy, number: int) -> Ran:
    key = strategy_key(strategy)
    return run_stored(store, study, key, bench, limits, strategy, number, is_reference=not strategy)


def run_patched(store: Store, study: str, bench: Bench, limits: Limits, files: Mapping[str, bytes], number: int) -> Ran:
    """A process of the working copy with these files in it, under no strategy."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    key = f"patch-{digest.hexdigest()[:16]}"
    return run_stored(store, study, key, replace(bench, patched=files), limits, Strategy(), number)


def run_stored(
    store: Store,
    study: str,
    key: str,
    bench: Bench,
    limits: Limits,
    strategy: Strategy,
    number: int,
    *,
    is_reference: bool = False,
) -> Ran:
    """The process of this number under a key, from the store when it ran before. Raises CodeChanged.

    Once this tuning has run a process itself, what is stored was measured at another time, and runs again; what failed
    then fails now. That the unchanged command failed (``is_reference``) is stored never: it ends the tuning, and would
    end each later one.
    """
    known = store.get(study, key, number)
    if known is not None and _counts_still(known, is_reference=is_reference, has_run=store.has_run):
        return known
    name = f"{key}-{number}"
    store.has_run = True
    ran = run_trial(bench, strategy, limits, name)
    changed = changed_code(bench.plan)
    if changed:
        names = ", ".join(str(one.path) for one in changed[:3])
        raise CodeChanged(f"{names} changed while tuning: what ran before was another program; tune again")
    if ran.measured is not None or not (is_reference or ran.ended == LOST):
        store.put(study, key, number, ran)
    if ran.ended == OK:  # what it measured is in the store; logs of failures stay
        shutil.rmtree(bench.folder / "trials" / name, ignore_errors=True)
    return ran


def _counts_still(known: Ran, *, is_reference: bool, has_run: bool) -> bool:
    """Whether a stored process stands for one that would run now."""
    if known.measured is None:
        return not is_reference and known.ended != LOST
    return not has_run


def _describe_study(request: Request, code_hash: str, facts: Mapping[str, Any]) -> str:
    """What has to be the same for a stored process to count: command, code, variables, machine, versions, goal."""
    variables = {name: value for name, value in request.variables.items() if not _VOLATILE.fullmatch(name)}
    described = {
        "command": list(request.command),
        "cwd": str(request.cwd),
        "code": code_hash,
        "hotloop": __version__,
        "machine": [platform.node(), platform.machine(), platform.release()],
        "training": dict(facts),
        "variables": variables,
        "goal": request.goal,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()


def _lead_facts(run: RunRecording) -> dict[str, Any]:
    """What the process that leads the training said of its Python, torch and device."""
    lead = analyze_run(run.processes)[0].lead.rank
    process = next((one.process for one in run.processes if one.process.get("pid") == lead.pid), {})
    return {name: process.get(name) for name in _FACTS}


_FACTS = ("python", "torch", "executable", "accelerator", "device_name", "torch_threads", "cores")
_VOLATILE = re.compile(
    r"_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|DISPLAY|XAUTHORITY|WINDOWID|STY|MAIL|HISTFILE|PS1|PROMPT_COMMAND|LS_COLORS"
    r"|COLORTERM|NO_COLOR|SESSION_MANAGER|INVOCATION_ID|JOURNAL_STREAM|MANAGERPID|PYTEST_CURRENT_TEST|MASTER_PORT"
    r"|(?:SSH|TERM|XDG|TMUX|WAYLAND|DBUS|GPG|GNOME|KDE|KONSOLE|ITERM|VSCODE|SUDO|SYSTEMD|LC_TERMINAL|DESKTOP)(?:_.*|)"
    r"|TERMINAL.*|GIT_ASKPASS|BROWSER|DEBUGINFOD_.*|KUBERNETES_.*"
    r"|(?:SLURM|PBS|LSB|SGE)_.*(?:ID|JOBID|TIME|DIR|PORT|HOST|NODELIST|PID|IPADDR|ADDR)|JOB_ID"
)
"""Variables that differ from login to login or from job to job and change no training."""


def _describe_baseline(campaign: Campaign | None) -> dict[str, Any]:
    from hotloop.tune.statistics import spread_of

    if campaign is None or not campaign.baseline:
        return {}
    times = [one.step_ns for one in campaign.baseline]
    return {
        "n": len(times),
        "step_ns": sum(times) / len(times),
        "spread_ratio": spread_of(times),
        "losses_repeat": None if campaign.bands is None or campaign.bands.unknown else campaign.bands.is_repeatable,
        "decision_level": campaign.level,
        "ended": campaign.why_ended or None,
    }


def strategy_text(strategy: Strategy, overrides: Sequence[str] = ()) -> str:
    """fast.toml, with a comment for each setting of the script's own that it overrides."""
    return "".join(f"# overrides {one}\n" for one in overrides) + strategy_to_toml(strategy)


def make_patch(progress: Progress, request: Request) -> Patch:
    """What the proven strategy changed in its trials, as a change of the user's source (empty without a proof)."""
    best = None if progress.campaign is None else best_arm(progress.campaign)
    if best is None or not best.own:
        return Patch(diff="", files=(), left_out=())
    return make_patch_of(best.own[-1].applied, request)


def make_patch_of(applied: Sequence[Mapping[str, Any]], request: Request) -> Patch:
    """What the techniques of one trial's process did, as a change of the user's source."""
    records = []
    for one in applied:
        where = one.get("where")
        place = None if where is None else Where(file=where[0], line=where[1], function=where[2])
        settings = one.get("settings") or {}
        known = {key: one[key] for key in ("technique", "status", "detail", "target", "numerics")}
        explicit, values = one.get("explicit"), one.get("values") or {}
        records.append(AppliedTechnique(**known, settings=settings, where=place, explicit=explicit, values=values))
    script = next((request.cwd / word for word in request.command if word.endswith(".py")), None)
    return make_source_patch(records, request.cwd, TECHNIQUES, script=script)


__all__: Sequence[str] = [
    "Progress",
    "Request",
    "Trials",
    "TuneError",
    "choose_limits",
    "finish_report",
    "front_strategies",
    "keep_history",
    "make_patch",
    "measure_run",
    "reveal_next",
    "run_stored",
    "settle_patch",
    "strategy_text",
    "tell_overrides",
    "try_findings",
    "try_suggestions",
    "tune_command",
    "with_patch",
]
