"""Graph results for ranks, memory, the critical path, what-if and the comparison of two timelines, as frozen values.

Every time is int nanoseconds. Instants of one rank are on its trace's own clock. None means that the files do not
contain the value; it never means zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import InvariantError

if TYPE_CHECKING:
    from .trace import Int8s, Int32s, Int64s

BOUND_KINDS = ("host", "input", "launch", "device_compute", "comm", "memcpy", "sync")
"""The kinds of stretches in a critical path. host: operators, Python and everything else that a thread does; input:
waiting for the next batch; launch: launching calls, the delay from a call to its work, and the gap between two pieces
of work; memcpy: copies and sets; sync: calls that wait for the device, and waits that the trace does not explain."""

OPS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "point_to_point",
    "unknown",
)
"""Kinds of collectives, whatever their library calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCollectives:
    """The collectives of one rank in order of start, one entry of every array for each. -1 means unknown."""

    rank: int | None
    host: str | None
    base_ns: int
    """Add it to an instant to convert to the host's clock (Unix time if the file contains it)."""
    time_unit_ns: int
    """Smallest step of the trace's clock."""
    groups: tuple[str, ...]
    """Names of process groups; '' if the file does not name them."""
    group_ranks: tuple[tuple[int, ...] | None, ...]
    """Members, by entry of ``groups``."""
    start_ns: Int64s
    end_ns: Int64s
    op: Int8s
    """Index into OPS."""
    group: Int32s
    """Index into ``groups``."""
    step: Int32s
    """Number of the step that launched it, if the steps are the profiler's own."""
    sequence: Int64s
    in_elements: Int64s
    out_elements: Int64s
    group_size: Int32s
    left_out_count: int
    """Collectives after the last one kept."""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a what-if. ``factor`` and ``pattern`` are set only if the kind needs them."""

    kind: str
    """One of changes.CHANGES."""
    factor: float = 1.0
    """How many times faster."""
    pattern: str = ""
    """Regular expression for names of kernels and operators (kind 'faster')."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpMemory:
    """Allocations of one operator, as the innermost operator that was open at the time."""

    name: str
    allocated_bytes: int
    """Sum of its allocations; freed ones are not subtracted."""
    count: int
    at_peak_bytes: int
    """The part of its allocations that was still held at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemoryTimeline:
    """One device's allocator over the trace."""

    device_type: str
    """'cpu', 'cuda' (HIP too), or torch's number of the type."""
    device: int
    events_count: int
    is_absolute: bool
    """If False, the file does not contain the totals, so levels are relative to the start of the trace."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    """Reserved at the peak of allocated; None if unknown and for the CPU, which reserves nothing."""
    last_allocated_bytes: int
    growth_bytes_per_step: float | None
    """Slope of the level at the ends of the complete steps; None for fewer than 8 steps."""
    growth_noise_bytes_per_step: float | None
    held_at_peak_bytes: int
    """The part of the peak that was allocated within the trace; the rest was there before."""
    ops: tuple[OpMemory, ...]
    """Most held at the peak first."""
    peak_by_category: Mapping[str, int]
    """The peak by memory_snapshot.MEMORY_CATEGORIES, derived from the ranges around each allocation and from its
    lifetime (memory_categories); sums to ``peak_allocated_bytes``. What was there before the trace is 'unknown'."""

    def __post_init__(self) -> None:
        total_bytes = sum(self.peak_by_category.values())
        if total_bytes != self.peak_allocated_bytes:
            raise InvariantError(
                f"the peak's categories sum to {total_bytes}, not to {self.peak_allocated_bytes} bytes"
            )

    @property
    def fragmentation_bytes(self) -> int | None:
        """Reserved less allocated at the peak; None if reserved is unknown."""
        return None if self.peak_reserved_bytes is None else self.peak_reserved_bytes - self.peak_allocated_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffTerm:
    """One part of a change. The terms of a set sum to the total change exactly."""

    name: str
    before_ns: int
    after_ns: int
    delta_ns: int
    half_width_ns: int | None
    """Half of the 95 % confidence interval of ``delta_ns`` over the steps; None with fewer than two steps on a side."""

    @property
    def is_certain(self) -> bool | None:
        """Whether the interval excludes 0; None if there is no interval."""
        return None if self.half_width_ns is None else abs(self.delta_ns) > self.half_width_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffTerms:
    """Why one time per step changed."""

    before_ns: int
    after_ns: int
    whole: DiffTerm
    terms: tuple[DiffTerm, ...]

    def __post_init__(self) -> None:
        if sum(t.delta_ns for t in self.terms) != self.after_ns - self.before_ns:
            raise InvariantError(f"the terms of a change do not sum to it: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRow:
    """One kernel or operator, per step on either side; the fields of a side are None if it does not occur there."""

    name: str
    """Normalized."""
    shapes: str | None
    status: str
    """'new', 'gone', 'slower', 'faster', 'more calls', 'fewer calls' or 'same'; 'not listed before' or 'not listed
    after' if that side's table was cut, so that the row may only be small there."""
    before_count: float | None
    after_count: float | None
    before_ns: float | None
    after_ns: float | None
    delta_ns: float
    count_effect_ns: float | None
    """The part of the change that more or fewer calls explain at the old time per call; the rest is the time per
    call."""
