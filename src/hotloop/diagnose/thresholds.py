"""Analysis -> thresholds: what counts as material, and what as more than the run's own noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.diagnose.measured import phase_noise_ratio, spread_of_own_ratio

MATERIAL_RATIO = 0.01
"""A cost below one percent of the step is not worth a reader's minute."""

RARE_FIELDS = ("checkpoint_ns", "nograd_ns")
"""Saves, and forwards without gradients (validation, rollouts): told apart already, and usually in bursts."""

UNEVEN_RATIO = 0.25
"""What usually comes so much sooner or later than in the mean is told as an average."""

NOISE_MULTIPLE = 2.0
"""A cost must exceed this many standard errors of the mean step (about 95 % confidence)."""


def threshold_ratio(
    rank: RankAnalysis, *, floor_ratio: float = MATERIAL_RATIO, judged_fields: Iterable[str] = ()
) -> float:
    """The smallest share of the step, 0..1, that a rule may call a cost on this rank.

    The noise is that of the step without ``judged_fields``: a checkpoint that stops every tenth step makes the
    steps uneven, and that unevenness is the fault itself, not noise that could hide it. Nor may one kind of work that
    comes now and then hide another: an evaluation is no noise to the logging that is done beside it.
    """
    return max(floor_ratio, NOISE_MULTIPLE * _noise_ratio(rank, tuple(judged_fields)))


def is_material(
    analysis: Analysis, cost_ratio: float, *, judged_fields: Iterable[str] = (), own_fields: Iterable[str] = ()
) -> bool:
    """Whether a share of the step exceeds the floor and the noise of the lead rank (see threshold_ratio).

    The noise leaves outliers out. Where the cost itself lies in ``own_fields`` and one long step could be all there is
    to it, it must also exceed the noise of these fields with every outlier in them.
    """
    if own_fields and cost_ratio < NOISE_MULTIPLE * spread_of_own_ratio(analysis.lead, own_fields):
        return False
    return cost_ratio >= threshold_ratio(analysis.lead, judged_fields=judged_fields)


def is_material_span(analysis: Analysis, cost_ratio: float, field: str) -> bool:
    """Whether a span that was timed by itself exceeds the floor and the noise of its own mean on the lead rank.

    What was clocked inside each step is known better than the step around it: how uneven the rest is says nothing
    of it. Without a column of the field the step's noise has to do.
    """
    column = [value for value in analysis.lead.columns.get(field, ()) if value >= 0]
    if len(column) < 2:
        return is_material(analysis, cost_ratio)
    mean = statistics.fmean(column)
    error = statistics.stdev(column) / math.sqrt(len(column))
    return cost_ratio >= MATERIAL_RATIO and mean >= NOISE_MULTIPLE * error


Z_OF_90_PERCENT = 1.64
"""Standard errors that hold 90 % of a normal distribution."""


def share_bounds(share_ratio: float, samples_count: float) -> tuple[float, float]:
    """Lower and upper bound (Wilson, 90 %) of a share that was seen in ``samples_count`` stack samples.

    >>> low, high = share_bounds(0.5, 100)
    >>> round(low, 2), round(high, 2)
    (0.42, 0.58)
    >>> share_bounds(0.5, 0)
    (0.0, 1.0)
    """
    if samples_count <= 0:
        return 0.0, 1.0
    share = min(max(share_ratio, 0.0), 1.0)
    square = Z_OF_90_PERCENT**2 / samples_count
    centre = (share + square / 2) / (1 + square)
    half = (
        Z_OF_90_PERCENT / (1 + square) * math.sqrt(share * (1 - share) / samples_count + square / (4 * samples_count))
    )
    return max(0.0, centre - half), min(1.0, centre + half)


def steps_between(column: Sequence[int]) -> float | None:
    """Mean number of steps from one occurrence to the next; None with fewer than two of them.

    It goes with means per step: what happens in a part of the steps only is divided by all of them.

    >>> steps_between([0, 0, 1] * 20), steps_between([0] * 40 + [0, 0, 0, 1] * 5)
    (3.0, 12.0)
    """
    happened = [step for step, count in enumerate(column) if count > 0]
    if len(happened) < 2:
        return None
    gap = (happened[-1] - happened[0]) / (len(happened) - 1)
    goes_through = abs(len(column) / gap - len(happened)) <= 1
    return gap if goes_through else len(column) / len(happened)


def recurs_unevenly(column: Sequence[int]) -> bool:
    """Whether the usual gap between two occurrences is another one than the mean of steps_between."""
    happened = [step for step, count in enumerate(column) if count > 0]
    mean = steps_between(column)
    if mean is None:
        return False
    usual = statistics.median(later - earlier for earlier, later in pairwise(happened))
    return abs(usual - mean) > UNEVEN_RATIO * mean


def _noise_ratio(rank: RankAnalysis, judged_fields: tuple[str, ...]) -> float:
    """Never more than the run's plain noise: taking a part out of the step is meant to forgive, not to punish."""
    if not judged_fields:
        return rank.step_noise_ratio
    return min(rank.step_noise_ratio, phase_noise_ratio(rank, (*judged_fields, *RARE_FIELDS)))
