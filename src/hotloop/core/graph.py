"""Graph results: what ranks, memory, the critical path, what-if and two timelines compared say, as frozen values.

Every time is int nanoseconds. Instants of one rank are on its trace's own clock; where ranks meet, on the aligned clock
that Clocks describes. None means that the files do not tell; it never stands for zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import InvariantError

if TYPE_CHECKING:
    from .trace import Int8s, Int32s, Int64s

BOUND_KINDS = ("host", "input", "launch", "device_compute", "comm", "memcpy", "sync")
"""What a stretch of a critical path can be. host: operators, Python and whatever else a thread does; input: waiting for
the next batch; launch: launching calls, the way from a call to its work, and the gap between two pieces of work;
memcpy: copies and sets; sync: calls that wait for the device, and waits that the trace does not explain."""

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
    """The collectives of one rank in order of start; one entry of every array for each. -1 stands for unknown."""

    rank: int | None
    host: str | None
    base_ns: int
    """Add it to an instant to get it on the clock of the host (Unix time where the file tells it)."""
    time_unit_ns: int
    """Smallest step of the trace's clock."""
    groups: tuple[str, ...]
    """Names of process groups; '' where the file does not name them."""
    group_ranks: tuple[tuple[int, ...] | None, ...]
    """Members, by entry of ``groups``."""
    start_ns: Int64s
    end_ns: Int64s
    op: Int8s
    """Index into OPS."""
    group: Int32s
    """Index into ``groups``."""
    step: Int32s
    """Number of the step that launched it, where the steps are the profiler's own."""
    sequence: Int64s
    in_elements: Int64s
    out_elements: Int64s
    element_bytes: Int8s
    group_size: Int32s
    left_out_count: int
    """Collectives after the last one that is kept."""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """How far one rank's clock is ahead of the reference rank's, from the ends of their common collectives."""

    rank: int | None
    host: str | None
    uncertainty_ns: int | None
    """Half of the middle half of the differences plus the unit of the clocks; sums along the way to the reference."""
    collectives_count: int
    applied_ns: int
    """What is subtracted from the rank's instants: 0 on the reference's host, and where it does not exceed the
    uncertainty."""
    drift_ppm: float | None = None
    """How much faster its host's clock runs, in parts per million; None where that is not told from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """All ranks on one clock, that of ``offsets[reference]``."""

    reference: int
    offsets: tuple[ClockOffset, ...]
    base_ns: tuple[int, ...]
    """Per rank: add it to an instant of that rank's trace to get the aligned instant, up to the drift."""
    middle_ns: tuple[int, ...]
    """Per rank: the aligned instant at which the drift adds nothing; 0 without a drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveKind:
    """Matched collectives of one kind, group and size."""

    op: str
    group: str
    bytes: int | None
    members_count: int
    count: int
    wait_ns: int
    """Mean over ranks, summed over the collectives."""
    transfer_ns: int
    median_transfer_ns: int
    algorithm_bytes_per_s: float | None
    """Bytes over median transfer."""
    bus_bytes_per_s: float | None
    """The same times NCCL's factor for this kind: what each link carries, comparable over kinds and sizes of group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeCounts:
    """How the graph of a step was made. ``inferred`` edges are guessed from times, all others are recorded facts."""

    program: int
    """Order on threads and streams."""
    launch: int
    sync: int
    """Recorded synchronisation: waits of the host and of streams."""
    inferred_threads: int
    """One thread waits for another, judged by when they work and rest."""
    inferred_syncs: int
    """A wait for the device, or of a stream, whose target the trace does not record."""

    @property
    def inferred(self) -> int:
        return self.inferred_threads + self.inferred_syncs


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The longest path through one step: what would have to be faster for the step to be shorter."""

    step: int
    paced_by: str
    """'host': from the step's beginning to its end on the main thread. 'device': the device falls further behind at
    every step, so the step is from the end of the previous step's device work to that of its own."""
    start_ns: int
    end_ns: int
    bound_ns: tuple[int, ...]
    """Time by BOUND_KINDS; sums to the step."""
    unexplained_ns: int
    """Part of it (within sync) in which something waited for what the trace does not show."""
    parts: tuple[tuple[str, str, int], ...]
    """(name, kind, ns), longest first."""
    rows: Int64s
    """Rows of the trace along the path, in time order; -1 where no event covers a stretch."""
    from_ns: Int64s
    """Start of each stretch; it ends where the next one starts, the last at ``end_ns``."""
    kinds: Int8s
    """Index into BOUND_KINDS of each stretch."""
    edges: EdgeCounts
    has_sync_events: bool
    """False: waits for the device were inferred, and the path is a guess where they matter."""

    def __post_init__(self) -> None:
        if len(self.bound_ns) != len(BOUND_KINDS) or sum(self.bound_ns) != self.end_ns - self.start_ns:
            raise InvariantError(f"the parts of the critical path of step {self.step} do not sum to it")

    @property
    def step_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def bound_by(self) -> str:
        """The kind that takes most of the path."""
        return BOUND_KINDS[max(range(len(BOUND_KINDS)), key=lambda i: self.bound_ns[i])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a what-if. ``factor`` and ``workers_count`` only where the kind needs them."""

    kind: str
    """One of changes.CHANGES."""
    factor: float = 1.0
    """How many times faster."""
    pattern: str = ""
    """Regular expression for names of kernels and operators (kind 'faster')."""
    workers_count: int = 0
    """Kind 'loader-workers'."""
    cores_count: int = 0
    """Kind 'loader-workers': cores that the workers share with a training that computes on the CPU; 0 when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A set of changes, re-timed on the dependency graph of some consecutive steps."""

    changes: tuple[Change, ...]
    basis: str
    """'simulated', or 'rule-of-thumb' where the unchanged replay misses the measured step by more than 2 %."""
    basis_reason: str
    measured_step_ns: int
    replayed_step_ns: int
    """Of the unchanged graph."""
    step_ns: int
    low_step_ns: int
    """The best case: waits that the trace does not explain go away with the change."""
    high_step_ns: int
    """The worst case: they stay as long as they were."""
    steps_count: int
    paced_by: str
    """'host' or 'device': which of them the unchanged steps are counted on."""
    bound_by: str
    """'host', 'device', 'loader' or 'cores': which period the changed steps have."""
    limits_ns: Mapping[str, int]
    """Period of each of them after the change."""
    bound_ns: tuple[int, ...]
    """The changed step by BOUND_KINDS: what it is made of now. Sums to ``step_ns``."""
    edges: EdgeCounts

    def __post_init__(self) -> None:
        if sum(self.bound_ns) != self.step_ns:
            raise InvariantError(f"the parts of a forecast step do not sum to it: {self}")
        if not self.low_step_ns <= self.step_ns <= self.high_step_ns:
            raise InvariantError(f"a forecast outside of its own range: {self}")

    @property
    def saving_mid_ratio(self) -> float:
        """1 - new/old time per step; below 0 when the change makes it slower."""
        return 1 - self.step_ns / self.measured_step_ns

    @property
    def saving_low_ratio(self) -> float:
        return 1 - self.high_step_ns / self.measured_step_ns

    @property
    def saving_high_ratio(self) -> float:
        return 1 - self.low_step_ns / self.measured_step_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class OpMemory:
    """What one operator allocated, as the innermost one that was open at the time."""

    name: str
    allocated_bytes: int
    """Sum of its allocations; freed ones are not taken off."""
    count: int
    at_peak_bytes: int
    """Of its allocations, what was still held at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemoryTimeline:
    """One device's allocator over the trace."""

    device_type: str
    """'cpu', 'cuda' (HIP too), or torch's number of the type."""
    device: int
    events_count: int
    is_absolute: bool
    """False: the file does not tell the totals, so levels are relative to the beginning of the trace."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    """Reserved at the peak of allocated; None where unknown and for the CPU, which reserves nothing."""
    last_allocated_bytes: int
    growth_bytes_per_step: float | None
    """Slope of the level at the ends of the complete steps; None for fewer than 8 steps."""
    growth_noise_bytes_per_step: float | None
    held_at_peak_bytes: int
    """Of the peak, what was allocated within the trace; the rest was there before."""
    ops: tuple[OpMemory, ...]
    """Most held at the peak first."""
    peak_by_category: Mapping[str, int]
    """The peak by memory_snapshot.TIMELINE_CATEGORIES, told from the ranges around each allocation and from how long
    it lived (memory_categories); sums to ``peak_allocated_bytes``. What was there before the trace is 'unknown'."""

    def __post_init__(self) -> None:
        total_bytes = sum(self.peak_by_category.values())
        if total_bytes != self.peak_allocated_bytes:
            raise InvariantError(
                f"the peak's categories sum to {total_bytes}, not to {self.peak_allocated_bytes} bytes"
            )

    @property
    def fragmentation_bytes(self) -> int | None:
        """Reserved less allocated at the peak; None where reserved is unknown."""
        return None if self.peak_reserved_bytes is None else self.peak_reserved_bytes - self.peak_allocated_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryMemory:
    """One of torch's categories of memory over a memory timeline."""

    category: str
    at_peak_bytes: int
    own_peak_bytes: int
    """Highest level that this category alone reached."""
    final_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffTerm:
    """One part of a change. Terms of a set sum to the change of the whole exactly."""

    name: str
    before_ns: int
    after_ns: int
    delta_ns: int
    half_width_ns: int | None
    """Half of the 95 % confidence interval of ``delta_ns`` over the steps; None with fewer than two steps on a side."""

    @property
    def is_certain(self) -> bool | None:
        """Whether the interval excludes 0; None where there is none."""
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
    """One kernel or operator, per step on either side; the other side's fields are None where it does not occur."""

    name: str
    """Normalised."""
    shapes: str | None
    status: str
    """'new', 'gone', 'slower', 'faster', 'more calls', 'fewer calls' or 'same'; 'not listed before' or 'not listed
    after' where that side's table was cut, so that it may only be small there."""
    before_count: float | None
    after_count: float | None
    before_ns: float | None
    after_ns: float | None
    delta_ns: float
    count_effect_ns: float | None
    """Of the change, what more or fewer calls explain at the old time per call; the rest is the time per call."""
