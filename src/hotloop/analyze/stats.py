"""Columns of numbers -> their statistics: weighted quantiles, PhaseStats, slope of a series."""

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
    """Mean and standard deviation (of the population) of ``values`` that stand for ``weight`` steps each."""
    mean = float(np.average(values, weights=weight))
    return mean, math.sqrt(float(np.average((values - mean) ** 2, weights=weight)))


def weighted_quantiles(values: FloatColumn, weight: IntColumn, at: tuple[float, ...]) -> tuple[float, ...]:
    """Quantiles, each of ``at`` in 0..1, of ``values`` that stand for ``weight`` steps each."""
    if bool((weight == 1).all()):
        return tuple(float(q) for q in np.quantile(values, at))
    order = np.argsort(values)
    reach = np.cumsum(weight[order])
    picked = np.searchsorted(reach, [q * (int(reach[-1]) - 1) for q in at], side="right")
    return tuple(float(v) for v in values[order][np.minimum(picked, len(values) - 1)])


def fit_slope(x: FloatColumn, y: FloatColumn) -> Slope | None:
    """Median of the slopes between all pairs of points (Theil-Sen); None for fewer than 8 points or a constant x.

    The noise is the larger of the error that the residuals leave and half the difference between the slopes of the two
    halves: a series that only rises at its beginning is no steady growth.
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
