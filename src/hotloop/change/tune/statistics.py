"""Process means of two arms -> a ratio with an interval that holds at every look, and a verdict.

The unit of analysis is the process: its mean time per unit of work over its steady steps. What happens inside one
process (allocator, page placement, other programs on the machine) is shared by all of its steps, so that its steps say
little about the next process. Processes run in pairs, one of each arm, in the order AB BA AB BA: a drift of the
machine that is slow against a pair cancels. The statistic is the mean of the pairs' log ratios.

The interval at look k is mean +- t(n-1, level_k) * s / sqrt(n). The levels of all looks add up to the decision level,
so by Boole's inequality P(any of the looks errs) <= the sum of P(look k errs), whatever the dependence between looks;
this is the simplest of the alpha-spending rules (Lan and DeMets, Biometrika 70, 1983) and needs no joint
distribution. Under the null hypothesis the two members of a pair are exchangeable, so a pair's log ratio is symmetric
around 0; with heavier tails than the normal Student's t errs less often at such small levels, not more (Benjamini,
JASA 78, 1983). tests/tune/test_statistics.py shows it on drifting, bursting, heavy-tailed process means.

How slow the machine was while a process measured is partly known (``Covariate``), and does not depend on the arm. What
other programs used of the cores explains most of the spread where these are full: a process that wants a core gets what
others leave, so that its time grows as 1 / (1 - what they use). A fixed piece of work between the steps slows down with
the training for reasons that no counter shows. Where one of them makes the spread clearly smaller, pairs are compared
at equal values of it: an analysis of covariance (Fisher) with one slope for both arms, fitted within the arms, whose
own error widens the interval and costs a degree of freedom. It is not done where its values differ between the arms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.core.noise import student_quantile
from hotloop.core.tuning import TrialVerdict

DECISION_LEVEL = 0.01
"""Two-sided probability of a wrong ``faster`` or ``slower`` over all looks of one comparison."""
LOOKS = ((4, 0.25), (6, 0.25), (8, 0.15), (12, 0.15), (16, 0.10), (24, 0.10))
"""Pairs at which the data are looked at, and the share of the decision level that is spent there: most of it early,
where few degrees of freedom need it and where a budget of minutes ends."""
LEAST_FOR_NOISE = 4
"""Baseline processes from which the machine's noise can be estimated."""
LEVELLED_RATIO = 0.8
"""Pairs are compared at equal values of a covariate where that makes their spread at most this of what it was."""
LEAST_COVARIATE_SPREAD = 0.03
"""Where a covariate varied by less, it is not what the times vary by."""
MOST_SLOPE = 2.0
"""Work that gets what others leave has a slope of 1; caches and memory that are shared too add to it."""
LEVELLED_LEVEL_RATIO = 0.5
"""Share of the level at which levelled pairs are judged, by all covariates together: the rest pays for having had more
than one way to look at them."""
MOST_CROWDED_RATIO = 0.95
MOST_SHIFT_ERRORS = 2.5
"""Standard errors by which a covariate's means in the two arms may differ and still be an accident."""
SAME_SPREAD_RATIO = 1.5
"""Pairs that spread at most this much more than the baseline's processes do are taken for equally noisy."""
LEAST_PAIRS = LOOKS[0][0]
MOST_PAIRS = LOOKS[-1][0]
SMALLEST_EFFECT_RATIO = 0.01
"""A smaller difference is nothing to recommend a change for: two builds of one program differ by as much."""
SAME_WITHIN_RATIO = 0.02
"""An interval whose upper end is below 1 + this ends the comparison: whatever the gain is, it does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How far pairs of equal processes differ here, estimated from all baseline processes.

    ``spread_ratio`` is the standard deviation of a pair's log ratio, ``freedom`` its degrees of freedom.
    """

    spread_ratio: float
    freedom: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Covariate:
    """How slow the machine was during each process of a comparison, in the order of its process means, as a logarithm.

    ``every`` holds time per unit and value of all processes of the baseline so far, those of the pairs included.
    ``words`` end a sentence that begins with 'corrected for changes in'.
    """

    baseline: Sequence[float]
    candidate: Sequence[float]
    every: Sequence[tuple[float, float]]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairComparison:
    """Candidate against baseline. Ratios are speedups: the baseline's time per unit over the candidate's.

    ``low_ratio`` and ``high_ratio`` bound it at the decision level, whenever one looks; None before the first look.
    ``noise_ratio`` is the spread of a single pair's ratio (a standard deviation of its logarithm).
    """

    verdict: TrialVerdict
    reason: str
    n: int
    speedup_ratio: float | None
    low_ratio: float | None = None
    high_ratio: float | None = None
    noise_ratio: float | None = None
    decided: bool = False
    """No further pair is needed."""
    noise_freedom: int = 0
    """Degrees of freedom of what the baseline's processes say of the noise."""


def compare(
    baseline: Sequence[float],
    candidate: Sequence[float],
    *,
    level: float = DECISION_LEVEL,
    noise: Noise | None = None,
    covariates: Sequence[Covariate] = (),
) -> PairComparison:
    """Judge pairs of process means (times per unit; entry i of both ran one right after the other).

    Four pairs that happen to agree prove no silence, and alone they decide next to nothing (t of 3 degrees of freedom).
    With ``noise`` the spread is never taken for less than that, and its degrees of freedom count too, unless the pairs
    spread by more than SAME_SPREAD_RATIO of it: then they are noisier than the baseline, and their own spread counts.

    >>> compare([10.0, 10.1, 9.9, 10.0], [5.0, 5.0, 5.1, 4.9]).verdict.value
    'faster'
    >>> compare([10.0], [5.0]).reason
    '1 of at least 4 pairs'
    """
    if len(baseline) != len(candidate):
        raise ValueError(f"pairs need two sides: {len(baseline)} and {len(candidate)} process means")
    if not all(math.isfinite(x) and x > 0 for x in (*baseline, *candidate)):
        raise ValueError("a time per unit must be finite and positive")
    logs = [math.log(a / b) for a, b in zip(baseline, candidate, strict=True)]
    n = len(logs)
    ratio = math.exp(math.fsum(logs) / n) if n else None
    look = latest_look(n)
    if look is None:
        reason = f"{n} of at least {LEAST_PAIRS} pairs"
        return PairComparison(verdict=TrialVerdict.CANNOT_TELL, reason=reason, n=n, speedup_ratio=ratio)
    # Fitted to the pairs of the look: between two looks nothing new is known.
    levelled = [level_pairs(baseline[:look], candidate[:look], covariate) for covariate in covariates]
    found = _interval(logs, level, noise, levelled)
    ratio, low, high = (math.exp(one) for one in (found.middle, found.low, found.high))
    reason = f"{ratio:.3f}x, {low:.3f}–{high:.3f}, n = {n} pairs of processes with a noise of {found.spread:.1%}"
    if found.levelled is not None:
        reason += f", corrected for changes in {found.levelled.words}"
    effect = math.log1p(SMALLEST_EFFECT_RATIO)
    verdict, decided = TrialVerdict.CANNOT_TELL, n >= MOST_PAIRS
    if found.all_low > 0 and found.middle >= effect:
        verdict, decided = TrialVerdict.FASTER, True
    elif found.all_high < 0 and found.middle <= -effect:
        verdict, decided = TrialVerdict.SLOWER, True
    elif high < 1 + SAME_WITHIN_RATIO:
        what = "a difference" if low > 1 - SAME_WITHIN_RATIO else "any gain"
        reason, decided = f"{what} is below {SAME_WITHIN_RATIO:.0%} ({reason})", True
    return PairComparison(
        verdict=verdict,
        reason=reason,
        n=n,
        speedup_ratio=ratio,
        low_ratio=low,
        high_ratio=high,
        noise_ratio=found.spread,
        decided=decided,
        noise_freedom=0 if noise is None else noise.freedom,
    )


def latest_look(n: int) -> int | None:
    """How many of ``n`` pairs the latest look covers; None before the first."""
    return max((pairs for pairs, _ in LOOKS if pairs <= n), default=None)


def next_look(n: int) -> int | None:
    """Pairs that the next look needs; None after the last."""
    return min((pairs for pairs, _ in LOOKS if pairs > n), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Levelled:
    """Pairs at equal values of a covariate: what is left of each log ratio, and how sure the slope is.

    ``shifts`` is by how much each pair's two sides differed in it; ``slope_error`` is the slope's standard error for a
    spread of 1.
    """

    logs: tuple[float, ...]
    shifts: tuple[float, ...]
    slope_error: float
    noise: Noise
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interval:
    """Bounds of the latest look; ``all_low`` and ``all_high`` bound the intersection of all looks' intervals so far."""

    low: float
    high: float
    middle: float
    spread: float
    all_low: float
    all_high: float
    levelled: Levelled | None


def crowding(others_ratio: float) -> float:
    """The logarithm of how much longer work takes that gets only what others leave of the cores."""
    return -math.log(1.0 - min(max(others_ratio, 0.0), MOST_CROWDED_RATIO))


def level_pairs(baseline: Sequence[float], candidate: Sequence[float], covariate: Covariate) -> Levelled | None:
    """The pairs at equal values; None where they hardly varied, explain nothing, or differ between the arms."""
    n, every = len(baseline), covariate.every
    if n < LEAST_PAIRS or len(every) < LEAST_FOR_NOISE:
        return None
    x_a, x_b = covariate.baseline[:n], covariate.candidate[:n]
    groups = (
        ([value for _, value in every], [math.log(time) for time, _ in every]),
        (x_b, [math.log(time) for time in candidate]),
    )
    square = product = 0.0
    for x, y in groups:
        x_mean, y_mean = math.fsum(x) / len(x), math.fsum(y) / len(y)
        square += math.fsum((one - x_mean) ** 2 for one in x)
        product += math.fsum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    if square <= LEAST_COVARIATE_SPREAD**2 * (len(every) + n - 2) or product <= 0:
        return None
    slope = min(product / square, MOST_SLOPE)
    shifts = [a - b for a, b in zip(x_a, x_b, strict=True)]
    if abs(math.fsum(shifts) / n) > MOST_SHIFT_ERRORS * stdev_of(shifts) / math.sqrt(n):
        return None  # load during one arm may come from that arm: then it is not an accident to correct for
    pairs = zip(baseline, candidate, shifts, strict=True)
    logs = tuple(math.log(a / b) - slope * shift for a, b, shift in pairs)
    left = [y - slope * x for x, y in zip(*groups[0], strict=True)]
    return Levelled(
        logs=logs,
        shifts=tuple(shifts),
        slope_error=math.sqrt(0.5 / square),
        noise=Noise(spread_ratio=math.sqrt(2) * stdev_of(left), freedom=len(left) - 1),
        words=covariate.words,
    )


def _interval(logs: Sequence[float], level: float, noise: Noise | None, ways: Sequence[Levelled | None]) -> _Interval:
    """The intervals of all looks so far; at equal values of a covariate where that makes the spread clearly smaller."""
    most = LEVELLED_RATIO * _spread_used(logs, noise)[0]
    spreads = [(_spread_used(way.logs, way.noise)[0], way) for way in ways if way is not None]
    spread, levelled = min(spreads, key=lambda one: one[0], default=(math.inf, None))
    if levelled is None or spread > most:
        return _intersect(logs, level, noise, None)
    return _intersect(levelled.logs, LEVELLED_LEVEL_RATIO * level / len(ways), levelled.noise, levelled)


def _spread_used(logs: Sequence[float], noise: Noise | None) -> tuple[float, int]:
    """Standard deviation of the pairs, not below the baseline's noise, and its degrees of freedom."""
    spread, freedom = stdev_of(logs), len(logs) - 1
    if noise is None:
        return spread, freedom
    if spread <= SAME_SPREAD_RATIO * noise.spread_ratio:
        freedom += noise.freedom
    return max(spread, noise.spread_ratio), freedom


def _intersect(logs: Sequence[float], level: float, noise: Noise | None, levelled: Levelled | None) -> _Interval:
    """With ``levelled`` its slope's error widens each interval, and costs a degree of freedom."""
    all_low, all_high = -math.inf, math.inf
    low = high = spread = 0.0
    for pairs, share in LOOKS:
        if pairs > len(logs):
            break
        part = logs[:pairs]
        middle = math.fsum(part) / pairs
        spread, freedom = _spread_used(part, noise)
        error = spread / math.sqrt(pairs)
        if levelled is not None:
            freedom = max(1, freedom - 1)
            shift = math.fsum(levelled.shifts[:pairs]) / pairs
            error = math.hypot(error, spread * levelled.slope_error * shift)
        half = t_bound(freedom, level * share) * error
        low, high = middle - half, middle + half
        all_low, all_high = max(all_low, low), min(all_high, high)
    return _Interval(
        low=low,
        high=high,
        middle=math.fsum(logs) / len(logs),
        spread=spread,
        all_low=all_low,
        all_high=all_high,
        levelled=levelled,
    )


def pairs_to_decide(found: PairComparison, *, level: float = DECISION_LEVEL) -> int | None:
    """The look that would show a difference as large as it seems; None when none would, or before the first look."""
    if found.speedup_ratio is None or found.noise_ratio is None:
        return None
    effect = abs(math.log(found.speedup_ratio))
    if effect < math.log1p(SMALLEST_EFFECT_RATIO):
        return None
    for pairs, share in LOOKS:
        freedom = pairs - 1 + found.noise_freedom
        if found.n < pairs <= MOST_PAIRS and t_bound(freedom, level * share) * found.noise_ratio < effect * pairs**0.5:
            return pairs
    return None


def spread_of(values: Sequence[float]) -> float | None:
    """Standard deviation of the logarithms: how far two processes of one arm differ. None for fewer than two."""
    if len(values) < 2:
        return None
    return stdev_of([math.log(value) for value in values])


def stdev_of(values: Sequence[float]) -> float:
    """The standard deviation that a sample of two or more shows."""
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((one - middle) ** 2 for one in values) / (len(values) - 1))


def noise_of(values: Sequence[float]) -> Noise | None:
    """The noise that processes of the baseline show, as pairs of them would; None for too few of them."""
    spread = spread_of(values) if len(values) >= LEAST_FOR_NOISE else None
    return None if spread is None else Noise(spread_ratio=math.sqrt(2) * spread, freedom=len(values) - 1)


def break_even_steps(one_time_ns: float, baseline_step_ns: float, candidate_step_ns: float) -> int | None:
    """Steps after which a one-time cost has paid for itself; None when a step saves nothing.

    >>> break_even_steps(1000, 10, 8)
    500
    """
    won = baseline_step_ns - candidate_step_ns
    if won <= 0:
        return None
    return max(0, math.ceil(one_time_ns / won))


def t_bound(freedom: int, level: float) -> float:
    """The t that Student's distribution exceeds in absolute value with probability ``level``.

    >>> round(t_bound(3, 0.01), 3), round(t_bound(10, 0.05), 3)
    (5.841, 2.228)
    """
    return student_quantile(1.0 - level / 2, freedom)
