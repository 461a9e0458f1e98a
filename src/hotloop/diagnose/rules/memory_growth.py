"""memory-growth: memory grows from step to step."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Finding, Fix, Kind, Numerics, Safety, Severity, Skipped
from hotloop.core.rules import rule
from hotloop.diagnose.wording import say_bytes

SMALLEST_GROWTH_BYTES = 512 * 1024
"""Over the whole run; allocators and caches move by as much."""

NOISE_MULTIPLE = 3.0

FEWEST_READINGS_COUNT = 5

HIGH_STEPS_COUNT = 1_000
MEDIUM_STEPS_COUNT = 10_000


@rule("memory-growth", "memory grows from step to step")
def memory_growth(analysis: Analysis) -> Finding | Skipped | None:
    """## What it does
    Fits a line to the memory of each process over its steady steps, and says in how many steps it would be full.

    ## Why it costs
    A leak ends the training, often after hours, with an out-of-memory error or a kill that leaves no message.

    ## How to tell
    The slope exceeds three times its own error, amounts to more than half a MiB over the run, and goes on in the
    second half: an allocator that warms up grows in the first half only.

    ## What to do
    Look for tensors kept with their graph (`losses.append(loss)` in place of `loss.item()` or `loss.detach()`),
    growing lists and caches without bound, and hooks that keep activations. With loader workers, a data set held as
    Python lists grows by copy-on-write: hold it as arrays.

    ## When it is wrong
    Caches that fill during the first epoch grow and then stop; data read through memory maps counts as resident
    although it can be dropped at once. A short run sees only a part of either.
    """
    judged = [rank for rank in analysis.ranks if rank.memory_growth_bytes_per_step is not None]
    if not judged:
        return Skipped(rule="memory-growth", reason="memory was not measured often enough to fit a slope")
    growing = [(slope, rank) for rank in judged if (slope := _lasting_slope(rank)) is not None]
    if not growing:
        return None
    slope, rank = max(growing, key=lambda pair: pair[0])
    total = rank.memory_total_bytes
    used = _last_known(_memory_column(rank))
    together = 1 if rank.device_type != "cpu" else max(1, rank.local_world_size or 1)
    left = None
    if total is not None and used is not None:
        left = max(0.0, (total - together * used) / (together * slope))
    severity = _severity_of(left)
    slow_ranks = tuple(one.rank for _, one in growing if one.rank is not None)
    then = "" if left is None else f"; {say_bytes(total or 0)} are full in about {_say_count(left)} steps"
    return Finding(
        rule="memory-growth",
        kind=Kind.FAULT,
        title=f"memory grows by {say_bytes(slope)} a step{then}",
        phase=None,
        cost_ns=None,
        cost_ratio=None,
        saving=None,
        evidence={
            "growth_bytes_per_step": round(slope),
            "noise_bytes_per_step": None
            if rank.memory_growth_noise_bytes_per_step is None
            else round(rank.memory_growth_noise_bytes_per_step),
            "used_bytes": used,
            "total_bytes": total,
            "steps_left": None if left is None else round(left),
        },
        ranks=slow_ranks if len(analysis.ranks) > 1 and len(slow_ranks) < len(analysis.ranks) else (),
        fix=Fix(technique="detach-kept-tensors", settings={}, safety=Safety.SHOW, numerics=Numerics.EXACT),
        unit=analysis.unit,
        severity_override=severity,
    )


def _severity_of(steps_left: float | None) -> Severity:
    if steps_left is None or steps_left >= MEDIUM_STEPS_COUNT:
        return Severity.LOW
    return Severity.HIGH if steps_left < HIGH_STEPS_COUNT else Severity.MEDIUM


def _lasting_slope(rank: RankAnalysis) -> float | None:
    """Bytes per step by which memory keeps growing, or None when it does not, or not beyond its noise."""
    slope = rank.memory_growth_bytes_per_step
    noise = rank.memory_growth_noise_bytes_per_step
    if slope is None or slope <= 0:
        return None
    if slope * rank.steady_count < SMALLEST_GROWTH_BYTES or (noise is not None and slope < NOISE_MULTIPLE * noise):
        return None
    column = [value for value in _memory_column(rank) if value > 0]
    if len(set(column)) < FEWEST_READINGS_COUNT:
        return None  # one or two readings that differ may be a single allocation
    middle = len(column) // 2
    first, second = _slope_of(column[:middle]), _slope_of(column[middle:])
    # A warm-up flattens out. What goes on is what the second half shows.
    if first <= 0 or second < 0.4 * first:
        return None
    return min(slope, second) if second < slope else slope


def _memory_column(rank: RankAnalysis) -> Sequence[int]:
    """Device memory where the model is on an accelerator and it was read, else resident memory."""
    if rank.device_type != "cpu" and any(value > 0 for value in rank.columns["device_allocated_bytes"]):
        return rank.columns["device_allocated_bytes"]
    return rank.columns["rss_bytes"]


def _last_known(column: Sequence[int]) -> int | None:
    return next((int(value) for value in reversed(column) if value > 0), None)


def _slope_of(values: Sequence[int]) -> float:
    """Least-squares slope of a series over its positions."""
    count = len(values)
    middle_x, middle_y = (count - 1) / 2, sum(values) / count
    above = sum((x - middle_x) * (y - middle_y) for x, y in enumerate(values))
    below = sum((x - middle_x) ** 2 for x in range(count))
    return above / below if below else 0.0


def _say_count(count: float) -> str:
    """Two significant digits: a forecast of this kind has no more.

    >>> _say_count(48_731)
    '49,000'
    """
    whole = max(0, round(count))
    digits = len(str(whole))
    return f"{round(whole, 2 - digits) if digits > 2 else whole:,}"
