"""Columns of numbers -> weighted quantiles, PhaseStats, slopes, the offset and drift of a clock; Student's t."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hotloop.core.phases import PhaseStats

from .segments import IntColumn

FloatColumn = npt.NDArray[np.float64]

MAX_SLOPE_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Rise of a series per unit of its x, and how uncertain it is (about one standard error)."""

    per_x: float
    noise_per_x: float


def describe_phase(phase_ns: IntColumn, weight: IntColumn, all_ns: int) -> PhaseStats:
    """Statistics of one phase over entries of ``weight`` steps; ``all_ns`` is the total of all phases."""
    total_ns = int(phase_ns.sum())
    per_step = per_step_values(phase_ns, weight)
    mean_ns, std_ns = weighted_mean_std(per_step, weight)
    low, median, p95, p99, high = weighted_quantiles(per_step, weight, (0.0, 0.5, 0.95, 0.99, 1.0))
    return PhaseStats(
        total_ns=total_ns,
        share_ratio=total_ns / all_ns,
        mean_ns=round(mean_ns),
        std_ns=round(std_ns),
        min_ns=round(low),
        median_ns=round(median),
        p95_ns=round(p95),
        p99_ns=round(p99),
        max_ns=round(high),
    )


def per_step_values(column: IntColumn, weight: IntColumn) -> FloatColumn:
    """Sums over blocks as values per step."""
    if bool((weight == 1).all()):
        return column.astype(np.float64)
    values: FloatColumn = column / weight
    return values


def weighted_mean_std(values: FloatColumn, weight: IntColumn) -> tuple[float, float]:
    """Mean and standard deviation (of the population) of ``values`` that represent ``weight`` steps each."""
    mean = float(np.average(values, weights=weight))
    return mean, math.sqrt(float(np.average((values - mean) ** 2, weights=weight)))


def weighted_quantiles(values: FloatColumn, weight: IntColumn, at: tuple[float, ...]) -> tuple[float, ...]:
    """Quantiles, each of ``at`` in 0..1, of ``values`` that represent ``weight`` steps each."""
    if bool((weight == 1).all()):
        return tuple(float(q) for q in np.quantile(values, at))
    order = np.argsort(values)
    reach = np.cumsum(weight[order])
    picked = np.searchsorted(reach, [q * (int(reach[-1]) - 1) for q in at], side="right")
    return tuple(float(v) for v in values[order][np.minimum(picked, len(values) - 1)])


def fit_slope(x: FloatColumn, y: FloatColumn) -> Slope | None:
    """Median of the slopes between all pairs of points (Theil-Sen); None for fewer than 8 points or a constant x.

    The noise is the larger of the error from the residuals and half the difference between the slopes of the two
    halves: a series that only rises at its start is not steady growth.
    """
    if len(x) < 8:
        return None
    if len(x) > MAX_SLOPE_POINTS:
        picked = np.unique(np.linspace(0, len(x) - 1, MAX_SLOPE_POINTS).astype(np.int64))
        x, y = x[picked], y[picked]
    slope = _median_pair_slope(x, y)
    if slope is None:
        return None
    residual = y - slope * x
    residual = residual - float(np.median(residual))
    spread = max(1.4826 * float(np.median(np.abs(residual))), float(residual.std()) / 3)
    before, after = residual[:-1], residual[1:]
    power = float((residual**2).mean())
    likeness = min(0.95, max(0.0, float((before * after).mean()) / power)) if power > 0 else 0.0
    inflation = math.sqrt((1 + likeness) / (1 - likeness))
    error = spread / (float(x.std()) * math.sqrt(len(x))) * inflation
    middle = len(x) // 2
    halves = (_median_pair_slope(x[:middle], y[:middle]), _median_pair_slope(x[middle:], y[middle:]))
    if halves[0] is not None and halves[1] is not None:
        error = max(error, abs(halves[0] - halves[1]) / 2)
    return Slope(per_x=slope, noise_per_x=error)


def _median_pair_slope(x: FloatColumn, y: FloatColumn) -> float | None:
    first, second = np.triu_indices(len(x), k=1)
    run = x[second] - x[first]
    apart = run != 0
    if not apart.any():
        return None
    return float(np.median((y[second] - y[first])[apart] / run[apart]))


FEWEST_STEPS = 12
MOST_BLOCKS = 32
BLOCK_STEPS = 6
"""A block has at least this many steps: the median of fewer is as noisy as they are."""
FEWEST_BLOCKS = 8
"""Fewer do not show a drift."""
SIGNIFICANT = 4.0
"""A drift this many standard errors from 0 is reported."""
MOST_DRIFT_PPM = 1_000.0
"""No clock drifts faster (the kernel slews by 500 ppm at most): otherwise the steps do not belong together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLine:
    """Difference of two clocks: ``offset_ns`` at ``middle_ns`` of the first one, which the other gains by ``drift``."""

    offset_ns: float
    drift: float
    """ns per ns; 0 if it does not differ significantly from 0."""
    middle_ns: float
    uncertainty_ns: float
    """Of the line anywhere between the first and the last difference, without the transfer."""
    steps_count: int


def fit_line(at_ns: npt.ArrayLike, difference_ns: npt.ArrayLike) -> ClockLine | None:
    """A line through n differences of two clocks (ns) at times of the first one (ns, ascending); None with too few.

    Robust: up to a quarter of the steps may have ended late on one side. The uncertainty is half the interquartile
    range of the residuals, which is how far apart the ends of one exchange usually are, plus the interval of their
    median and SIGNIFICANT standard errors of the slope over half of the time.
    """
    at, difference = np.asarray(at_ns, dtype=np.float64), np.asarray(difference_ns, dtype=np.float64)
    count = len(at)
    if count < FEWEST_STEPS:
        return None
    base, middle = float(np.median(difference)), (at[0] + at[-1]) / 2
    x, y = at - middle, difference - base
    blocks = np.array_split(np.arange(count), max(1, min(MOST_BLOCKS, count // BLOCK_STEPS)))
    block_x = np.array([np.median(x[one]) for one in blocks])
    block_y = np.array([np.median(y[one]) for one in blocks])
    drift = error = 0.0
    if len(blocks) >= FEWEST_BLOCKS:
        i, j = np.triu_indices(len(blocks), 1)
        apart = block_x[j] > block_x[i]
        slope = float(np.median((block_y[j] - block_y[i])[apart] / (block_x[j] - block_x[i])[apart]))
        left = block_y - slope * block_x
        # Not the median deviation: among few blocks, those that a busy machine held up together mimic a slope.
        error = float(np.sqrt(np.sum((left - left.mean()) ** 2) / (len(left) - 2))) / max(
            1.0, float(np.sqrt(np.sum((block_x - block_x.mean()) ** 2)))
        )
        drift = slope if abs(slope) > SIGNIFICANT * error else 0.0
    left = y - drift * x
    middle_ns, half_ns = float(np.median(left)), float(np.diff(np.percentile(left, (25, 75)))[0]) / 2
    # The order statistics that enclose the true median, whatever the distribution: the number of n signs above it is
    # binomial.
    low = max(0, int((count - 1) / 2 - SIGNIFICANT * np.sqrt(count) / 2))
    median_error = float(np.abs(np.sort(left)[[low, count - 1 - low]] - middle_ns).max())
    return ClockLine(
        offset_ns=base + middle_ns,
        drift=drift,
        middle_ns=float(middle),
        uncertainty_ns=half_ns + median_error + SIGNIFICANT * error * float(at[-1] - at[0]) / 2,
        steps_count=count,
    )
