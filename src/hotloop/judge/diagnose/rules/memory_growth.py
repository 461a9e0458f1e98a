"""memory-growth: memory grows from step to step."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

from hotloop.core.analysis import Analysis, Line, RankAnalysis
from hotloop.core.findings import Finding, Fix, Severity, Skipped
from hotloop.core.recording import GAP_FIELDS
from hotloop.core.rules import rule
from hotloop.core.trace_analysis import TraceAnalysis
from hotloop.judge.diagnose.lines import places
from hotloop.judge.diagnose.measured import format_bytes

SMALLEST_GROWTH_BYTES = 16 << 20
"""Over the steady steps; the warm-up of an allocator takes as much in a short run."""

SMALLEST_GROWTH_RATIO = 0.01
"""Share of all memory per thousand steps; this much is material however few steps were seen."""

NOISE_MULTIPLE = 3.0

FEWEST_READINGS_COUNT = 5
FEWEST_RISES = 3
"""The second half must exceed everything before it by at least this many times its own largest rise, because a heap
that still finds room for large blocks rises in a few jumps. Twelve healthy runs of two FSDP2 ranks (gloo, 2026-11-22),
cut after 20 to 399 steps, passed every other test five times; their second halves held 1.2 to 2.4 such rises."""

LASTING_RATIO = 0.75
"""The minimum ratio of the second half's slope to the first half's; a warm-up flattens out."""

_KEEPING_LEAF = re.compile(r"^(torchmetrics|torcheval|ignite|evaluate)\b")
_KEEPING_TEXT = re.compile(r"\.(append|extend|appendleft|insert|setdefault)\(|\w*loss\w*\s*\+=")
"""Lines that may keep their arguments: a list, a dictionary, a metric, a sum of losses."""

HIGH_STEPS_COUNT = 1_000
MEDIUM_STEPS_COUNT = 10_000


def memory_growth_on_trace(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """The slope of an accelerator's allocated memory at the ends of the complete steps."""
    known = [
        (rank, one)
        for rank in analysis.ranks
        for one in rank.memory
        if one.device_type != "cpu" and one.growth_bytes_per_step is not None
    ]
    if not known:
        return Skipped(reason="the trace has no accelerator memory events over at least 8 steps")
    rank, worst = max(known, key=lambda pair: pair[1].growth_bytes_per_step or 0.0)
    slope, noise = worst.growth_bytes_per_step or 0.0, worst.growth_noise_bytes_per_step or 0.0
    steps = rank.complete_steps_count
    if slope <= NOISE_MULTIPLE * noise or slope * steps < SMALLEST_GROWTH_BYTES:
        return None
    total = next((one.total_bytes for one in rank.facts.devices if one.index == worst.device), None)
    # Levels that start from an unknown height say nothing about the memory that is left.
    left = None if total is None or not worst.is_absolute else max(0.0, (total - worst.last_allocated_bytes) / slope)
    then = "" if left is None else f"; {format_bytes(total or 0)} will be full in about {_format_count(left)} steps"
    return Finding(
        title=f"device memory grows by {format_bytes(slope)} per step over {steps} recorded steps{then}",
        evidence={
            "growth_bytes_per_step": round(slope),
            "noise_bytes_per_step": round(noise),
            "used_bytes": worst.last_allocated_bytes if worst.is_absolute else None,
            "total_bytes": total,
            "steps_left": None if left is None else round(left),
        },
        fix=Fix(technique="detach-kept-tensors"),
        ranks=() if len(analysis.ranks) == 1 or rank.facts.rank is None else (rank.facts.rank,),
        severity_override=_severity_of(left),
    )


@rule("memory-growth", "memory grows from step to step", on_trace=memory_growth_on_trace)
def memory_growth(analysis: Analysis) -> Finding | Skipped | None:
    """## What it does
    Fits a line to each process's memory over its steady steps, and reports in how many steps memory would be full.

    ## Why it costs
    A leak ends the run, often after hours, with an out-of-memory error or a kill that leaves no message.

    ## How to recognize it
    The slope exceeds three times its own error and amounts to more than 16 MiB over the steady steps, or to 1 % of all
    memory per thousand steps. Memory use in every quarter of the run is higher than in the previous quarter, and it
    grows in the second half as in the first. (An allocator that warms up levels off, and a fluctuating allocator
    returns to its earlier level.) The second half must also rise by at least three times its largest single rise,
    because a heap that looks for room for large blocks grows in a few jumps.

    ## What to do
    Look for tensors kept with their graph (`losses.append(loss)` instead of `loss.item()` or `loss.detach()`), lists
    and caches without a size limit, and hooks that keep activations. With DataLoader workers, a data set held as Python
    lists grows by copy-on-write: hold it as arrays.

    ## When it is wrong
    The reported line is named because its source and its calls suggest that it keeps something; other lines may keep
    something too. Caches that fill during the first epoch grow and then stop. Memory-mapped data counts as resident
    although the system can drop it at once. A short run shows only part of such growth.
    """
    judged = [rank for rank in analysis.ranks if rank.memory_growth_bytes_per_step is not None]
    if not judged:
        return Skipped(reason="memory was not measured often enough to fit a slope")
    growing = [(slope, rank) for rank in judged if (slope := _lasting_slope(rank)) is not None]
    if not growing:
        return None
    slope, rank = max(growing, key=lambda pair: pair[0])
    total = rank.memory_total_bytes
    used = next((int(value) for value in reversed(_memory_column(rank)) if value > 0), None)
    together = 1 if rank.device_type != "cpu" else max(1, rank.local_world_size or 1)
    left = None
    if total is not None and used is not None:
        left = max(0.0, (total - together * used) / (together * slope))
    keeping = _keeping_lines(rank)
    slow_ranks = tuple(one.rank for _, one in growing if one.rank is not None)
    then = "" if left is None else f"; {format_bytes(total or 0)} will be full in about {_format_count(left)} steps"
    if keeping:
        where = keeping[0].where
        then += f"; {os.path.basename(where.file)}:{where.line} in {where.function} may keep its arguments"
    return Finding(
        title=f"memory grows by {format_bytes(slope)} per step{then}",
        evidence={
            "growth_bytes_per_step": round(slope),
            "noise_bytes_per_step": None
            if rank.memory_growth_noise_bytes_per_step is None
            else round(rank.memory_growth_noise_bytes_per_step),
            "used_bytes": used,
            "total_bytes": total,
            "steps_left": None if left is None else round(left),
        },
        where=places(keeping),
        ranks=slow_ranks if len(analysis.ranks) > 1 and len(slow_ranks) < len(analysis.ranks) else (),
        fix=Fix(technique="detach-kept-tensors"),
        severity_override=_severity_of(left),
    )


def _keeping_lines(rank: RankAnalysis) -> tuple[Line, ...]:
    """Lines of the steady step that may keep their arguments, those with most samples first."""
    found = [
        line
        for name in (*GAP_FIELDS, "forward_ns", "nograd_ns")
        for line in rank.lines.get(name, ())
        if _KEEPING_LEAF.match(line.leaf) or _KEEPING_TEXT.search(line.text)
    ]
    return tuple(sorted(found, key=lambda line: -line.samples))


def _severity_of(steps_left: float | None) -> Severity:
    if steps_left is None or steps_left >= MEDIUM_STEPS_COUNT:
        return Severity.LOW
    return Severity.HIGH if steps_left < HIGH_STEPS_COUNT else Severity.MEDIUM


def _lasting_slope(rank: RankAnalysis) -> float | None:
    """Bytes per step by which memory keeps growing; None if it does not grow, or not beyond its noise."""
    slope = rank.memory_growth_bytes_per_step
    noise = rank.memory_growth_noise_bytes_per_step
    if slope is None or slope <= 0 or not _is_large(slope, rank):
        return None
    column = [value for value in _memory_column(rank) if value > 0]
    readings_count = sum(1 for _ in groupby(column))
    if readings_count < FEWEST_READINGS_COUNT:
        return None  # one or two readings that differ may be a single allocation
    # A reading is repeated in every step until the next one, so there are fewer independent points than steps.
    if noise is not None and slope < NOISE_MULTIPLE * noise * math.sqrt(len(column) / readings_count):
        return None
    middle = len(column) // 2
    first, second = _slope_of(column[:middle]), _slope_of(column[middle:])
    if first <= 0 or second < LASTING_RATIO * first:
        return None
    levels = [statistics.median(column[i * len(column) // 4 : (i + 1) * len(column) // 4]) for i in range(4)]
    if any(later <= earlier for earlier, later in pairwise(levels)):
        return None
    if _rises(column[:middle], column[middle:]) < FEWEST_RISES:
        return None
    return min(slope, second)


def _is_large(slope: float, rank: RankAnalysis) -> bool:
    if slope * rank.steady_count >= SMALLEST_GROWTH_BYTES:
        return True
    return rank.memory_total_bytes is not None and slope * 1_000 >= SMALLEST_GROWTH_RATIO * rank.memory_total_bytes


def _rises(before: Sequence[int], after: Sequence[int]) -> float:
    """The rise of ``after`` above its previous maximum, in units of its largest single rise; 0 if there is none."""
    heights = [max(before), *accumulate(after, max, initial=max(before))]
    largest = max(later - earlier for earlier, later in pairwise(heights))
    return (heights[-1] - heights[0]) / largest if largest > 0 else 0.0


def _memory_column(rank: RankAnalysis) -> Sequence[int]:
    """Device memory if the model is on an accelerator and it was read, else resident memory."""
    if rank.device_type != "cpu" and any(value > 0 for value in rank.columns["device_allocated_bytes"]):
        return rank.columns["device_allocated_bytes"]
    return rank.columns["rss_bytes"]


def _slope_of(values: Sequence[int]) -> float:
    """Least-squares slope of a series over its positions."""
    count = len(values)
    middle_x, middle_y = (count - 1) / 2, sum(values) / count
    above = sum((x - middle_x) * (y - middle_y) for x, y in enumerate(values))
    below = sum((x - middle_x) ** 2 for x in range(count))
    return above / below if below else 0.0


def _format_count(count: float) -> str:
    """Two significant digits: such a forecast has no more.

    >>> _format_count(48_731)
    '49,000'
    """
    whole = max(0, round(count))
    digits = len(str(whole))
    return f"{round(whole, 2 - digits) if digits > 2 else whole:,}"
