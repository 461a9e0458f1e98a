"""Steps and memory facts -> peak, level and growth of a process's memory: the accelerator's, else the host's (RSS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotloop.core.report import MemorySummary

from .facts import Fact, of_kind, read_count
from .segments import BoolColumn, IntColumn, Steps
from .stats import Slope, fit_slope


def measure_memory(
    steps: Steps, base: BoolColumn, facts: Sequence[Fact], host_total_bytes: int | None
) -> tuple[MemorySummary, Slope | None]:
    """The memory of one process, and its growth in bytes per step over the steady entries ``base``."""
    samples = of_kind(facts, "memory")
    devices = [d for f in samples if isinstance(d := f.get("device"), Mapping)]
    if not (_largest(devices, "peak") or _largest(devices, "allocated")):
        devices = []  # an accelerator that was looked at but never used
    allocated = steps.columns["device_allocated_bytes"]
    if devices or bool((allocated > 0).any()):
        reserved = steps.columns["device_reserved_bytes"]
        total_bytes = _largest(devices, "total")
        peak_bytes = _highest(_largest(devices, "peak"), _largest(devices, "allocated"), _column_peak(allocated))
        allocated_bytes = _last(devices, "allocated", allocated)
        reserved_bytes = _last(devices, "reserved", reserved)
        slope = _growth(steps, base, [(f, f.get("device")) for f in samples], "allocated", "device_allocated_bytes")
    else:
        total_bytes = host_total_bytes
        rss = steps.columns["rss_bytes"]
        peak_bytes = _highest(_largest(samples, "rss_bytes"), _largest(samples, "peak_rss_bytes"), _column_peak(rss))
        allocated_bytes = reserved_bytes = None
        slope = _growth(steps, base, [(f, f) for f in samples], "rss_bytes", "rss_bytes")
    summary = MemorySummary(
        peak_bytes=peak_bytes,
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved_bytes,
        total_bytes=total_bytes,
        peak_ratio=peak_bytes / total_bytes if peak_bytes is not None and total_bytes else None,
        growth_bytes_per_step=None if slope is None else slope.per_x,
    )
    return summary, slope


def _growth(
    steps: Steps, base: BoolColumn, samples: Sequence[tuple[Fact, Any]], key: str, column_name: str
) -> Slope | None:
    """Slope over the steady steps: of the levels in the rows, else of the memory facts.

    What a block of rows says of a level is of no certain moment, so blocks are no points.
    """
    number = np.cumsum(steps.weight) - steps.weight
    level = steps.columns[column_name]
    known = base & (level > 0) & ~steps.is_block
    x, y = number[known], level[known]
    if len(x) >= 8:
        return fit_slope(x.astype(np.float64), y.astype(np.float64))
    points: list[tuple[int, int]] = []
    first, last = (int(steps.first_row[base].min()), int(steps.last_row[base].max())) if base.any() else (0, -1)
    for fact, holder in samples:
        row = read_count(fact, "row")
        value = read_count(holder, key) if isinstance(holder, Mapping) else None
        if row is None or value is None or not first <= row <= last:
            continue
        entry = min(int(np.searchsorted(steps.last_row, row)), len(number) - 1)
        points.append((int(number[entry]), value))
    return fit_slope(
        np.array([x for x, _ in points], dtype=np.float64), np.array([y for _, y in points], dtype=np.float64)
    )


def _column_peak(column: IntColumn) -> int | None:
    peak = int(column.max(initial=0))
    return peak if peak > 0 else None


def _largest(facts: Sequence[Fact], key: str) -> int | None:
    return max((v for f in facts if (v := read_count(f, key))), default=None)


def _highest(*values: int | None) -> int | None:
    return max((v for v in values if v is not None), default=None)


def _last(facts: Sequence[Fact], key: str, column: IntColumn) -> int | None:
    for fact in reversed(facts):
        value = read_count(fact, key)
        if value is not None:
            return value
    known = column[column >= 0]
    return int(known[-1]) if len(known) else None
