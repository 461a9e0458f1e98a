"""The results of a tuning so far -> its report, the strategy that was proven, and the command to run next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotloop.core.redact import redact_command
from hotloop.core.report import Report
from hotloop.core.strategy import Strategy, strategy_to_toml
from hotloop.core.tuning import Tuning

from .goals import MEMORY, SPEED
from .history import NAME as HISTORY
from .history import read_history, remember_forecasts
from .statistics import PairComparison, spread_of
from .study import Progress, Request
from .tuner import (
    Arm,
    Campaign,
    best_arm,
    compare_arm,
    describe_reference,
    describe_start,
    describe_trials,
    is_proven,
    judge,
)


def finish_report(request: Request, progress: Progress, strategy_file: str) -> tuple[Report, Strategy]:
    """The baseline's report with what was found so far, and the strategy that was proven (it may choose nothing)."""
    assert progress.report is not None
    campaign = progress.campaign
    best = None if campaign is None else best_arm(campaign)
    strategy = Strategy(name="fast") if best is None else replace(best.candidate.strategy, name="fast")
    left_out = () if progress.patch is None else progress.patch.left_out
    tuning = Tuning(
        verdict=_describe_outcome(progress, request.goal, best),
        goal=request.goal,
        strategy_file=strategy_file,
        trials=(),
        patch=progress.check,
        warnings=(
            *progress.warnings,
            *_list_untried_together(campaign, best),
            *(f"not in patch.diff: {one.technique}: {one.why}" for one in left_out),
        ),
    )
    next_command = progress.report.next_command
    if campaign is not None:
        tuning = replace(
            tuning,
            trials=describe_trials(campaign),
            baseline=_describe_baseline(campaign),
            reference=describe_reference(campaign, progress.reference),
        )
        if any(arm.is_out_of_time for arm in campaign.arms):
            next_command = shlex.join(redact_command(request.next_command)) or next_command
    if strategy:
        command = shlex.join(progress.report.command) or "COMMAND"
        next_command = f"hotloop run --strategy {shlex.quote(strategy_file)} -- {command}"
    return replace(progress.report, tune=tuning, next_command=next_command), strategy


def reveal_next(request: Request, report: Report) -> str:
    """The command to run next, ready to run; empty where the report has it so, or names another one.

    It holds secrets of the command line, which are for the terminal that they were typed into and for no file.
    """
    command = shlex.join(request.next_command)
    hidden = shlex.join(redact_command(request.next_command))
    return command if report.next_command == hidden != command else ""


def strategy_text(strategy: Strategy, overrides: Sequence[str] = ()) -> str:
    """fast.toml, with a comment for each setting of the script's own that it overrides."""
    return "".join(f"# overrides {one}\n" for one in overrides) + strategy_to_toml(strategy)


def _describe_outcome(progress: Progress, goal: str, best: Arm | None) -> str:
    """One sentence: what is written, what it gains by the goal, and what it costs where that is known."""
    campaign = progress.campaign
    if campaign is None or best is None:
        better = "smaller" if goal == MEMORY else "faster"
        arms = [] if campaign is None else campaign.arms
        has_start = any(arm.candidate.is_one_time and arm.own for arm in arms)
        return f"No change was {'adopted' if has_start else f'proven {better}'}; fast.toml is empty."
    found = judge(campaign, best)
    names = " + ".join(choice.technique for choice in best.candidate.strategy.choices) or best.candidate.id
    what = "smaller peak memory" if goal == MEMORY else "faster"
    side = ""
    if goal == MEMORY:
        speed = compare_arm(campaign, best, SPEED)
        side = "" if speed.speedup_ratio is None else f"; speed: {_ratio_words(speed)} of the baseline"
    if best.candidate.is_one_time:
        what += f" over the first {best.own[0].whole_count} steps (a startup cost that each run pays once)"
        side += f"; {describe_start(campaign, best)}"
    return (
        f"{found.speedup_ratio:.2f}x {what} with {names} "
        f"({found.low_ratio:.2f}–{found.high_ratio:.2f}, n = {found.n} pairs of processes){side}"
        f"{''.join(f'; it overrides {one}' for one in list_overrides(progress))}"
    )


def list_overrides(progress: Progress) -> tuple[str, ...]:
    """The script's own settings that the proven strategy replaces, with file and line."""
    campaign = progress.campaign
    best = None if campaign is None else best_arm(campaign)
    if campaign is None or best is None:
        return ()
    return next(trial.overrides for trial in describe_trials(campaign) if trial.id == best.candidate.id)


def _list_untried_together(campaign: Campaign | None, best: Arm | None) -> tuple[str, ...]:
    """Candidates proven to speed up the start, but left out because another saves time in every step."""
    if campaign is None or best is None or best.candidate.is_one_time:
        return ()
    return tuple(
        f"{arm.candidate.id} speeds up the start but was not tried together with {best.candidate.id}, so it is not "
        "in fast.toml"
        for arm in campaign.arms
        if arm.candidate.is_one_time and is_proven(campaign, arm)
    )


def _ratio_words(found: PairComparison) -> str:
    if found.speedup_ratio is None:
        return "not known"
    bounds = "" if found.low_ratio is None else f" ({found.low_ratio:.2f}–{found.high_ratio:.2f})"
    return f"{found.speedup_ratio:.2f}x{bounds}"


def keep_history(report: Report, root: Path) -> Report:
    """Add this tuning's forecast errors to the history under ``root``, and that history to the report."""
    history = root / HISTORY
    if report.tune is not None:
        try:
            remember_forecasts(report.tune, history)
        except OSError as error:
            warning = f"cannot add the forecast errors to {history}: {error.strerror}"
            report = replace(report, tune=replace(report.tune, warnings=(*report.tune.warnings, warning)))
    return replace(report, forecast_history=read_history(history))


def _describe_baseline(campaign: Campaign) -> dict[str, Any]:
    if not campaign.baseline:
        return {}
    times = [one.step_ns for one in campaign.baseline]
    return {
        "n": len(times),
        "step_ns": sum(times) / len(times),
        "spread_ratio": spread_of(times),
        "losses_repeat": None
        if campaign.guard is None or campaign.guard.loss.unknown
        else campaign.guard.loss.is_repeatable,
        "decision_level": campaign.level,
        "ended": campaign.why_ended or None,
    }
