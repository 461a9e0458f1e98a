"""Steps of two sides, cut into parts -> terms that sum to the change exactly, with intervals over the steps.

The interval is Welch's. Neighboring steps resemble each other, so the error of each mean is first corrected for that
(``estimate_error``). It covers variation from step to step within the recorded processes, but no differences between
two processes of the same program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.graph import DiffTerm, DiffTerms
from hotloop.core.noise import student_quantile

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

MIN_BATCHES = 16
"""Fewer batches of neighboring steps say too little about their spread."""
MAX_LIKENESS = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class RankSteps:
    """The steps of one rank, one entry each; an entry may be a block of ``weight`` steps whose parts are sums."""

    index: Int64s | None
    """A number that the same step has on every rank; None if ranks step independently."""
    weight: Int64s
    parts_ns: Int64s
    """One row per entry, one column per part."""


@dataclass(frozen=True, slots=True, eq=False)
class SideSteps:
    """The steps of all ranks of one side, summed over the ranks."""

    weight: Int64s
    parts_ns: Int64s
    ranks_count: int
    alignment: str
    """'step': by the step's number. 'order': by its position. 'lead': of the first rank alone, because the ranks' steps
    do not belong together."""

    @property
    def steps_count(self) -> int:
        return int(self.weight.sum())


def join_ranks(ranks: Sequence[RankSteps]) -> SideSteps:
    """The steps that all ranks have, each summed over the ranks: what slows all ranks in one step is one draw."""
    lead = ranks[0]
    if len(ranks) == 1:
        return SideSteps(lead.weight, lead.parts_ns, 1, "step")
    keys = [_keys(one) for one in ranks]
    known = [k for k in keys if k is not None]
    if len(known) == len(ranks):
        common = set.intersection(*(set(k) for k in known))
        if common:
            places = [np.array([i for i, key in enumerate(k) if key in common], dtype=np.int64) for k in known]
            parts = np.sum([one.parts_ns[at] for one, at in zip(ranks, places, strict=True)], axis=0)
            return SideSteps(lead.weight[places[0]], parts, len(ranks), "step")
    if all(bool((one.weight == 1).all()) for one in ranks):
        count = min(len(one.weight) for one in ranks)
        parts = np.sum([one.parts_ns[:count] for one in ranks], axis=0)
        return SideSteps(lead.weight[:count], parts, len(ranks), "order")
    return SideSteps(lead.weight, lead.parts_ns, 1, "lead")


def _keys(one: RankSteps) -> list[tuple[int, int]] | None:
    if one.index is None:
        return None
    keys = list(zip(one.index.tolist(), one.weight.tolist(), strict=True))
    ascending = bool((np.diff(one.index) > 0).all())
    return keys if ascending else None


def sum_terms(name: str, labels: Sequence[str], before: SideSteps, after: SideSteps) -> DiffTerms:
    """The change of the mean of a whole and of its parts per step and rank; the parts' means are rounded so that they
    sum to the whole's on both sides."""
    means = []
    for side in (before, after):
        totals = [int(total) for total in side.parts_ns.sum(axis=0)]
        means.append(apportion(totals, side.steps_count * side.ranks_count))
    first, second = means
    every = tuple(range(len(labels)))
    return DiffTerms(
        before_ns=sum(first),
        after_ns=sum(second),
        whole=make_term(name, sum(first), sum(second), measure_half_width(before, after, every)),
        terms=tuple(
            make_term(label, first[i], second[i], measure_half_width(before, after, (i,)))
            for i, label in enumerate(labels)
        ),
    )


def make_term(name: str, before_ns: int, after_ns: int, half_width_ns: int | None) -> DiffTerm:
    return DiffTerm(
        name=name, before_ns=before_ns, after_ns=after_ns, delta_ns=after_ns - before_ns, half_width_ns=half_width_ns
    )


def measure_half_width(before: SideSteps, after: SideSteps, parts: Sequence[int]) -> int | None:
    """Half of the 95 % interval of the change of some parts together, ns, rounded up; None below two steps per side."""
    width = half_width(estimate_side_error(before, parts), estimate_side_error(after, parts))
    return None if width is None else math.ceil(width)


def estimate_side_error(side: SideSteps, parts: Sequence[int], divisor: float = 1.0) -> MeanError | None:
    """The error of the mean of some parts per step and rank, over ``divisor``."""
    values = side.parts_ns[:, list(parts)].sum(axis=1) / (side.ranks_count * divisor)
    return estimate_error(values, side.weight)


def apportion(totals: Sequence[int], parts: int) -> list[int]:
    """Each total over ``parts``, rounded to whole ns so that the results sum to the sum of the totals over ``parts``,
    rounded down: the largest remainders are rounded up."""
    whole = sum(totals) // parts
    shares = [total // parts for total in totals]
    missing = whole - sum(shares)
    by_remainder = sorted(range(len(totals)), key=lambda i: (-(totals[i] % parts), i))
    for i in by_remainder[:missing]:
        shares[i] += 1
    return shares


# ---- the interval


@dataclass(frozen=True, slots=True)
class MeanError:
    """How uncertain a mean is, in the square of its unit."""

    variance: float
    freedom: float
    """Degrees of freedom of the variance's estimate."""


def estimate_error(values: Floats, weight: Int64s) -> MeanError | None:
    """The error of sum(values) / sum(weight), allowing for neighbors that resemble each other; None below 2 entries.

    The larger of two corrections counts: one for a series in which each step adopts a share of the step before (its
    likeness, which few steps underestimate, so that much is added), and the spread of the means of 2, 4, 8, ...
    neighbors if at least MIN_BATCHES such batches remain. Neither ever makes the error smaller.
    """
    count, total = len(values), float(weight.sum())
    if count < 2:
        return None
    deviation = values - float(values.sum()) / total * weight
    plain = _variance_of_sum(deviation) / total**2
    if plain <= 0:
        return MeanError(0.0, count - 1)
    likeness = float((deviation[1:] * deviation[:-1]).sum() / (deviation**2).sum())
    likeness = min(MAX_LIKENESS, max(0.0, likeness + (1 + 3 * max(0.0, likeness)) / count))
    factor = (1 + likeness) / (1 - likeness)
    freedom = count / factor - 1
    batch = deviation
    while len(batch) // 2 >= MIN_BATCHES:
        even = len(batch) // 2 * 2
        scale = len(batch) / even
        batch = (batch[:even:2] + batch[1:even:2]) * math.sqrt(scale)
        seen = _variance_of_sum(batch) / total**2 / plain
        if seen > factor:
            factor, freedom = seen, min(count / seen, len(batch)) - 1
    return MeanError(plain * factor, max(1.0, freedom))


def _variance_of_sum(deviation: Floats) -> float:
    return float((deviation**2).sum()) * len(deviation) / (len(deviation) - 1)


def half_width(before: MeanError | None, after: MeanError | None) -> float | None:
    """Half of Welch's 95 % interval of the difference of two means; None if an error is unknown."""
    if before is None or after is None:
        return None
    variance = before.variance + after.variance
    if variance == 0:
        return 0.0
    freedom = variance**2 / (before.variance**2 / before.freedom + after.variance**2 / after.freedom)
    return student_quantile(0.975, max(1, int(freedom))) * math.sqrt(variance)
