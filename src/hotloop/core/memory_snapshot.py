"""MemoryFile: the content of an allocator's snapshot, as values.

All sizes are bytes. *reserved* is what the caching allocator took from the device, *allocated* what tensors hold,
*active* is allocated plus what waits for another stream before it is free again, *requested* what the program asked
for before the allocator rounded it up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import InvariantError
from .findings import Where

ACTIVE_ALLOCATED = "active_allocated"
ACTIVE_AWAITING_FREE = "active_awaiting_free"
INACTIVE = "inactive"
BLOCK_STATES = (ACTIVE_ALLOCATED, ACTIVE_AWAITING_FREE, INACTIVE)
"""The states of a block of a segment: in use, freed but still needed by another stream, or free for reuse."""

MEMORY_CATEGORIES = (
    "parameter",
    "optimizer_state",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd_detail",
    "unknown",
)
"""torch.profiler's categories of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTotals:
    """All blocks of one state on one device; ``requested_bytes`` is None if an old snapshot does not contain it."""

    state: str
    count: int
    bytes: int
    requested_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBlock:
    """One block of a segment; ``where`` is the user's line that allocated it, None if not recorded."""

    device: int
    address: int
    bytes: int
    requested_bytes: int | None
    state: str
    where: Where | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteMemory:
    """Memory held by one line of the user's code; ``where`` None collects everything that belongs to no known line."""

    where: Where | None
    bytes: int
    count: int | None
    """Allocations; None if the snapshot contains only the bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The highest point that the recorded events show, in requested bytes (the events do not contain the rounding).

    The walk starts at the snapshot's own state and goes back in time, so the level is exact for every recorded
    event; what happened before the first recorded event is unknown.
    """

    requested_bytes: int
    reserved_bytes: int
    """At the same moment."""
    event: int
    """Index of the event of this device after which it was reached; -1: before the first event."""
    by_site: tuple[SiteMemory, ...]
    """Sums to ``requested_bytes``, largest first."""
    by_category: Mapping[str, int]
    """Bytes by MEMORY_CATEGORIES, derived from the stacks and from the lifetime of each allocation
    (memory_categories); sums to ``requested_bytes``. A missing category was not seen; 'unknown' is what could not be
    determined."""

    def __post_init__(self) -> None:
        if sum(self.by_category.values()) != self.requested_bytes:
            raise InvariantError(f"the peak's categories do not sum to {self.requested_bytes} bytes")
        total_bytes = sum(site.bytes for site in self.by_site)
        if total_bytes != self.requested_bytes:
            raise InvariantError(f"the peak's sites sum to {total_bytes}, not to {self.requested_bytes} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """One allocation that failed."""

    device: int
    event: int
    failed_bytes: int
    device_free_bytes: int | None
    requested_bytes: int | None
    """Memory in use at that moment, as requested; None if the events do not fit the snapshot's state."""
    reserved_bytes: int | None
    where: Where | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One device of a snapshot."""

    device: int
    segment_count: int
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int | None
    """Of the active blocks."""
    free_segment_bytes: int
    """In segments without any block in use: empty_cache() would return them."""
    split_bytes: int
    """Free, but between blocks in use: the part of fragmentation that only different sizes would avoid."""
    largest_free_block_bytes: int
    blocks: tuple[BlockTotals, ...]
    """One for each state that occurs, in the order of BLOCK_STATES, other states after them."""
    sites: tuple[SiteMemory, ...]
    """Active blocks by the innermost line of the user's code; sums to ``active_bytes``, largest first."""
    events: Mapping[str, int]
    """Number of recorded events by action."""
    peak: MemoryPeak | None
    """None if no events were recorded or if they contradict the snapshot's state."""

    @property
    def fragmentation_bytes(self) -> int:
        """Reserved but not active."""
        return self.reserved_bytes - self.active_bytes

    def __post_init__(self) -> None:
        if self.free_segment_bytes + self.split_bytes != self.fragmentation_bytes:
            raise InvariantError(
                f"device {self.device}: {self.free_segment_bytes} bytes in free segments and {self.split_bytes} "
                f"between blocks are not the {self.fragmentation_bytes} bytes that are reserved but not active"
            )
        if sum(site.bytes for site in self.sites) != self.active_bytes:
            raise InvariantError(f"device {self.device}: the sites do not sum to the active bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFile:
    """A snapshot, as a report shows it."""

    source: str
    devices: tuple[DeviceMemory, ...] = ()
    largest_blocks: tuple[MemoryBlock, ...] = ()
    out_of_memory: tuple[OutOfMemory, ...] = ()
