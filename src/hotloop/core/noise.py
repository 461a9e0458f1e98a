"""Times of steps in their order -> how uncertain their mean is, without being dominated by a few outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

TRIM_RATIO = 0.05
"""Share of the steps at either end that count no more than the last step before them (none for fewer than 20 steps)."""
MIN_BATCHES = 16
"""Batch means are used only where at least this many batches remain; fewer say too little about their spread."""


def noise_of_mean_ratio(values: Sequence[float], weights: Sequence[int] | None = None) -> float:
    """Standard error of the mean over the mean, if stretches of steps may be alike and a few steps outliers.

    The error is that of the trimmed mean, ``s_w / ((1 - 2 g) sqrt(n))`` with the deviation ``s_w`` of the winsorized
    values (Tukey and McLaughlin, Sankhya A 25, 1963; g is TRIM_RATIO): one step of half a second shows that one step
    was interrupted, not that the others are uncertain, while an effect in one step of ten counts in full. If neighbors
    resemble each other, the error estimated from means of ever longer batches of them grows with their length; the
    largest estimate counts (batch means, Conway 1963). The batches are of winsorized values, since a trimmed mean is
    the mean of these, up to the factor (its influence function: Huber, Robust Statistics, 1981, 3.3).

    ``weights`` are the numbers of steps whose mean each value is. 1.0 for fewer than two values or if the mean is not
    above zero: then nothing is known.

    >>> calm = [100.0, 101.0] * 50
    >>> noise_of_mean_ratio(calm) < 0.001, noise_of_mean_ratio([*calm, 5000.0]) < 0.001
    (True, True)
    """
    counts = [1] * len(values) if weights is None else [int(weight) for weight in weights]
    total = sum(counts)
    if len(values) < 2 or total < 1:
        return 1.0
    mean = sum(value * count for value, count in zip(values, counts, strict=True)) / total
    if mean <= 0:
        return 1.0
    batch, kept_ratio = _winsorise(values, counts, total)
    middle = sum(value * count for value, count in zip(batch, counts, strict=True)) / total
    square = sum(count * (value - middle) ** 2 for value, count in zip(batch, counts, strict=True)) / max(1, total - 1)
    error = math.sqrt(square / len(batch))
    while len(batch) // 2 >= MIN_BATCHES:
        pairs = range(0, len(batch) - 1, 2)
        joined = [counts[i] + counts[i + 1] for i in pairs]
        batch = [(batch[i] * counts[i] + batch[i + 1] * counts[i + 1]) / n for i, n in zip(pairs, joined, strict=True)]
        counts = joined
        middle = sum(batch) / len(batch)
        square = sum((value - middle) ** 2 for value in batch) / (len(batch) - 1)
        error = max(error, math.sqrt(square / len(batch)))
    return error / (kept_ratio * mean)


def _winsorise(values: Sequence[float], counts: Sequence[int], total: int) -> tuple[list[float], float]:
    """The values with both ends drawn in, and the share of the steps between the ends."""
    cut = int(TRIM_RATIO * total)
    if cut == 0:
        return [float(value) for value in values], 1.0
    order = sorted(range(len(values)), key=values.__getitem__)
    low, high = _value_at(order, values, counts, cut), _value_at(order[::-1], values, counts, cut)
    return [float(min(max(value, low), high)) for value in values], 1.0 - 2.0 * cut / total


def _value_at(order: Sequence[int], values: Sequence[float], counts: Sequence[int], rank: int) -> float:
    """The value of the step after ``rank`` others, in this order of the values."""
    reach = 0
    for index in order:
        reach += counts[index]
        if reach > rank:
            return values[index]
    return values[order[-1]]


@lru_cache(maxsize=256)
def student_quantile(probability: float, freedom: int) -> float:
    """The point that Student's t with ``freedom`` degrees of freedom stays below with ``probability`` (above 0.5).

    >>> [round(student_quantile(0.99, freedom), 2) for freedom in (1, 2, 4, 30, 1000)]
    [31.82, 6.96, 3.75, 2.46, 2.33]
    """
    if freedom > 200:
        z = NormalDist().inv_cdf(probability)
        return z + (z**3 + z) / (4 * freedom)  # the next term of Cornish and Fisher's series is below 1e-4 here
    low, high = 0.0, 1.0
    while _student_below(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_below(middle, freedom) < probability else (low, middle)
    return high


def _student_below(t: float, freedom: int) -> float:
    """The distribution of Student's t at ``t`` >= 0, as the finite sum that exists for a whole number of freedoms
    (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    term, total = 1.0, 1.0
    if freedom % 2:
        if freedom == 1:
            return 0.5 + angle / math.pi
        for k in range(2, freedom - 1, 2):
            term *= k / (k + 1) * cosine**2
            total += term
        return 0.5 + (angle + math.sin(angle) * cosine * total) / math.pi
    for k in range(1, freedom - 1, 2):
        term *= k / (k + 1) * cosine**2
        total += term
    return 0.5 + math.sin(angle) * total / 2
