"""Pairs of processes and a goal -> a comparison of time or memory.

Both are judged by the same statistics: a pair's log ratio, an interval that holds at every look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hotloop.core.findings import Value
from hotloop.core.measurement import Measurement
from hotloop.core.tuning import TrialVerdict

from . import statistics
from .trials import pick_unit, time_per_unit

SPEED, MEMORY = "speed", "memory"
MOST_UNEQUAL_RATIO = 1.02
"""Sides whose samples per step differ by at most this do equal work per step."""
NO_WORSE_RATIO = 1.0 - statistics.SAME_WITHIN_RATIO
"""A ratio whose lower bound is at least this counts as no loss."""

CROWDING = "the CPU use of other programs"
PACE = "machine speed (reference workload between steps)"


def compare_speed(
    baseline: Sequence[Measurement],
    own: Sequence[Measurement],
    all_baseline: Sequence[Measurement],
    *,
    level: float,
) -> statistics.PairComparison:
    """Time per unit of work of both sides."""
    unit = pick_unit([*baseline, *own]) if own else "step"
    # The pace is measured with all compute threads: it counts only where every process has as many.
    has_pace = len({one.threads_count for one in (*baseline, *own, *all_baseline)}) == 1
    ways = (_CROWDING, _PACE) if has_pace else (_CROWDING,)
    time_of = partial(time_per_unit, unit=unit)
    found = _compare(baseline, own, all_baseline, time_of, ways, level=level)
    if unit != "step" and any(one.work_drifts for one in (*baseline, *own)):
        # Part of a step's time does not grow with its work: other steps have another time per unit, whatever the code.
        why = f"the number of {unit}s per step drifts during the run, and the two sides measured different steps"
        return replace(
            found, verdict=TrialVerdict.CANNOT_TELL, reason=why, low_ratio=None, high_ratio=None, decided=True
        )
    return found


def compare_whole_runs(
    baseline: Sequence[Measurement],
    own: Sequence[Measurement],
    all_baseline: Sequence[Measurement],
    *,
    level: float,
) -> statistics.PairComparison:
    """Time of both sides from the first step on, warm-up included.

    Every process trains the same number of steps: a cost that each start pays once is compared over these.
    """
    processes = (*baseline, *own, *all_baseline)
    samples = [one.samples_per_step for one in (*baseline, *own) if one.samples_per_step]
    why = ""
    if any(one.whole_ns is None for one in processes):
        why = "the time of full runs is unknown"
    elif len({one.whole_count for one in processes}) > 1:
        why = "the processes ran different numbers of steps, so their total times cannot be compared"
    elif samples and max(samples) > MOST_UNEQUAL_RATIO * min(samples):
        why = "a step has different numbers of samples on the two sides, so their total times cannot be compared"
    if why:
        return replace(statistics.compare([], [], level=level), reason=why, decided=True)
    return _compare(baseline, own, all_baseline, whole_time, (_WHOLE_CROWDING,), level=level)


def whole_time(one: Measurement) -> float:
    """ns of all its steps. Raises ValueError where that is not known."""
    if one.whole_ns is None:
        raise ValueError("the time of the full run is unknown")
    return float(one.whole_ns)


def _compare(
    baseline: Sequence[Measurement],
    own: Sequence[Measurement],
    all_baseline: Sequence[Measurement],
    value_of: Callable[[Measurement], float],
    ways: Sequence[tuple[str, Callable[[Measurement], float | None]]] = (),
    *,
    level: float,
) -> statistics.PairComparison:
    """Pairs by a value of each process, at equal values of those ``ways`` to see the machine that all of them know."""
    covariates = []
    for words, seen_of in ways:
        values = {id(one): seen_of(one) for one in (*baseline, *own, *all_baseline)}
        known = {key: value for key, value in values.items() if value is not None}
        if len(known) == len(values):
            covariates.append(
                statistics.Covariate(
                    baseline=[known[id(one)] for one in baseline],
                    candidate=[known[id(one)] for one in own],
                    every=[(value_of(one), known[id(one)]) for one in all_baseline],
                    words=words,
                )
            )
    return statistics.compare(
        [value_of(one) for one in baseline],
        [value_of(one) for one in own],
        level=level,
        noise=statistics.noise_of([value_of(one) for one in all_baseline]),
        covariates=covariates,
    )


def _crowding_of(one: Measurement) -> float | None:
    return None if one.others_ratio is None else statistics.crowding(one.others_ratio)


def _pace_of(one: Measurement) -> float | None:
    return None if one.pace_ns is None else math.log(one.pace_ns)


def _whole_crowding_of(one: Measurement) -> float | None:
    return None if one.whole_others_ratio is None else statistics.crowding(one.whole_others_ratio)


_CROWDING, _PACE, _WHOLE_CROWDING = (CROWDING, _crowding_of), (PACE, _pace_of), (CROWDING, _whole_crowding_of)


def compare_memory(
    baseline: Sequence[Measurement],
    own: Sequence[Measurement],
    all_baseline: Sequence[Measurement],
    *,
    level: float,
) -> statistics.PairComparison:
    """Peak memory of the rank that needs most, the baseline's over the candidate's. Unseen peaks do not count."""
    known = [(a, b) for a, b in zip(baseline, own, strict=True) if peak_of(a) and peak_of(b)]
    processes = [one for one in all_baseline if peak_of(one)]
    found = _compare([a for a, _ in known], [b for _, b in known], processes, peak_of, level=level)
    if own and not known:
        return replace(found, reason="peak memory is unknown", decided=True)
    return found


def peak_of(one: Measurement) -> float:
    """Peak bytes of a process's largest rank; 0 where that was not seen."""
    return float(one.rank_peak_bytes or one.peak_bytes or 0)


def word_verdict(goal: str, verdict: TrialVerdict) -> TrialVerdict:
    """``faster`` and ``slower`` in the words of the goal."""
    if goal != MEMORY:
        return verdict
    return {TrialVerdict.FASTER: TrialVerdict.SMALLER, TrialVerdict.SLOWER: TrialVerdict.LARGER}.get(verdict, verdict)


# -- what was measured -------------------------------------------------------------------------------------------------


def describe_measured(own: Sequence[Measurement]) -> dict[str, Value]:
    """Means over an arm's processes; None where a process did not count the unit."""
    if not own:
        return {}
    step_ns = _mean([one.step_ns for one in own])
    assert step_ns is not None
    samples = _mean([one.samples_per_step for one in own])
    tokens = _mean([one.tokens_per_step for one in own])
    ranks = _mean([one.rank_count for one in own])
    return {
        "process_count": len(own),
        "rank_count": None if ranks is None else round(ranks),
        "step_ns": step_ns,
        "steps_per_s": 1e9 / step_ns,
        "samples_per_s": None if samples is None else samples * 1e9 / step_ns,
        "tokens_per_s": None if tokens is None else tokens * 1e9 / step_ns,
        "samples_per_step": samples,
        "rank_peak_bytes": _mean([one.rank_peak_bytes for one in own]),
        "peak_bytes": _mean([one.peak_bytes for one in own]),
    }


def peaks_to_mapping(found: statistics.PairComparison) -> dict[str, Value]:
    """A comparison of peaks in the report's form, next to the trial's own."""
    return {
        "verdict": word_verdict(MEMORY, found.verdict).value,
        "reason": found.reason,
        "n": found.n,
        "saving_ratio": found.speedup_ratio,
        "low_ratio": found.low_ratio,
        "high_ratio": found.high_ratio,
    }


def _mean(values: Sequence[float | int | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None
