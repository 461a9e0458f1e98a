"""Timeline: the content of one rank's trace, as small frozen values that can be sent between processes and saved.

Every time is int nanoseconds. Instants (``start_ns``, ``end_ns``) are on the trace's own clock (core.trace.Trace);
everything else is a duration. None means that the file does not contain the value; it never means zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InvariantError
from .phases import PHASES, Breakdown
from .trace import TraceNote
from .utilization import NOTHING, Utilization


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePartition:
    """How a window of one device divides: compute + exposed_comm + exposed_mem + idle is the window, exactly.

    ``compute_ns``, ``comm_ns`` and ``mem_ns`` are the times during which at least one such event ran, overlapped or
    not; mem is copies and sets. Raises an error if a law is broken.
    """

    window_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    comm_ns: int
    mem_ns: int
    overlap_ns: int
    """Communication that was overlapped with compute."""
    exposed_comm_ns: int
    """Communication while no compute ran."""
    exposed_mem_ns: int
    """Copies and sets while neither compute nor communication ran."""

    def __post_init__(self) -> None:
        exposed = self.compute_ns + self.exposed_comm_ns + self.exposed_mem_ns
        if exposed != self.busy_ns or self.busy_ns + self.idle_ns != self.window_ns:
            raise InvariantError(f"the parts of a device window do not sum to it: {self}")
        if self.overlap_ns + self.exposed_comm_ns != self.comm_ns:
            raise InvariantError(f"hidden and exposed communication do not sum to the communication: {self}")
        low = min(self.idle_ns, self.compute_ns, self.overlap_ns, self.exposed_comm_ns, self.exposed_mem_ns)
        if low < 0 or self.mem_ns < self.exposed_mem_ns or self.mem_ns > self.busy_ns:
            raise InvariantError(f"a part of a device window is out of range: {self}")

    @property
    def overlap_ratio(self) -> float | None:
        """Share of the communication that was overlapped, 0..1; None without communication."""
        return self.overlap_ns / self.comm_ns if self.comm_ns else None

    @property
    def busy_ratio(self) -> float | None:
        """Share of the window in which the device worked, 0..1; None for an empty window."""
        return self.busy_ns / self.window_ns if self.window_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimeline:
    """One device over the whole trace: from its first to its last event, with every step."""

    device: int
    start_ns: int
    end_ns: int
    partition: DevicePartition
    gpu_events: int
    """Kernels, copies and sets. Waits (cuda_sync) and ranges drawn on the device are not device work."""
    unlinked_events: int
    """Those of them whose launching call the trace does not show."""
    work_ns: int
    """Sum of the durations; events that ran in parallel count twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommGroup:
    """The communication kernels of one name."""

    name: str
    comm_source: str
    """'metadata' (the file says that it is a collective) or 'name' (only its name does)."""
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameRow:
    """Host activity that covered idle time of the device, by name."""

    name: str
    kind: str
    """'operator', 'range', 'runtime', 'python', or 'nothing recorded'."""
    cause: str
    """'sync-drained' or 'launch-late'."""
    total_ns: int
    gaps_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleParts:
    """Why a device waited. The five causes sum to its idle time, exactly."""

    idle_ns: int
    sync_drained_ns: int
    """The host waited until the device was empty, and only then prepared what came next."""
    launch_late_ns: int
    """The launching call had not been made (or not returned) when the device went idle."""
    queue_comm_ns: int
    """Queued in time: communication that waited to begin, or work that waited for communication on another stream."""
    queue_event_ns: int
    """Queued in time after an event of another stream."""
    queue_graph_ns: int
    """Between two pieces of work that one call launched as a graph."""
    queue_untold_ns: int
    """Queued in time, but the recording does not show what it waited for: another process on the device, a callback of
    the host, another rank."""
    launch_latency_ns: int
    """Queued in time, gap shorter than the latency of a launch."""
    unknown_ns: int
    """The launch of the next event is not in the trace."""
    late_data_wait_ns: int
    """Part of launch_late while the host waited for the next batch."""

    def __post_init__(self) -> None:
        parts = self.sync_drained_ns + self.launch_late_ns + self.queue_dependent_ns
        parts += self.launch_latency_ns + self.unknown_ns
        if parts != self.idle_ns or self.late_data_wait_ns > self.launch_late_ns:
            raise InvariantError(f"the causes of idle time do not sum to it: {self}")

    @property
    def queue_dependent_ns(self) -> int:
        """The next event was queued in time and waited for something else."""
        return self.queue_comm_ns + self.queue_event_ns + self.queue_graph_ns + self.queue_untold_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class StepIdle(IdleParts):
    """The causes in one step's window."""

    blamed: BlameRow | None
    """What the host did for most of sync_drained and launch_late; None without such time."""
    blamed_python: BlameRow | None
    """The same by Python line, over the longest gaps of the trace; None if no line is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """One training step, on the host and on the device."""

    index: int
    """The number that the trace gives the step, else its position from 0."""
    host_start_ns: int
    host_end_ns: int
    is_complete: bool
    """False for a window that the edge of the recording cut (only if steps had to be inferred)."""
    device_start_ns: int | None
    """Start of the step's first device event; None without any."""
    device_end_ns: int | None
    """Start of the next step's first device event; of the last step, the end of its last device event."""
    is_tail_inclusive: bool
    """True for the last step: its device window runs to the end of its own last event."""
    partition: DevicePartition | None
    """Of the device window, counting everything that ran in it; None without a device window."""
    gpu_events: int
    """Device events that this step launched (unlinked ones: that began in its window)."""
    unlinked_events: int
    phases_ns: tuple[int, ...]
    """Host time of each of PHASES, in that order; they sum to the host window exactly."""
    idle: StepIdle | None = None
    """Causes of the idle time of the device window; None without one."""

    @property
    def is_whole_on_device(self) -> bool:
        """Whether neither the recording nor its own last event cut it, on the host and on the device."""
        return self.is_complete and self.partition is not None and not self.is_tail_inclusive

    def __post_init__(self) -> None:
        if self.idle is not None and (self.partition is None or self.idle.idle_ns != self.partition.idle_ns):
            raise InvariantError(f"the causes of idle of step {self.index} are not of its device window")
        if len(self.phases_ns) != len(PHASES) or sum(self.phases_ns) != self.host_end_ns - self.host_start_ns:
            raise InvariantError(f"the phases of step {self.index} do not sum to the step")
        if self.partition is not None and (
            self.device_start_ns is None
            or self.device_end_ns is None
            or self.partition.window_ns != self.device_end_ns - self.device_start_ns
        ):
            raise InvariantError(f"the device partition of step {self.index} is not of its window")

    @property
    def host_ns(self) -> int:
        """Length of the step on the host."""
        return self.host_end_ns - self.host_start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRow:
    """One range that the user drew (record_function, NVTX), over the whole trace."""

    name: str
    phase: str | None
    """The phase that its name indicates; None if it takes the phase of its surroundings."""
    count: int
    total_ns: int
    device_ns: int
    """Device events launched inside it, durations summed; the outermost range of the name counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """Where the steps went, by phase."""

    breakdown: Breakdown | None
    """Host time of the complete steps; None if the trace shows no host activity."""
    device_ns: tuple[int, ...]
    """Device events by phase (PHASES order), durations summed: comm kernels are communication, copies from the host are
    h2d, everything else has the phase of the host at its launch."""
    phases_seen: tuple[str, ...]
    """The phases that a range, an operator or a frame names, or that follow from these; in the order of PHASES."""
    ranges: tuple[RangeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCauses(IdleParts):
    """The causes over the whole trace."""

    gaps_count: int
    longest_ns: int
    sync_drained_count: int
    launch_late_count: int
    queue_dependent_count: int
    launch_latency_count: int
    unknown_count: int
    late_gc_ns: int | None
    """Part of launch_late in collections that the program asked for; None without Python frames. Automatic ones leave
    no frame."""
    late_allocator_ns: int
    """Part of launch_late in calls that allocate or free device or pinned memory."""
    late_slow_call_ns: int
    """Part of launch_late inside the launching call itself."""
    late_long_ns: int
    """Part of launch_late, beyond the four above, in gaps of a millisecond and more: the host did something else."""
    blamed: tuple[BlameRow, ...]
    """What the host did during sync_drained and launch_late time, the longest first; all rows together sum to it unless
    cut by ``top``."""
    blamed_python: tuple[BlameRow, ...]
    """The same by Python line, if stacks were recorded."""
    syncs: tuple[BlameRow, ...]
    """The operator or call that waited for the device, by the sync_drained time that followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStats:
    """How many kernels the device ran, and how short they are."""

    kernels_count: int
    short_kernels_ratio: float | None
    """Share of kernels under 10 us, by count; None without kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """Device events of one name."""

    name: str
    kind: str
    """'compute', 'comm' or 'mem'."""
    comm_source: str | None
    count: int
    total_ns: int
    mean_ns: int
    occupancy_ratio: float | None
    """Estimated achieved occupancy, weighted by duration."""
    blocks_per_sm: float | None
    """Weighted by duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """Operators of one name and, if recorded, one set of shapes."""

    name: str
    shapes: str | None
    """'Input Dims' as compact JSON."""
    dtypes: str | None
    count: int
    host_total_ns: int
    """Of nested operators in the same row, only the outermost counts."""
    host_self_ns: int
    device_total_ns: int
    """Device events launched inside it or what it calls, durations summed."""
    device_self_ns: int
    """Device events that it launched itself."""
    flops: int | None
    """All calls together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """One nn.Module by name, from its Python frames."""

    name: str
    count: int
    host_total_ns: int
    device_total_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Key ratios over the complete steps (the entire trace if it has no steps); None if a side was not seen."""

    recompute_ratio: float | None
    """Forward operators that ran inside backward (activation checkpointing), over the time of the steps."""
    pageable_copies_ns: int | None
    """Copies between host and device from pageable memory; None if the names do not show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsDevice:
    """The device windows of the complete steps together, without start-up and cut parts: the part that recurs."""

    partition: DevicePartition
    """Sum over the steps."""
    idle: IdleCauses
    """Causes of the gaps that begin in these windows."""
    steps_count: int
    kernels_count: int
    """Of those that these steps launched."""
    pageable_copies_ns: int | None
    """As in Ratios, in these windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeline:
    """Everything that one rank's trace shows without the others."""

    devices: tuple[DeviceTimeline, ...]
    """The busiest first; steps, idle causes and launches are of that one. Empty for a trace without device work."""
    comm_groups: tuple[CommGroup, ...]
    step_source: str
    """'ProfilerStep', 'range NAME', 'optimizer', 'dataloader' or 'whole trace'."""
    steps: tuple[StepWindow, ...]
    """With the source 'whole trace', one window over everything."""
    anatomy: Anatomy
    idle: IdleCauses | None
    """None without device work."""
    in_steps: StepsDevice | None
    """Of the first device, if its window holds more than the complete steps; None if they are nearly all of it, or none
    of them has a window."""
    launch: LaunchStats | None
    kernels: tuple[KernelRow, ...]
    kernels_left_out_count: int
    ops: tuple[OpRow, ...]
    ops_left_out_count: int
    modules: tuple[ModuleRow, ...]
    flops: int | None
    """Of matrix products, convolutions and attention that operators ran, each counted once. None if there are none, or
    if the flops of any of them are unknown. Kernels of compiled code are not counted."""
    ratios: Ratios
    notes: tuple[TraceNote, ...]
    utilization: Utilization = NOTHING
    """Over the steps that are complete on the device; over the entire trace if it shows none."""
