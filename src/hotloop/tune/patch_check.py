"""A patched copy of the source and a way to run it -> whether it trains as before and wins what the strategy won."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from hotloop.core.tuning import PatchCheck, TrialVerdict

from . import goals, statistics
from .patch import CANNOT_TELL, NOT_CHECKED, NOT_REPRODUCED, REPRODUCED, Patch
from .trials import LOST, Ran, pick_unit, ran_together
from .tuner import Arm, BaselineFailed, Campaign, judge, judge_numbers, judge_pairs, numerics_of, run_baseline

MOST_PAIRS = 8

RunPatched = Callable[[int], Ran]
"""The number of a process -> how the patched copy went in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the patch has to show: the strategy's comparison, and whether the patch holds all of the strategy.

    With ``is_one_time`` all steps are compared, as those of the strategy were.
    """

    strategy: statistics.PairComparison
    is_whole: bool
    is_one_time: bool = False


def describe_unchecked(patch: Patch, names: tuple[str, ...], reason: str) -> PatchCheck:
    """What is known of a patch before any process of it ran; ``names`` are its files."""
    inside = {technique for change in patch.files for technique in change.techniques}
    return PatchCheck(
        status=NOT_CHECKED,
        reason=reason,
        techniques=tuple(sorted(inside)),
        files=names,
        left_out=tuple(sorted({one.technique for one in patch.left_out} - inside)),
    )


def check_patch(campaign: Campaign, arm: Arm, run_patched: RunPatched, before: PatchCheck) -> PatchCheck:
    """Pairs of the unchanged command and its patched copy, until they decide or the time is over."""
    strategy = judge(campaign, arm)
    wanted = Wanted(strategy=strategy, is_whole=not before.left_out, is_one_time=arm.candidate.is_one_time)
    found = replace(before, strategy_ratio=strategy.speedup_ratio)
    baseline: list[Measurement] = []
    own: list[Measurement] = []
    numerics = numerics_of(arm.candidate, arm.own[-1])
    number = 0
    while len(own) < MOST_PAIRS:
        if campaign.clock_s() + 2 * campaign.process_s > campaign.budget.until_s:
            break
        try:
            pair = _run_pair(campaign, run_patched, number)
        except BaselineFailed as error:
            return replace(found, status=CANNOT_TELL, reason=str(error))
        unchanged, ran = pair
        if ran.ended == LOST:
            return replace(found, status=CANNOT_TELL, reason=f"the patched copy: {ran.ended}: {ran.reason}")
        if ran.measured is None:
            return replace(found, status=NOT_REPRODUCED, reason=f"the patched copy: {ran.ended}: {ran.reason}")
        number += 1
        if not ran_together(unchanged, ran.measured):
            continue  # one of them is stored
        baseline.append(unchanged)
        own.append(ran.measured)
        found = _judge(campaign, found, wanted, baseline, own, numerics)
        campaign.emit(f"the patched source: {found.status}, {found.reason}")
        if found.status == NOT_REPRODUCED or _compare(campaign, wanted, baseline, own).decided:
            break
    if not own:
        return replace(found, reason="the budget ran out before the patched source could be run")
    return found


def _run_pair(campaign: Campaign, run_patched: RunPatched, number: int) -> tuple[Measurement, Ran]:
    """Every second pair runs backwards, so that a drift of the machine cancels."""
    if number % 2:
        ran = run_patched(number)
        return run_baseline(campaign), ran
    unchanged = run_baseline(campaign)
    return unchanged, run_patched(number)


def _judge(
    campaign: Campaign,
    before: PatchCheck,
    wanted: Wanted,
    baseline: list[Measurement],
    own: list[Measurement],
    numerics: Numerics,
) -> PatchCheck:
    """What the pairs so far say of the gain, and the last process of the loss."""
    found = _compare(campaign, wanted, baseline, own)
    guarded = judge_numbers(campaign, own[-1], numerics)
    status, reason = judge_gain(found, wanted)
    if guarded.quality.status == "rejected":
        status, reason = NOT_REPRODUCED, guarded.quality.reason
    elif guarded.quality.status == "unknown" and status == REPRODUCED:
        status, reason = CANNOT_TELL, f"its loss cannot be judged: {guarded.quality.reason}"
    return replace(
        before,
        status=status,
        reason=reason,
        n=found.n,
        unit="step" if wanted.is_one_time else pick_unit([*baseline, *own]),
        speedup_ratio=found.speedup_ratio,
        low_ratio=found.low_ratio,
        high_ratio=found.high_ratio,
        quality=guarded.summary,
    )


def _compare(
    campaign: Campaign, wanted: Wanted, baseline: list[Measurement], own: list[Measurement]
) -> statistics.PairComparison:
    level, memory = statistics.DECISION_LEVEL, campaign.goal == goals.MEMORY
    return judge_pairs(campaign, baseline, own, level, memory=memory, is_one_time=wanted.is_one_time)


def judge_gain(found: statistics.PairComparison, wanted: Wanted) -> tuple[str, str]:
    """Status and reason of the patched copy's gain beside the strategy's."""
    if found.low_ratio is None or found.high_ratio is None:
        return CANNOT_TELL, found.reason
    if found.verdict is TrialVerdict.SLOWER or (found.decided and found.verdict is not TrialVerdict.FASTER):
        return NOT_REPRODUCED, found.reason
    least = wanted.strategy.low_ratio
    if wanted.is_whole and least is not None and found.high_ratio < least:
        return NOT_REPRODUCED, f"it gains less than the strategy (at least {least:.3f}x): {found.reason}"
    if found.verdict is not TrialVerdict.FASTER:
        return CANNOT_TELL, found.reason
    part = "" if wanted.is_whole else "; the patch contains only part of the strategy"
    return REPRODUCED, found.reason + part
