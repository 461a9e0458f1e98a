"""Differences of two clocks at many moments -> their offset and drift, with what they are certain to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FEWEST_STEPS = 12
MOST_BLOCKS = 32
BLOCK_STEPS = 6
"""A block has at least so many steps: the median of fewer is as restless as they are."""
FEWEST_BLOCKS = 8
"""Fewer tell no drift."""
SIGNIFICANT = 4.0
"""A drift that many standard errors from 0 is told."""
MOST_DRIFT_PPM = 1_000.0
"""No clock drifts faster (the kernel slews by 500 ppm at most): the steps do not belong together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLine:
    """Difference of two clocks: ``offset_ns`` at ``middle_ns`` of the first one, which the other gains by ``drift``."""

    offset_ns: float
    drift: float
    """ns per ns; 0 where it is not told from 0."""
    middle_ns: float
    uncertainty_ns: float
    """Of the line anywhere between the first and the last difference, without the transfer."""
    steps_count: int


def fit_line(at_ns: npt.ArrayLike, difference_ns: npt.ArrayLike) -> ClockLine | None:
    """A line through n differences of two clocks (ns) at times of the first one (ns, ascending); None with too few.

    Robust: up to a quarter of the steps may have ended late on one side. The uncertainty is half of the middle half of
    the residuals, which is how far apart the ends of one exchange usually are, plus the interval of their median and
    SIGNIFICANT standard errors of the slope over half of the time.
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
        # Not the median deviation: of few blocks, those that a busy machine held up together feign a slope.
        error = float(np.sqrt(np.sum((left - left.mean()) ** 2) / (len(left) - 2))) / max(
            1.0, float(np.sqrt(np.sum((block_x - block_x.mean()) ** 2)))
        )
        drift = slope if abs(slope) > SIGNIFICANT * error else 0.0
    left = y - drift * x
    middle_ns, half_ns = float(np.median(left)), float(np.diff(np.percentile(left, (25, 75)))[0]) / 2
    # The order statistics between which the true median lies, whatever the distribution: of n signs, the number of
    # those above it is binomial.
    low = max(0, int((count - 1) / 2 - SIGNIFICANT * np.sqrt(count) / 2))
    median_error = float(np.abs(np.sort(left)[[low, count - 1 - low]] - middle_ns).max())
    return ClockLine(
        offset_ns=base + middle_ns,
        drift=drift,
        middle_ns=float(middle),
        uncertainty_ns=half_ns + median_error + SIGNIFICANT * error * float(at[-1] - at[0]) / 2,
        steps_count=count,
    )
