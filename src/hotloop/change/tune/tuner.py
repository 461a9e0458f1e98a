"""Candidates and a way to run them -> Trials with verdicts and the strategy that was proven, within a budget."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from statistics import median

from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Strategy, strategy_to_toml
from hotloop.core.tuning import Trial, TrialVerdict, forecast_of

from . import goals, statistics
from .quality import (
    GuardBands,
    Guarded,
    Quality,
    judge_measured,
    make_guard,
    repeats_bit_for_bit,
    widest_numerics,
)
from .search import (
    BASELINE,
    Candidate,
    Check,
    combine,
    is_material,
    keep_affordable,
    override_explicit,
    promise,
    rests_on_evidence,
    schedule_round,
    urgency,
)
from .trials import Budget, Ran, pick_unit, time_per_unit

BASELINE_PROCESSES = 2
"""Before any candidate, at most: with the observed run they make the three that the quality guard needs. One is enough
where its losses are those of the observed run, bit for bit."""
NEAR_BEST_RATIO = 1 / 2
"""Where the time is not enough for all, candidates that promise less than this share of the best one's saving wait."""
DECAY_RATIO = 0.7
"""How much of the longest process of late the next one may at least need."""
PAIRS_WHEN_ALONE = 8
"""A candidate that nobody waits for is given up no earlier than this."""
PAIRS_FOR_ALL = 6
"""Pairs that each candidate should have for the time to be enough."""
SINGLES_RATIO = 0.7
"""Share of the budget for candidates alone; the rest is for their combinations."""
MOST_COMBINATIONS = 2
EQUAL_LEVEL_RATIO = 0.5
"""Share of the decision level that all candidates get alike."""
HALVING_ROUNDS = (1, 2, 4, 8)
"""Numbers of pairs after which only the best continue where there is not enough time for all."""
BUDGET_USED_UP = "the budget ran out"

RunArm = Callable[[Strategy, int], Ran]
"""A strategy and the number of its process -> how that process went."""


@dataclass(slots=True, kw_only=True)
class Arm:
    """A candidate with its pairs so far."""

    candidate: Candidate
    baseline: list[Measurement] = field(default_factory=list)
    own: list[Measurement] = field(default_factory=list)
    run_count: int = 0
    ended: Trial | None = None
    """Its last word, when nothing more will be run."""
    guarded: Guarded | None = None
    left_out: str = ""
    weight: float = 1.0
    """Its share of the decision level, over an equal share."""
    is_out_of_time: bool = False
    """It was left out when the budget was used up."""
    rejected: Measurement | None = None
    """The process whose numbers left their band."""
    process_s: float | None = None
    """How long its processes take (compilation, workers); None before the first."""

    @property
    def quality(self) -> Quality | None:
        """The verdict on the numbers of its last process."""
        return None if self.guarded is None else self.guarded.quality


@dataclass(slots=True, kw_only=True)
class Campaign:
    """Everything that a tuning knows while it runs: what it leaves when it is interrupted."""

    goal: str
    check: Check
    run: RunArm
    clock_s: Callable[[], float]
    budget: Budget
    emit: Callable[[str], None]
    baseline: list[Measurement] = field(default_factory=list)
    baseline_count: int = 0
    guard: GuardBands | None = None
    arms: list[Arm] = field(default_factory=list)
    level: float = statistics.DECISION_LEVEL
    process_s: float = 0.0
    """Time that the baseline's next process may need: at first the observed run's time."""
    why_ended: str = ""


class BaselineFailed(Exception):
    """The unchanged command does not train in a trial; the text says how it ended."""


def end_early(campaign: Campaign, why: str) -> bool:
    """No process can run any more: what was compared so far is what is known. False where that is nothing."""
    if not any(arm.own for arm in campaign.arms):
        return False
    campaign.why_ended = why
    for arm in campaign.arms:
        if arm.ended is None and not arm.left_out and not judge(campaign, arm).decided:
            arm.left_out = f"dropped: {why}"
    return True


def tune_candidates(campaign: Campaign, candidates: Sequence[Candidate], observed: Sequence[Measurement]) -> None:
    """Run everything that the budget allows. The campaign holds the outcome, also when this is interrupted."""
    campaign.arms = [Arm(candidate=one) for one in candidates]
    for arm in campaign.arms:
        if arm.candidate.why_not:
            arm.ended = _last_word(campaign, arm, TrialVerdict.REJECTED, arm.candidate.why_not)
    active = [arm for arm in campaign.arms if arm.ended is None]
    if not active:
        return
    # Several comparisons: each gets its part of the decision level (Boole again), more where more is forecast; that is
    # settled before any of them runs. A combination is tried only when its parts are proven and takes over the level of
    # one of them (a closed test, as in Bretz et al., Statistics in Medicine 28, 2009): two proven parts pay for
    # MOST_COMBINATIONS.
    campaign.level = statistics.DECISION_LEVEL / len(active)
    share_level(active)
    run_references(campaign, observed)
    begun_s = campaign.clock_s()
    until_s = campaign.budget.search_until_s
    singles_until_s = until_s if len(active) == 1 else begun_s + SINGLES_RATIO * (until_s - begun_s)
    first, later = _take_turns(campaign, active, singles_until_s)
    run_rounds(campaign, first, singles_until_s, others_wait=bool(later))
    leave_out_lesser(campaign, later)
    run_rounds(campaign, [arm for arm in later if not arm.left_out], singles_until_s)
    if not any(is_proven(campaign, arm) for arm in campaign.arms):
        go_on(campaign, until_s)  # nothing to combine
    for _ in range(MOST_COMBINATIONS):
        together = _next_combination(campaign)
        if together is None:
            break
        campaign.arms.append(together)
        campaign.emit(f"together: {together.candidate.id}")
        run_rounds(campaign, [together], until_s)


def share_level(arms: Sequence[Arm]) -> None:
    """Weights that add up to the number of arms: half equally, half by what is forecast."""
    whole = math.fsum(promise(arm.candidate) for arm in arms)
    for arm in arms if whole > 0 else ():
        arm.weight = EQUAL_LEVEL_RATIO + (1 - EQUAL_LEVEL_RATIO) * len(arms) * promise(arm.candidate) / whole


def leave_out_lesser(campaign: Campaign, arms: Sequence[Arm]) -> None:
    """Spend nothing on what a proven candidate excludes and is forecast to save less than that one surely does."""
    for arm in arms:
        forecast = arm.candidate.forecast
        for other in campaign.arms:
            if forecast is None or campaign.goal != goals.SPEED or not is_proven(campaign, other):
                continue
            low = judge(campaign, other).low_ratio or 1.0
            excludes = combine([other.candidate, arm.candidate], campaign.check) is None
            if excludes and forecast.high_ratio <= 1 - 1 / low:
                arm.left_out = (
                    f"dropped: it conflicts with {other.candidate.id}, which already gains more than the forecast of "
                    "this candidate"
                )


def run_references(campaign: Campaign, observed: Sequence[Measurement]) -> None:
    """The unchanged processes from which the bands are made, before any candidate runs."""
    for _ in range(BASELINE_PROCESSES):
        run_baseline(campaign)
        if repeats_bit_for_bit([one.losses for one in (*observed, *campaign.baseline)]):
            break
    campaign.guard = make_guard((*observed, *campaign.baseline), campaign.baseline)


def go_on(campaign: Campaign, until_s: float) -> None:
    """Spend what is left of the time on the open candidate that promises most."""
    arms = [arm for arm in campaign.arms if arm.ended is None and arm.own]
    open_arms = [arm for arm in arms if not judge(campaign, arm).decided]
    best = max(open_arms, key=lambda arm: ratio_of(campaign, arm), default=None)
    if best is not None:
        run_rounds(campaign, [best], until_s)


def _take_turns(campaign: Campaign, active: list[Arm], until_s: float) -> tuple[list[Arm], list[Arm]]:
    """Everything at once where the time is enough, else first what promises most; a rule of thumb after evidence.

    Not more go first than the time is enough for, so that the best one gets the pairs that it needs.
    """
    left_s = until_s - campaign.clock_s()
    if 1.5 * campaign.process_s * PAIRS_FOR_ALL * len(active) <= left_s:
        return active, []
    ranked = sorted(
        [arm for arm in active if rests_on_evidence(arm.candidate)] or active, key=lambda arm: urgency(arm.candidate)
    )
    best = ranked[0].candidate
    affordable = max(1, int(left_s / max(1.5 * campaign.process_s * statistics.LEAST_PAIRS, 1e-9)))
    first = [
        arm
        for arm in ranked
        if is_material(arm.candidate) >= is_material(best) and promise(arm.candidate) >= NEAR_BEST_RATIO * promise(best)
    ][:affordable]
    return first, [arm for arm in active if arm not in first]


def run_rounds(campaign: Campaign, active: list[Arm], until_s: float, *, others_wait: bool = False) -> None:
    """Pairs of processes, round by round, until every arm is decided, hopeless or the time is over."""
    for arm in active:
        arm.left_out, arm.is_out_of_time = "", False
    number = 0
    fresh = campaign.baseline[-1] if campaign.baseline and not any(arm.own for arm in campaign.arms) else None
    while active:
        arms = {arm.candidate.id: arm for arm in active}
        order, beside = schedule_round(tuple(arms), number)
        baselines: dict[int, Measurement] = {}
        own: dict[str, Measurement] = {}
        for place, name in enumerate(order):
            if name == BASELINE and fresh is not None:
                baselines[place], fresh = fresh, None  # it has just run: the first pair's other side
                continue
            if campaign.clock_s() + _needs_s(campaign, arms.get(name)) > until_s:
                _pair(active, baselines, own, beside)
                for arm in active:
                    arm.left_out, arm.is_out_of_time = BUDGET_USED_UP + _more_time(campaign, arm), True
                if until_s >= campaign.budget.search_until_s:
                    campaign.why_ended = BUDGET_USED_UP
                return
            if name == BASELINE:
                baselines[place] = run_baseline(campaign)
            elif arms[name].ended is None:
                measured = run_candidate(campaign, arms[name])
                if measured is not None:
                    own[name] = measured
        _pair(active, baselines, own, beside)
        number += 1
        active = _after_round(campaign, active, until_s, others_wait)


def _needs_s(campaign: Campaign, arm: Arm | None) -> float:
    """Time that the next process of an arm (None: of the baseline) may take."""
    return campaign.process_s if arm is None or arm.process_s is None else arm.process_s


def _pair_s(campaign: Campaign, arm: Arm, *, shared: bool = False) -> float:
    """How long a pair of an arm takes; ``shared``: half of the baseline's process, which serves two candidates."""
    return _needs_s(campaign, arm) + campaign.process_s * (0.5 if shared else 1.0)


def _pairs_left(campaign: Campaign, arm: Arm) -> int | None:
    """Pairs until a difference as large as it seems would show; None where that cannot be foreseen."""
    comparison = compare_arm(campaign, arm, campaign.goal)
    needed = statistics.pairs_to_decide(comparison, level=_level(campaign, arm))
    return None if needed is None else needed - comparison.n


def _why_hopeless(campaign: Campaign, arm: Arm, until_s: float) -> str:
    """Why more pairs would show nothing within the time; empty where they may."""
    left = _pairs_left(campaign, arm)
    if left is None:
        return "dropped: the difference is too small compared with the noise"
    if campaign.clock_s() + left * _pair_s(campaign, arm) <= until_s:
        return ""
    return f"dropped: the budget is not enough{_more_time(campaign, arm)}"


def _can_be_decided(campaign: Campaign, arm: Arm, until_s: float) -> bool:
    """Whether the time is enough for the fewest pairs that a verdict needs."""
    missing = max(0, statistics.LEAST_PAIRS - len(arm.own))
    return campaign.clock_s() + missing * _pair_s(campaign, arm) <= until_s


def _leaves_time(campaign: Campaign, until_s: float) -> bool:
    """Whether a candidate that waits, as quick as the baseline, could still have the pairs that a verdict needs."""
    return campaign.clock_s() + 2 * statistics.LEAST_PAIRS * campaign.process_s <= until_s


def _more_time(campaign: Campaign, arm: Arm) -> str:
    """How to prove a difference as large as it seems, in words; empty where that is unknown."""
    left = _pairs_left(campaign, arm)
    if left is None:
        return ""
    minutes = math.ceil(left * _pair_s(campaign, arm) / 60)
    return f"; {left} more pairs (about {minutes} min) would prove the difference if it is as large as measured so far"


def _after_round(campaign: Campaign, active: list[Arm], until_s: float, others_wait: bool) -> list[Arm]:
    """The arms that continue: those not decided, and only as many as there is time for."""
    going = []
    for arm in active:
        if arm.ended is not None:
            continue
        verdict = judge(campaign, arm)
        campaign.emit(f"{arm.candidate.id}: {verdict.verdict.value}, {verdict.reason}")
        if not verdict.decided:
            going.append(arm)
    has_others = others_wait or len(going) > 1
    for arm in going:
        if len(arm.own) >= (statistics.LEAST_PAIRS if has_others else PAIRS_WHEN_ALONE):
            arm.left_out = _why_hopeless(campaign, arm, until_s)
        elif others_wait and not _can_be_decided(campaign, arm, until_s) and _leaves_time(campaign, until_s):
            arm.left_out = (
                f"dropped: each process takes {_needs_s(campaign, arm):.0f} s, and other candidates are waiting"
            )
    going = [arm for arm in going if not arm.left_out]
    pairs = min((len(arm.own) for arm in going), default=0)
    if pairs in HALVING_ROUNDS and len(going) > 1:
        wanted = max(4, (statistics.next_look(pairs) or pairs + 1) - pairs)
        ratios = {arm.candidate.id: _hope(campaign, arm) for arm in going}
        costs_s = {arm.candidate.id: wanted * _pair_s(campaign, arm, shared=True) for arm in going}
        kept = {*keep_affordable(ratios, costs_s, until_s - campaign.clock_s())}
        # One pair of processes may have met a burst of load: what a measurement or a simulation promises gets a second.
        kept |= {arm.candidate.id for arm in going if len(arm.own) == 1 and rests_on_evidence(arm.candidate)}
        # What the report promises most has the pairs that a verdict needs before anything lesser has more.
        best = min(going, key=lambda arm: urgency(arm.candidate))
        if pairs < statistics.LEAST_PAIRS and _can_be_decided(campaign, best, until_s):
            kept.add(best.candidate.id)
        for arm in going:
            if arm.candidate.id not in kept:
                arm.left_out = "dropped: others had better forecasts and the budget ran out"
        going = [arm for arm in going if arm.candidate.id in kept]
    return going


def _pair(
    active: Sequence[Arm], baselines: dict[int, Measurement], own: dict[str, Measurement], beside: dict[str, int]
) -> None:
    for arm in active:
        measured, base = own.get(arm.candidate.id), baselines.get(beside[arm.candidate.id])
        if measured is not None and base is not None:
            arm.baseline.append(base)
            arm.own.append(measured)


def end_arm(campaign: Campaign, arm: Arm, verdict: TrialVerdict, reason: str) -> None:
    """Nothing more is run of it; this is its last word."""
    arm.ended = _last_word(campaign, arm, verdict, reason)
    campaign.emit(f"{arm.candidate.id}: {verdict.value}, {reason}")


def run_baseline(campaign: Campaign) -> Measurement:
    """One more process of the unchanged command. Raises BaselineFailed."""
    measured = run_unchanged(campaign).measured
    assert measured is not None
    return measured


def run_unchanged(campaign: Campaign) -> Ran:
    """As ``run_baseline``, with how it ended."""
    ran, took_s = _run(campaign, Strategy(), campaign.baseline_count)
    campaign.process_s = max(took_s, DECAY_RATIO * campaign.process_s) if campaign.baseline else took_s
    campaign.baseline_count += 1
    if ran.measured is None:
        raise BaselineFailed(f"the unchanged command failed in a trial: {ran.ended}, {ran.reason}")
    campaign.baseline.append(ran.measured)
    return ran


def run_candidate(campaign: Campaign, arm: Arm) -> Measurement | None:
    """One process of a candidate; None when that was its last word."""
    ran, took_s = _run(campaign, arm.candidate.strategy, arm.run_count)
    arm.process_s = max(took_s, DECAY_RATIO * (arm.process_s or 0.0))
    arm.run_count += 1
    if ran.measured is None:
        end_arm(campaign, arm, TrialVerdict.FAILED, f"{ran.ended}: {ran.reason}")
        return None
    overriding = override_explicit(arm.candidate, ran.measured.applied)
    if overriding is not None:
        settings = ", ".join(_list_explicit(ran.measured, arm.candidate))
        campaign.emit(
            f"{arm.candidate.id}: trying to override {settings}, which the script sets and a rule found to cost time"
        )
        arm.candidate = overriding
        return run_candidate(campaign, arm)
    unapplied = _describe_unapplied(arm.candidate, ran.measured)
    if unapplied:
        end_arm(campaign, arm, TrialVerdict.REJECTED, unapplied)
        return None
    arm.guarded = judge_numbers(campaign, ran.measured, numerics_of(arm.candidate, [ran.measured]))
    if arm.guarded.quality.status == "rejected":
        arm.rejected = ran.measured
        end_arm(campaign, arm, TrialVerdict.REJECTED, arm.guarded.quality.reason)
        return None
    return ran.measured


def _run(campaign: Campaign, strategy: Strategy, number: int) -> tuple[Ran, float]:
    """The process, and how many seconds it took."""
    begun_s = campaign.clock_s()
    ran = campaign.run(strategy, number)
    return ran, max(campaign.clock_s() - begun_s, ran.duration_s)


def _describe_unapplied(candidate: Candidate, measured: Measurement) -> str:
    """Why a technique of the strategy changed nothing; empty when all did something."""
    choices = candidate.strategy.choices
    for choice in choices:
        records = [record for record in measured.applied if record.technique == choice.technique]
        if any(record.is_applied for record in records):
            continue
        status, detail = next(
            ((record.status, record.detail) for record in records), ("", "it found nothing to change")
        )
        parts = ("" if len(choices) == 1 else choice.technique, status, detail)
        return ": ".join(part for part in parts if part)
    return ""


def _list_explicit(measured: Measurement, candidate: Candidate) -> tuple[str, ...]:
    """The script's own settings that were in the way of a candidate or overridden by it, with file and line."""
    found = []
    techniques = {choice.technique for choice in candidate.strategy.choices}
    for one in measured.applied:
        if one.explicit and one.technique in techniques:
            place = "" if one.where is None else f" at {PurePath(one.where.file).name}:{one.where.line}"
            found.append(one.explicit + place)
    return tuple(dict.fromkeys(found))


def numerics_of(candidate: Candidate, measured: Sequence[Measurement]) -> Numerics:
    """The class of what was really applied in processes of a candidate."""
    applied = [one.numerics for process in measured for one in process.applied if one.is_applied]
    return widest_numerics(applied, candidate.numerics)


def judge_numbers(campaign: Campaign, measured: Measurement, numerics: Numerics) -> Guarded:
    """Losses and gradient norms of a process against the bands of the campaign."""
    assert campaign.guard is not None
    return judge_measured(campaign.guard, measured, numerics)


def _next_combination(campaign: Campaign) -> Arm | None:
    """Everything that was proven alone; and when that is no better than its best part, without its weakest part."""
    proven = sorted(
        (
            arm
            for arm in campaign.arms
            # What each start pays once is compared over other steps than the rest.
            if len(arm.candidate.strategy.choices) == 1 and not arm.candidate.is_one_time and is_proven(campaign, arm)
        ),
        key=lambda arm: -ratio_of(campaign, arm),
    )
    combined = [arm for arm in campaign.arms if len(arm.candidate.strategy.choices) > 1]
    if combined:
        if any(ratio_of(campaign, arm) >= ratio_of(campaign, proven[0]) for arm in combined):
            return None
        proven = proven[:-1]
    found = combine([arm.candidate for arm in proven], campaign.check)
    if found is None or any(found.id == arm.candidate.id for arm in combined):
        return None
    return Arm(candidate=found, weight=math.fsum(arm.weight for arm in proven) / len(proven))


# -- what is known -----------------------------------------------------------------------------------------------------


def judge(campaign: Campaign, arm: Arm) -> statistics.PairComparison:
    """The comparison of an arm's pairs by the campaign's goal."""
    found = compare_arm(campaign, arm, campaign.goal)
    if arm.candidate.is_one_time and found.decided and found.verdict is TrialVerdict.FASTER:
        # A start that is quicker for sure is worth nothing to a long training whose other steps are slower for it.
        return replace(found, decided=not is_steady_doubtful(campaign, arm) or compare_steady(campaign, arm).decided)
    return found


def _level(campaign: Campaign, arm: Arm) -> float:
    """Error level of one comparison."""
    return campaign.level * arm.weight


def compare_arm(campaign: Campaign, arm: Arm, goal: str) -> statistics.PairComparison:
    """The comparison of an arm's pairs by speed or memory."""
    level, memory = _level(campaign, arm), goal == goals.MEMORY
    is_one_time = arm.candidate.is_one_time
    return judge_pairs(campaign, arm.baseline, arm.own, level, memory=memory, is_one_time=is_one_time)


def compare_steady(campaign: Campaign, arm: Arm) -> statistics.PairComparison:
    """The comparison of an arm's steady steps, also where all of its steps decide."""
    return judge_pairs(campaign, arm.baseline, arm.own, _level(campaign, arm), memory=False)


def judge_pairs(
    campaign: Campaign,
    baseline: Sequence[Measurement],
    own: Sequence[Measurement],
    level: float,
    *,
    memory: bool,
    is_one_time: bool = False,
) -> statistics.PairComparison:
    """The comparison of processes that ran one right after the other, by peak memory or by time: that of all their
    steps for what is paid once per start."""
    if memory:
        return goals.compare_memory(baseline, own, campaign.baseline, level=level)
    if is_one_time:
        return goals.compare_whole_runs(baseline, own, campaign.baseline, level=level)
    return goals.compare_speed(baseline, own, campaign.baseline, level=level)


def ratio_of(campaign: Campaign, arm: Arm) -> float:
    """The ratio by the goal so far; 0 without a pair."""
    return judge(campaign, arm).speedup_ratio or 0.0


def _hope(campaign: Campaign, arm: Arm) -> float:
    """The criterion for continuing when time is short: for speed, the median of the pairs' ratios, and the forecast's
    together with them where that rests on evidence, so that one disturbed pair decides nothing.
    """
    if campaign.goal != goals.SPEED or not arm.own:
        return ratio_of(campaign, arm)
    pairs = zip(arm.baseline, arm.own, strict=True)
    ratios = [time_of(arm, base) / time_of(arm, own) for base, own in pairs]
    if rests_on_evidence(arm.candidate) and arm.candidate.forecast is not None:
        ratios.append(1 / max(1e-3, 1 - arm.candidate.forecast.mid_ratio))
    return median(ratios)


def unit_of(arm: Arm) -> str:
    """The unit in which both sides of an arm are counted."""
    return pick_unit([*arm.baseline, *arm.own]) if arm.own and not arm.candidate.is_one_time else "step"


def time_of(arm: Arm, one: Measurement) -> float:
    """The time that an arm's pairs compare, in ns: a process's mean time per unit of work, or that of all its steps."""
    return goals.whole_time(one) if arm.candidate.is_one_time else time_per_unit(one, unit_of(arm))


def is_steady_doubtful(campaign: Campaign, arm: Arm) -> bool:
    """Whether the steady steps of a candidate that makes the start quicker look slower than the baseline's."""
    ratio = compare_steady(campaign, arm).speedup_ratio
    return ratio is None or ratio < goals.NO_WORSE_RATIO


def is_proven(campaign: Campaign, arm: Arm) -> bool:
    """Better by the goal, and its numbers are as they should be: what may go into the strategy file."""
    if arm.ended is not None or not arm.own:
        return False
    return judge(campaign, arm).verdict is TrialVerdict.FASTER and not why_not_adopted(campaign, arm)


def why_not_adopted(campaign: Campaign, arm: Arm) -> str:
    """Why a faster candidate stays out of the strategy file; empty when it does not."""
    if arm.candidate.is_one_time and arm.own and is_steady_doubtful(campaign, arm):
        return "not adopted: its steady steps may be slower than the baseline's"
    if arm.quality is None or arm.quality.status == "passed":
        return ""
    if arm.quality.status == "rejected":
        return arm.quality.reason
    numerics = numerics_of(arm.candidate, arm.own)
    if numerics.value in ("exact", "reordered"):
        return ""
    return f"not adopted: its numerics are {numerics.value}, and the loss cannot be checked ({arm.quality.reason})"


def best_arm(campaign: Campaign) -> Arm | None:
    """The proven arm with the largest ratio.

    A saving in every step goes before a saving once per start: the ratios are of different steps.
    """
    proven = [arm for arm in campaign.arms if is_proven(campaign, arm)]
    return max(
        proven,
        key=lambda arm: (not arm.candidate.is_one_time, ratio_of(campaign, arm)),
        default=None,
    )


def describe_trials(campaign: Campaign) -> tuple[Trial, ...]:
    """Every arm as a Trial, with what is known now."""
    return tuple(arm.ended if arm.ended is not None else _describe_arm(campaign, arm) for arm in campaign.arms)


def _describe_arm(campaign: Campaign, arm: Arm) -> Trial:
    found = judge(campaign, arm)
    found_text = f"peak memory: {found.reason}" if campaign.goal == goals.MEMORY else found.reason
    if arm.left_out and not arm.own:
        found_text = f"not measured, {arm.left_out}"
    is_open = not found.decided and found.verdict is TrialVerdict.CANNOT_TELL
    left_out = arm.left_out if arm.own and is_open else ""
    reasons = [found_text, left_out, describe_start(campaign, arm), why_not_adopted(campaign, arm), _batch_note(arm)]
    verdict = goals.word_verdict(campaign.goal, found.verdict)
    return _last_word(campaign, arm, verdict, "; ".join(reason for reason in reasons if reason), found)


def describe_start(campaign: Campaign, arm: Arm) -> str:
    """How much of the start a candidate for it saves, and its effect on steady steps; empty for all others."""
    if not arm.candidate.is_one_time or not arm.own or any(one.whole_ns is None for one in (*arm.baseline, *arm.own)):
        return ""
    saved_ns = math.fsum(goals.whole_time(one) for one in arm.baseline) - math.fsum(map(goals.whole_time, arm.own))
    steady = compare_steady(campaign, arm)
    bounds = "" if steady.low_ratio is None else f" ({steady.low_ratio:.2f}–{steady.high_ratio:.2f})"
    what = f"{abs(saved_ns) / len(arm.own) * 1e-9:.2f} s {'less' if saved_ns >= 0 else 'more'}"
    ratio = "" if steady.speedup_ratio is None else f"; steady steps: {steady.speedup_ratio:.2f}x{bounds}"
    return f"the first {arm.own[0].whole_count} steps take {what}, once per start{ratio}"


def _batch_note(arm: Arm) -> str:
    """The consequence of a changed batch for the training: reported, never applied silently."""
    before = [one.samples_per_step for one in arm.baseline if one.samples_per_step]
    after = [one.samples_per_step for one in arm.own if one.samples_per_step]
    if not before or not after or abs(after[0] / before[0] - 1) < 0.02:
        return ""
    return f"a step has {after[0]:g} samples instead of {before[0]:g}: adjust the learning rate and the number of steps"


def _last_word(
    campaign: Campaign, arm: Arm, verdict: TrialVerdict, reason: str, found: statistics.PairComparison | None = None
) -> Trial:
    one_time_ns = _one_time_ns(arm)
    speed = None if found is None else compare_arm(campaign, arm, goals.SPEED)
    memory = compare_arm(campaign, arm, goals.MEMORY) if found is not None and arm.own else None
    ran = arm.own if arm.rejected is None else [*arm.own, arm.rejected]
    return Trial(
        id=arm.candidate.id,
        techniques=tuple(choice.technique for choice in arm.candidate.strategy.choices),
        settings={choice.technique: dict(choice.settings) for choice in arm.candidate.strategy.choices},
        verdict=verdict,
        reason=reason,
        n=len(arm.own) if found is None else found.n,
        unit=unit_of(arm),
        speedup_ratio=_rejected_ratio(campaign, arm) if speed is None else speed.speedup_ratio,
        low_ratio=None if speed is None else speed.low_ratio,
        high_ratio=None if speed is None else speed.high_ratio,
        memory_ratio=_memory_ratio(arm),
        forecast=forecast_of(arm.candidate.forecast),
        quality={} if arm.guarded is None else arm.guarded.summary,
        breakdown=_mean_breakdown(arm.own),
        one_time_ns=one_time_ns,
        break_even_steps=None
        if one_time_ns is None
        else statistics.break_even_steps(one_time_ns, _mean_step(arm.baseline), _mean_step(arm.own)),
        memory={} if memory is None else goals.peaks_to_mapping(memory),
        measured=goals.describe_measured(ran),
        overrides=_list_explicit(ran[-1], arm.candidate) if ran else (),
        first_steps=arm.own[0].whole_count if arm.candidate.is_one_time and arm.own else None,
    )


def _rejected_ratio(campaign: Campaign, arm: Arm) -> float | None:
    """How fast the process with the rejected numbers was, relative to the baseline's: a hint, without an interval."""
    if arm.rejected is None or not campaign.baseline:
        return None
    unit = pick_unit([*campaign.baseline, arm.rejected])
    return median(time_per_unit(one, unit) for one in campaign.baseline) / time_per_unit(arm.rejected, unit)


def describe_reference(campaign: Campaign, name: str) -> Trial | None:
    """The reference for everything, with the measurements of all its processes."""
    if not campaign.baseline:
        return None
    return Trial(
        id=name,
        techniques=(),
        settings={},
        verdict=TrialVerdict.CANNOT_TELL,
        reason="reference for all others",
        n=0,
        unit=pick_unit(campaign.baseline),
        breakdown=_mean_breakdown(campaign.baseline),
        measured=goals.describe_measured(campaign.baseline),
    )


def _one_time_ns(arm: Arm) -> int | None:
    """The time of the candidate's slowest start (with cold caches) beyond the baseline's usual one."""
    own = [one.one_time_ns for one in arm.own if one.one_time_ns is not None]
    base = sorted(one.one_time_ns for one in arm.baseline if one.one_time_ns is not None)
    if not own or not base:
        return None
    return max(0, max(own) - base[len(base) // 2])


def _mean_step(measured: Sequence[Measurement]) -> float:
    return math.fsum(one.step_ns for one in measured) / len(measured)


def _memory_ratio(arm: Arm) -> float | None:
    own = [one.peak_bytes for one in arm.own if one.peak_bytes]
    base = [one.peak_bytes for one in arm.baseline if one.peak_bytes]
    if not own or len(own) != len(base):
        return None
    return (sum(own) / len(own)) / (sum(base) / len(base))


def _mean_breakdown(measured: Sequence[Measurement]) -> dict[str, float]:
    if not measured:
        return {}
    names = measured[0].breakdown
    return {name: math.fsum(one.breakdown.get(name, 0.0) for one in measured) / len(measured) for name in names}


def strategy_key(strategy: Strategy) -> str:
    """The same for equal choices, whatever the name."""
    return hashlib.sha256(strategy_to_toml(Strategy(choices=strategy.choices)).encode()).hexdigest()[:16]
