"""Processes of one training -> the host memory that those on the same host use together."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.report import MemorySummary

from .process import ProcessAnalysis


def measure_hosts(processes: Sequence[ProcessAnalysis]) -> dict[str, MemorySummary]:
    """Host memory by host; empty when any process's memory is that of an accelerator.

    The peak is the sum of the peaks of the processes: they need not have come at the same moment, and pages that
    processes share count once for each, so it is at most that. Unknown for the host when it is for one process.
    """
    if any(p.memory.allocated_bytes is not None or p.memory.reserved_bytes is not None for p in processes):
        return {}
    by_host: dict[str, list[MemorySummary]] = {}
    for process in processes:
        by_host.setdefault(process.rank.host, []).append(process.memory)
    return {host: _add(memories) for host, memories in by_host.items()}


def _add(memories: Sequence[MemorySummary]) -> MemorySummary:
    if len(memories) == 1:
        return memories[0]
    peaks = [m.peak_bytes for m in memories if m.peak_bytes is not None]
    growths = [m.growth_bytes_per_step for m in memories if m.growth_bytes_per_step is not None]
    peak_bytes = sum(peaks) if len(peaks) == len(memories) else None
    total_bytes = max((m.total_bytes for m in memories if m.total_bytes), default=None)
    return MemorySummary(
        peak_bytes=peak_bytes,
        allocated_bytes=None,
        reserved_bytes=None,
        total_bytes=total_bytes,
        peak_ratio=peak_bytes / total_bytes if peak_bytes is not None and total_bytes else None,
        growth_bytes_per_step=sum(growths) if len(growths) == len(memories) else None,
    )
