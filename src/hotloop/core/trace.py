"""Trace: a profiler's recording in columns; the seam between trace/ (reads) and analyze/ (reduces).

One Trace is one process, nearly always one rank. Every array has one entry per event with a duration, sorted by
``start_ns`` (ties: longer first), so that an enclosing event comes before what it encloses. Times are int64 ns on the
trace's own clock; text is interned. -1 means unknown in an integer column, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Int32s = NDArray[np.int32]
    Int8s = NDArray[np.int8]
    Floats = NDArray[np.float64]


class Category(IntEnum):
    """The kind of event of a row, whatever the file's producer and age called it."""

    OTHER = 0
    CPU_OP = 1
    """A torch operator or another RecordFunction of the framework (cpu_op, Operator)."""
    RUNTIME = 2
    """A call of the CUDA or HIP runtime or driver on a host thread (cuda_runtime, cuda_driver, Runtime)."""
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    SYNC = 6
    """A wait that the device was given (cuda_sync): never device work."""
    ANNOTATION = 7
    """user_annotation: record_function, ProfilerStep#k, Optimizer.step#..., and NVTX ranges."""
    DEVICE_ANNOTATION = 8
    """gpu_user_annotation: the same range drawn on the device; never device work."""
    PYTHON = 9
    """python_function."""
    OVERHEAD = 10
    """The cost of the profiler itself."""


DEVICE_WORK = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
"""The categories that occupy a device."""

SPARSE_INTEGERS = (
    "sequence_number",  # joins a forward operator with its backward
    "forward_thread",  # 'Fwd thread id'; > 0 (or present and the thread differs) marks a backward operator
    "bytes",  # of a copy or a set
    "wait_on_stream",  # cuda_sync
    "wait_on_record_correlation",  # cuda_sync: correlation of the event record that is waited for
    "group_size",  # collectives
    "in_elements",
    "out_elements",
    "collective_sequence",  # 'Seq' of record_param_comms
    "flops",
)
"""Integer facts that only some events have (Trace.integers)."""

SPARSE_NUMBERS = (
    "blocks_per_sm",
    "occupancy_ratio",  # estimated achieved occupancy, 0..1
)
"""Fractional facts that only some events have (Trace.numbers)."""

SPARSE_TEXTS = (
    "shapes",  # 'Input Dims' as compact JSON
    "dtypes",  # 'Input type' as compact JSON
    "concrete_inputs",
    "call_stack",
    "grid",
    "block",
    "sync_kind",
    "collective",  # 'Collective name'
    "process_group",  # 'Process Group Name', or the description or id if there is no name
    "process_group_ranks",
)
"""Interned text facts that only some events have (Trace.texts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvents:
    """The ``[memory]`` instants of a trace, in time order; -1 where unknown."""

    time_ns: Int64s
    address: Int64s
    bytes: Int64s
    """Positive when allocated, negative when freed."""
    allocated_bytes: Int64s
    """Total after the event."""
    reserved_bytes: Int64s
    device_type: Int32s
    """torch's DeviceType: 0 CPU, 1 CUDA (HIP too)."""
    device_index: Int32s


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One accelerator as the file describes it; None if it does not."""

    index: int
    name: str | None = None
    sm_count: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What the file states about itself and how it was read."""

    source: str
    """File name as the user would recognize it."""
    format: str
    """'kineto', 'nsys', ..."""
    rank: int | None
    rank_source: str
    """'distributedInfo', 'file name', 'order' or 'unknown': where the rank was read."""
    world_size: int | None
    host: str | None
    time_unit_ns: int
    """Smallest step of the source's clock as written: 1000 for old files in whole microseconds, else 1."""
    epoch_ns: int
    """The time on the file's own clock (ns) when ``start_ns`` is 0; add it to compare traces of one host."""
    unix_base_ns: int | None
    """Unix time of the file's own clock's zero (baseTimeNanoseconds); None if the file does not contain it."""
    devices: tuple[DeviceFacts, ...]
    process_groups: Mapping[str, tuple[int, ...]]
    """Ranks by process group name."""
    has_shapes: bool
    has_stacks: bool
    has_sync: bool
    """Whether cuda_sync events are there, so the critical path can follow synchronization."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNote:
    """One line of trace health."""

    level: str
    """'info', 'warning' or 'error'."""
    code: str
    """Stable id, e.g. 'truncated', 'unlinked-kernels', 'no-sync-events'."""
    message: str
    count: int | None = None


class Trace(Protocol):
    """The columns of one process. Arrays must not be written to."""

    facts: TraceFacts
    notes: tuple[TraceNote, ...]
    """Findings of the reader: salvaged windows, dropped events, clocks. Analyses add their own."""

    start_ns: Int64s
    duration_ns: Int64s
    name: Int32s
    """Index into ``names``."""
    category: Int8s
    """A Category."""
    process: Int32s
    """Interned pid (an index into ``processes``)."""
    thread: Int32s
    """Interned (pid, tid): threads of two processes never share an id."""
    device: Int32s
    """Device index of device work, -1 on the host."""
    stream: Int32s
    """Interned stream of device work, -1 on the host; one id is one stream of one device."""
    correlation: Int64s
    """Joins a runtime call with the device work that it launched; -1 without."""
    external_id: Int64s
    """Joins a runtime call with the operator that made it; -1 without."""
    names: Sequence[str]
    processes: Sequence[str]
    thread_labels: Sequence[str]
    """The tid as the file writes it, by interned thread."""
    stream_labels: Sequence[str]
    """The stream as the file writes it ('7', 'stream 7'), by interned stream."""
    memory: MemoryEvents | None

    def __len__(self) -> int: ...

    def integers(self, name: str) -> tuple[Int64s, Int64s]:
        """(rows, values) of a sparse integer fact (SPARSE_INTEGERS), rows ascending; empty if there are none."""
        ...

    def numbers(self, name: str) -> tuple[Int64s, Floats]:
        """(rows, values) of a sparse fractional fact (SPARSE_NUMBERS), rows ascending."""
        ...

    def texts(self, name: str) -> tuple[Int64s, Int64s, Sequence[str]]:
        """(rows, indices, table) of a sparse text fact, rows ascending; the text is table[indices[i]]."""
        ...
