"""Two trainings of recorded runs -> the change of their steady step by phase, in total and per unit of work."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.comparison import UnitChange
from hotloop.core.graph import DiffTerms
from hotloop.core.phases import PHASES

from .changes import MeanError, RankSteps, SideSteps, estimate_side_error, half_width, join_ranks, sum_terms
from .trainings import Training

SAME_UNITS_RATIO = 0.01
"""Samples and tokens per step that differ by less of themselves are the same: the last batch of an epoch is short."""


def join_training(training: Training) -> SideSteps:
    """The steady steps of all ranks by phase; processes without a rank step each on their own."""
    return join_ranks(
        [
            p.phase_steps if p.rank.rank is not None else RankSteps(None, p.phase_steps.weight, p.phase_steps.parts_ns)
            for p in training.processes
        ]
    )


def sum_phases(before: SideSteps, after: SideSteps) -> DiffTerms:
    return sum_terms("step", PHASES, before, after)


def count_units(training: Training, unit: str) -> float | None:
    """Samples or tokens per step of all ranks together; None unless every rank knows them."""
    ranks = [p.rank for p in training.processes]
    values = [r.tokens_per_step if unit == "token" else r.samples_per_step for r in ranks]
    known = [v for v in values if v]
    if len(known) < len(values):
        return None
    # Processes without a rank step each on their own: their step is the mean of one process.
    return sum(known) if ranks[0].rank is not None else sum(known) / len(known)


def differ(before: float | None, after: float | None) -> bool:
    """Whether steps hold more or less work; False where a side does not tell."""
    if before is None or after is None:
        return False
    return abs(after - before) > SAME_UNITS_RATIO * max(before, after)


def change_per_unit(
    unit: str, sides: Sequence[SideSteps], counts: tuple[float, float], noise_ratios: Sequence[float | None]
) -> UnitChange:
    """The time of a step over the work in it, on both sides.

    ``noise_ratios`` are the standard errors of ``counts`` over them, for work that was read from some batches only;
    None where that is not known, and then there is no interval. How work varies over steps is not in the interval.
    """
    means = [
        int(side.parts_ns.sum()) / (side.steps_count * side.ranks_count) / count
        for side, count in zip(sides, counts, strict=True)
    ]
    errors = [
        _add_noise(estimate_side_error(side, range(len(PHASES)), count), mean, noise_ratio)
        for side, count, mean, noise_ratio in zip(sides, counts, means, noise_ratios, strict=True)
    ]
    return UnitChange(
        unit=unit,
        before_count=counts[0],
        after_count=counts[1],
        before_ns=means[0],
        after_ns=means[1],
        delta_ns=means[1] - means[0],
        half_width_ns=half_width(*errors),
    )


def _add_noise(error: MeanError | None, mean: float, noise_ratio: float | None) -> MeanError | None:
    if error is None or noise_ratio is None:
        return None
    return MeanError(error.variance + (mean * noise_ratio) ** 2, error.freedom)
