"""Times of fresh processes of two arms -> a verdict with an interval, valid at every planned look.

The unit of analysis is the process: its mean time per unit of work over its steady steps. Steps within a process share
its memory layout, its core and its neighbours, so their spread says nothing about the next process. Arms are compared
on logarithms by Welch's t (B. L. Welch, Biometrika 34, 1947), which needs no equal spreads. The level is split over the
planned looks (Bonferroni), so that stopping at any of them keeps the whole error below ``LEVEL``. Four processes that
happen to agree prove no small spread: an arm's spread is never taken below the machine's noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

FASTER, SLOWER, CANNOT_TELL = "faster", "slower", "cannot tell"

LEVEL = 0.01
"""Chance of a wrong verdict over all looks, two-sided."""
LOOKS = (4, 6, 8, 12, 16)
"""Processes per arm at which a comparison may be decided."""
LEAST_NOISE_RATIO = 0.01
"""Relative spread between processes that no arm is believed to fall below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``speedup_ratio`` is old over new time per unit, above 1 for a gain, with the bounds of its interval.

    ``n`` counts processes of the smaller arm, ``noise_ratio`` is the relative spread that the bounds rest on.
    """

    verdict: str
    speedup_ratio: float
    low_ratio: float
    high_ratio: float
    n: int
    noise_ratio: float

    @property
    def saving_ratio(self) -> float:
        return 1 - 1 / self.speedup_ratio


def is_look(n: int) -> bool:
    return n in LOOKS


def compare(
    before: Sequence[float], after: Sequence[float], *, noise_ratio: float = LEAST_NOISE_RATIO, level: float = LEVEL
) -> Comparison:
    """Compare mean times per unit of processes without and with a change; any time unit, all above zero.

    With fewer than ``LOOKS[0]`` processes in an arm the verdict is always 'cannot tell'; the interval needs two.
    """
    if not before or not after or min(*before, *after) <= 0:
        raise ValueError("both arms need times above zero")
    old, new = [math.log(t) for t in before], [math.log(t) for t in after]
    n = min(len(old), len(new))
    difference = statistics.fmean(old) - statistics.fmean(new)
    if n < 2:
        return Comparison(
            verdict=CANNOT_TELL, speedup_ratio=math.exp(difference), low_ratio=0.0, high_ratio=math.inf, n=n,
            noise_ratio=noise_ratio,
        )  # fmt: skip
    spreads = [max(statistics.stdev(arm), noise_ratio) for arm in (old, new)]
    parts = [spread**2 / len(arm) for spread, arm in zip(spreads, (old, new), strict=True)]
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(part**2 / (len(arm) - 1) for part, arm in zip(parts, (old, new), strict=True))
    half = student_quantile(1 - level / len(LOOKS) / 2, round(freedom, 2)) * error
    low, high = math.exp(difference - half), math.exp(difference + half)
    verdict = CANNOT_TELL
    if n >= LOOKS[0]:
        verdict = FASTER if low > 1 else SLOWER if high < 1 else CANNOT_TELL
    return Comparison(
        verdict=verdict, speedup_ratio=math.exp(difference), low_ratio=low, high_ratio=high, n=n,
        noise_ratio=max(spreads),
    )  # fmt: skip


def measure_noise(arms: Sequence[Sequence[float]]) -> float:
    """Relative spread between processes of the same arm, pooled over arms; at least LEAST_NOISE_RATIO."""
    squares, freedom = 0.0, 0
    for arm in arms:
        if len(arm) > 1:
            logs = [math.log(t) for t in arm]
            squares += statistics.variance(logs) * (len(logs) - 1)
            freedom += len(logs) - 1
    return max(LEAST_NOISE_RATIO, math.sqrt(squares / freedom)) if freedom else LEAST_NOISE_RATIO


def order_abba(pairs: int) -> list[bool]:
    """For every process of ``pairs`` pairs whether it is of the changed arm: A B, B A, A B ...

    >>> order_abba(2)
    [False, True, True, False]
    """
    return [bool((at % 2) ^ (at // 2 % 2)) for at in range(2 * pairs)]


@lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t, by bisection of its distribution function (regularised incomplete beta).

    >>> round(student_quantile(0.975, 6), 3), round(student_quantile(0.999, 3), 2)
    (2.447, 10.21)
    """
    if not 0.5 <= probability < 1:
        raise ValueError(f"a probability of {probability} is outside 0.5 .. 1")
    low, high = 0.0, 1.0
    while student_probability(high, freedom) < probability and high < 1e12:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if student_probability(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def student_probability(t: float, freedom: float) -> float:
    """Probability that Student's t with ``freedom`` degrees is below ``t`` >= 0."""
    x = freedom / (freedom + t * t)
    return 1 - 0.5 * incomplete_beta(freedom / 2, 0.5, x)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function by its continued fraction (Lentz's method; DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 500):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + step * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + step / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * result
