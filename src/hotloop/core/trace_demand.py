"""What a traced training asked of its host's cores -> a few numbers in the trace's header, and back.

A trace holds when operators ran, not whether a loader computed or waited in between. `hotloop run --trace` measures
that beside the profiler and writes it into the file's header, from where a what-if reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

PREFIX = "hotloop_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDemand:
    """Sums over the steps since the training began (the first one left out), of the process that was traced."""

    cores_count: int
    """Cores that the process may use: the smaller of its affinity and its cgroup's quota, shared among the ranks of
    the host."""
    loading_ns: int
    """Wall time of the batches that were timed while this process made them itself; 0 when it made none."""
    loading_busy_ns: int
    """Part of it in which the thread computed, or was ready and had no core."""
    steps_ns: int
    input_wait_ns: int
    """Part of ``steps_ns`` in which the training thread waited for a batch, or made it."""
    cpu_ns: int
    """CPU time of the whole process over ``steps_ns``."""

    @property
    def loading_busy_ratio(self) -> float | None:
        """Share of a batch's making that needs a core; None where no batch was timed."""
        return min(1.0, self.loading_busy_ns / self.loading_ns) if self.loading_ns > 0 else None

    @property
    def busy_cores(self) -> float | None:
        """Cores that the steps kept busy, on average, while they did not load; None where that cannot be told."""
        computing_ns = self.steps_ns - self.input_wait_ns
        if computing_ns <= 0 or self.cpu_ns <= 0:
            return None
        loading_cpu_ns = self.input_wait_ns * (self.loading_busy_ratio or 0.0)
        return max(0.0, self.cpu_ns - loading_cpu_ns) / computing_ns


def format_demand(demand: TraceDemand) -> dict[str, int]:
    """Entries of a trace's header."""
    return {PREFIX + field.name: getattr(demand, field.name) for field in fields(TraceDemand)}


def read_demand(header: Mapping[str, object]) -> TraceDemand | None:
    """What a header says; None where it says nothing, or nothing that could be true.

    >>> read_demand({"record_shapes": 1}) is None
    True
    """
    values: dict[str, int] = {}
    for field in fields(TraceDemand):
        value = header.get(PREFIX + field.name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
            return None
        values[field.name] = value
    found = TraceDemand(**values)
    sane = 1 <= found.cores_count <= 1 << 16 and found.input_wait_ns <= found.steps_ns
    return found if sane else None
