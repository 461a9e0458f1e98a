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
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.analyze.summary import summarize_breakdown, summarize_memory, summarize_strategy
from hotloop.analyze.trainings import Training, analyze_run
from hotloop.apply import TECHNIQUES, check_strategy
from hotloop.apply.environment import set_variables
from hotloop.attach import child
from hotloop.attach.run_folder import write_manifest
from hotloop.core.errors import HotloopError
from hotloop.core.findings import Where
from hotloop.core.phases import PHASES
from hotloop.core.recording import FIELD
from hotloop.core.report import AppliedTechnique, Report
from hotloop.core.strategy import Choice, Strategy, strategy_to_mapping, strategy_to_toml
from hotloop.core.tuning import Tuning, Verdict
from hotloop.trace.recording import RunRecording, read_run
from hotloop.tune.history import NAME as HISTORY
from hotloop.tune.history import read_history, remember_forecasts
from hotloop.tune.patch import Patch
from hotloop.tune.patch import make_patch as make_source_patch
from hotloop.tune.search import Candidate, find_candidates
from hotloop.tune.store import Store
from hotloop.tune.trials import OK, Bench, Limits, Measurement, Ran, run_trial
from hotloop.tune.tuner import (
    BUDGET_USED_UP,
    BaselineFailed,
    Campaign,
    best_arm,
    judge,
    strategy_key,
    tell_trials,
    tune_candidates,
)
from hotloop.tune.workspace import plan_workspace, written_outside

from .runs import Probe, no_probe, report_run

OBSERVED = "baseline-observed"
OBSERVE_RATIO = 0.1
"""Share of the budget that the first look may take for its steps, within these seconds."""
OBSERVE_S = (3.0, 30.0)
STEADY_S = 3.0
STEPS = (30, 400)
"""Steps of a trial: at least and at most; between them as many as fill STEADY_S."""


class TuneError(HotloopError):
    """The command cannot be tuned; the text says why."""


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


@dataclass(slots=True)
class Progress:
    """What there is to report so far; filled while tuning, read also after an interruption."""

    report: Report | None = None
    campaign: Campaign | None = None
    warnings: tuple[str, ...] = ()
    go_on: str = ""
    """The command that goes on where this one stopped for want of time."""


def tune_command(request: Request, progress: Progress, tell: Callable[[str], None]) -> None:
    """Observe the baseline, try its fixes. ``progress`` holds the outcome, whatever ends this."""
    began_s, began_wall_s = time.monotonic(), time.time()
    progress.go_on = _say_go_on(request)
    plan = plan_workspace(request.cwd, without=[request.folder])
    progress.warnings = plan.warnings
    bench = Bench(
        command=request.command,
        plan=plan,
        folder=request.folder,
        environment=partial(_attach, request, deep=False),
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
    ran = run_trial(replace(bench, environment=partial(_attach, request, deep=True)), Strategy(), limits, OBSERVED)
    run_folder = request.folder / "trials" / OBSERVED
    if ran.ended != OK or ran.measured is None:
        raise TuneError(
            f"the command cannot be tuned: its first run ended with {ran.ended}: {ran.reason}; "
            f"its output is in {run_folder}"
        )
    run = _restore_places(read_run(run_folder), request.folder / "work" / OBSERVED / request.cwd.name, request.cwd)
    progress.report = report_run(run, folder=run_folder, probe=request.make_probe(run_folder))
    outside = written_outside(plan, began_wall_s)
    if outside:
        progress.warnings += ("the script writes over files of yours: " + ", ".join(outside),)
    study = _describe_study(request, plan.code_hash)
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
        )
        candidates = find_candidates(progress.report.findings, dict(TECHNIQUES.items()), campaign.check)
        tell(_describe_plan(candidates, limits))
        tune_candidates(campaign, candidates, [ran.measured])
    except BaselineFailed as error:
        raise TuneError(f"{error}; the outputs are in {request.folder / 'trials'}") from error
    finally:
        store.close()
        shutil.rmtree(request.folder / "work", ignore_errors=True)


def _describe_plan(candidates: Sequence[Candidate], limits: Limits) -> str:
    """What is about to be tried, by name, for the person who waits."""
    names = [one.id for one in candidates if not one.why_not]
    if not names:
        return "no finding of the baseline names a technique that could be tried"
    return f"to try, in fresh processes of {limits.steps} steps each: {', '.join(names)}"


def _say_go_on(request: Request) -> str:
    """The same tuning with three times the budget: its finished processes count."""
    out = f" -o {shlex.quote(os.path.relpath(request.folder))}" if request.store.parent == request.folder else ""
    goal = "" if request.goal == "speed" else f" --goal {request.goal}"
    budget = f"{math.ceil(3 * request.budget_s / 60)}m"
    return f"hotloop tune --budget {budget}{goal}{out} -- {shlex.join(request.command)}"


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
        stall_s=max(60.0, 30.0 * step_s),
    )


def finish_report(progress: Progress, goal: str, strategy_file: str) -> tuple[Report, Strategy]:
    """The baseline's report with what was found so far, and the strategy that was proven (it may choose nothing)."""
    assert progress.report is not None
    campaign = progress.campaign
    best = None if campaign is None else best_arm(campaign)
    strategy = Strategy(name="fast")
    if campaign is not None and best is not None:
        found = judge(campaign, best)
        strategy = Strategy(
            name="fast",
            choices=tuple(Choice(technique=c.technique, settings=c.settings) for c in best.candidate.strategy.choices),
        )
        names = " + ".join(choice.technique for choice in strategy.choices)
        what = "smaller peak memory" if goal == "memory" else "faster"
        verdict = (
            f"{found.speedup_ratio:.2f}x {what} with {names} "
            f"({found.low_ratio:.2f}..{found.high_ratio:.2f}, n = {found.n} pairs of processes)"
        )
    else:
        verdict = "nothing was proven to be faster: the strategy file changes nothing"
    tuning = Tuning(
        verdict=verdict,
        goal=goal,
        strategy_file=strategy_file,
        trials=() if campaign is None else tell_trials(campaign),
        baseline=_describe_baseline(campaign),
        warnings=progress.warnings,
    )
    next_command = progress.report.next_command
    if strategy:
        command = shlex.join(progress.report.command) or "COMMAND"
        next_command = f"hotloop run --strategy {shlex.quote(strategy_file)} -- {command}"
    elif any(trial.verdict is Verdict.CANNOT_TELL and BUDGET_USED_UP in trial.reason for trial in tuning.trials):
        next_command = progress.go_on or next_command
    return replace(progress.report, tune=tuning, next_command=next_command), strategy


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
    memory = summarize_memory(training)
    return Measurement(
        step_ns=training.analysis.step_ns,
        steady_count=training.lead.rank.steady_count,
        samples_per_step=_total(training, "samples_per_step"),
        tokens_per_step=_total(training, "tokens_per_step"),
        peak_bytes=None if memory is None else memory.peak_bytes,
        one_time_ns=_one_time_ns(run, training),
        breakdown={name: phase.mean_ns for name, phase in _phases(training)},
        losses=tuple(told.get("losses") or ()),
        losses_per_row=float(told.get("losses_per_row") or 0.0),
        losses_unseen=str(told.get("unseen", "the trial left no losses")),
        applied=tuple(
            {
                "technique": one.technique,
                "settings": dict(one.settings),
                "status": one.status,
                "detail": one.detail,
                "numerics": one.numerics,
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


def _read_told(folder: Path, pid: int) -> Mapping[str, Any]:
    try:
        told = json.loads((folder / f"trial-{pid}.json").read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _attach(
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
    known = store.get(study, key, number)
    if known is not None:
        return known
    name = f"{key}-{number}"
    ran = run_trial(bench, strategy, limits, name)
    store.put(study, key, number, ran)
    if ran.ended == OK:  # what it measured is in the store; logs of failures stay
        shutil.rmtree(bench.folder / "trials" / name, ignore_errors=True)
    return ran


def _describe_study(request: Request, code_hash: str) -> str:
    """What has to be the same for a stored process to count: command, code, machine, versions."""
    described = {
        "command": list(request.command),
        "cwd": str(request.cwd),
        "code": code_hash,
        "hotloop": __version__,
        "python": sys.version,
        "machine": [platform.node(), platform.machine(), platform.release()],
        "threads": request.variables.get("OMP_NUM_THREADS"),
        "devices": request.variables.get("CUDA_VISIBLE_DEVICES"),
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


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


def strategy_text(strategy: Strategy) -> str:
    """fast.toml."""
    return strategy_to_toml(strategy)


def make_patch(progress: Progress, request: Request) -> Patch:
    """What the proven strategy changed in its trials, as a change of the user's source (empty without a proof)."""
    best = None if progress.campaign is None else best_arm(progress.campaign)
    if best is None or not best.own:
        return Patch(diff="", files=(), left_out=())
    copies = re.compile(re.escape(str(request.folder / "work")) + r"/[^/]+/" + re.escape(request.cwd.name))
    records = []
    for one in best.own[-1].applied:
        where = one.get("where")
        place = (
            None
            if where is None
            else Where(file=copies.sub(str(request.cwd), where[0]), line=where[1], function=where[2])
        )
        settings = one.get("settings") or {}
        known = {key: one[key] for key in ("technique", "status", "detail", "target", "numerics")}
        records.append(AppliedTechnique(**known, settings=settings, where=place))
    script = next((request.cwd / word for word in request.command if word.endswith(".py")), None)
    return make_source_patch(records, request.cwd, script=script)


__all__: Sequence[str] = [
    "Progress",
    "Request",
    "TuneError",
    "choose_limits",
    "finish_report",
    "keep_history",
    "make_patch",
    "measure_run",
    "strategy_text",
    "tune_command",
]
