"""Analysis: the input of the rules. One RankAnalysis per training process, with facts as typed values.

Everything here was measured or stated by the program; None means that it was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .findings import Basis, Where
from .phases import Breakdown, Excluded
from .recording import UNKNOWN
from .utilization import NOTHING, Utilization


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """A torch DataLoader as it was built."""

    id: int
    where: Where | None = None
    num_workers: int | None = None
    batch_size: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    prefetch_factor: int | None = None
    drop_last: bool | None = None
    start_method: str | None = None
    iterable: bool | None = None
    length: int | None = None
    dataset: str | None = None
    fetch_where: Where | None = None
    """Definition of the data set's __getitem__ (or __iter__)."""
    collate_where: Where | None = None
    feeds_backward: bool | None = None
    batches: int | None = None
    iterators: int | None = None
    fetch_ns: float | None = None
    """Wall time per batch of reading and transforming its samples, where it runs (worker or main process)."""
    fetch_cpu_ns: float | None = None
    """Thread CPU time of the same work, plus the time that it was ready but other programs had the cores."""
    collate_ns: float | None = None
    iterator_start_ns: float | None = None
    """Creating an iterator: includes the start of workers, but not the first batch."""
    draws_random: bool | None = None
    """Whether reading a batch moved a global random generator; None if that was not seen, as in workers."""
    first_wait_ns: float | None = None
    """Mean wait for the first batch of an iterator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    index: int
    name: str = "?"
    own_class: bool | None = None
    """Not torch's class of that name, or a name that torch does not have: hand-written, or from another library."""
    where: Where | None = None
    foreach: bool | None = None
    fused: bool | None = None
    groups: int | None = None
    tensors: int | None = None
    parameters: int | None = None
    """Number of elements."""
    device: str | None = None
    dtype: str | None = None
    steps: int | None = None
    state_steps: int | None = None
    """Steps by its own state after the first step that was seen, including those of a loaded checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpFacts:
    """Settings and gradient synchronization statistics of one DistributedDataParallel, per synchronized backward."""

    where: Where | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None
    bucket_cap_bytes: int | None = None
    bucket_sizes: tuple[int, ...] | None = None
    """Bytes of each bucket as now in use (after a rebuild, the rebuilt ones)."""
    parameter_bytes: int | None = None
    parameter_tensors: int | None = None
    unused_tensors: int | None = None
    backend: str | None = None
    comm_hook: str | None = None
    backward_compute_ns: float | None = None
    comm_ns: float | None = None
    overlap_ns: float | None = None
    forward_ns: float | None = None
    scan_ns: float | None = None
    """Host time of looking for unused parameters, per forward."""

    @property
    def exposed_comm_ns(self) -> float | None:
        """Communication per synchronized backward that does not overlap with computation."""
        if self.comm_ns is None or self.overlap_ns is None:
            return None
        return max(0.0, self.comm_ns - self.overlap_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFacts:
    used: bool = False
    where: Where | None = None
    graphs: int | None = None
    graph_breaks: int | None = None
    break_reasons: tuple[tuple[str, Where | None], ...] = ()
    recompiles: int | None = None
    recompile_reasons: tuple[tuple[str, Where | None], ...] = ()
    graph_calls_per_forward: float | None = None
    """Mean number of compiled graphs that one forward runs; None if not seen (backends other than inductor)."""
    graph_ns_per_forward: float | None = None
    """Time inside them; the rest of the forward is guards, Python and eager operators between them."""
    graph_backward_calls_per_forward: float | None = None
    """Graphs that the backward of one forward runs; 0 if backwards run on a thread other than the training's."""
    graph_backward_ns_per_forward: float | None = None
    limit_reason: str | None = None
    """The guard that failed when torch.compile reached its recompile limit; None if it was not reached."""
    limit_where: Where | None = None
    limit_step: int | None = None
    """Steps that had ended when it was reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A place in the user's code with its share of the stack samples of one time field, 0..1."""

    where: Where
    share_ratio: float
    samples: int
    text: str = ""
    """The source line as it is in the file; empty if it cannot be read."""
    stack: tuple[Where, ...] = ()
    """Outermost user frame first; the last one is ``where``."""
    leaf: str = ""
    """Innermost frame of any kind as 'module:function', which shows what the line was doing."""
    calls: tuple[str, ...] = ()
    """Names called by the statement at this line and by its enclosing loop body, read from the source."""
    walks_gradients: bool = False
    """Whether the innermost loop around it, read from the source, is over gradients or touches a ``.grad``."""
    makes_batch: bool | None = None
    """Whether the loop's statement that led here makes the next step's batch, judged by what it binds and what the loss
    needs. False if it needs results of the forward; None if the source does not show it."""
    beside_save: bool = False
    """Whether it is in the same ``if``, ``with`` or ``try`` of a loop or function as a line that was seen to save."""
    is_python: bool = False
    """Whether its statement runs no operator, as far as its source and its innermost frame show."""
    before_draws_ratio: float = 0.0
    """Part of ``share_ratio`` in which a sample was read before it had drawn any random number."""
    ways: tuple[tuple[tuple[Where, ...], float], ...] = ()
    """Every stack that was seen to lead here, with its part of ``share_ratio``, largest first; ``stack`` is the first.

    Empty if only ``stack`` is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What a process does from the import of torch to the end of its first step, beyond a usual step. Int ns."""

    before_ns: int
    """Until torch was first seen to load a batch or to run a module."""
    first_step_ns: int
    """The time of the first step beyond the median step."""
    lines: tuple[Line, ...] = ()
    """From the samples up to the first step's end, largest share first."""

    @property
    def ns(self) -> int:
        return self.before_ns + self.first_step_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A probe's measurement: a technique's time per step for the probed part, against the present settings."""

    technique: str
    saving_low_ratio: float
    saving_mid_ratio: float
    saving_high_ratio: float
    settings: Mapping[str, Any]
    evidence: Mapping[str, Any]
    basis: Basis = Basis.MEASURED
    """``simulated`` if the change itself was not timed but computed, or if the probe's times differ from the run's;
    ``rule-of-thumb`` if they differ so much that the probe does not represent the run."""
    doubt: str = ""
    """How the probe's time with the present settings disagrees with the run's; empty if they agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnalysis:
    rank: int | None
    local_rank: int | None
    host: str
    pid: int
    restart: int
    world_size: int
    local_world_size: int | None
    anchor: str
    steps: int
    skipped_steps: int
    steady_count: int
    warmup_count: int
    step_mean_ns: float
    step_median_ns: float
    step_noise_ratio: float
    """Standard error of the mean step over its mean: the run's own noise, outliers left out (core/noise.py)."""
    breakdown: Breakdown
    mean: Mapping[str, float]
    """Mean per steady step of every field of a row (core.recording.STEP_FIELDS), e.g. mean['after_backward_ns']."""
    columns: Mapping[str, Sequence[int]]
    """Every field of the steady steps as a column, one entry per step; also ``validations``, the number that ended."""
    samples_per_step: float | None
    tokens_per_step: float | None
    padding_ratio: float | None
    """Share of padding in the sampled batches, 0..1."""
    padding_to_longest_ratio: float | None
    """Share that would remain if every batch were padded only to its own longest sample."""
    lines: Mapping[str, tuple[Line, ...]]
    """For every time field, the lines of user code seen in it, largest share first."""
    loaders: tuple[LoaderFacts, ...]
    optimizers: tuple[OptimizerFacts, ...]
    ddp: DdpFacts | None
    compile: CompileFacts
    autocast_dtype: str | None
    scaler_where: Where | None
    scaler_enabled: bool | None
    checkpointing: bool | None
    """Whether torch.utils.checkpoint was used in training forwards."""
    checkpointing_where: Where | None
    model: str | None
    model_dtype: str | None
    model_parameters: int | None
    device_type: str
    """'cpu', 'cuda', ...: where the model's parameters live."""
    cores: int | None
    """min(affinity, cgroup quota) of this process."""
    torch_threads: int | None
    memory_total_bytes: int | None
    memory_peak_bytes: int | None
    memory_growth_bytes_per_step: float | None
    memory_growth_noise_bytes_per_step: float | None
    network_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    network_speed_bytes_per_s: Mapping[str, float | None] = field(default_factory=dict)
    validation_ns: Mapping[str, float] = field(default_factory=dict)
    """Part of a gap field's mean that the breakdown counts as validation, by field."""
    model_is_recurrent: bool | None = None
    """Whether it contains LSTM, GRU or RNN layers of torch; None if that was not recorded."""
    model_is_sharded: bool | None = None
    """Whether FSDP keeps the weights in parts on the ranks; None if that was not recorded."""
    start: RunStart | None = None
    """None if it was not recorded."""
    dense_table: tuple[int, int] | None = None
    """Rows and width of the largest embedding table whose gradient is dense; None without one."""
    table_rows: int | None = None
    """Rows that a micro-batch looks up in all embedding tables together, counted in the first batches; None if in
    none."""
    settings: tuple[str, ...] = ()
    """Ids of torch's debugging settings that were on at the first backward (rule debug-settings)."""
    settings_where: Mapping[str, Where] = field(default_factory=dict)
    """Where each setting was first made, by id, for those that are set by a call to torch."""
    hooks_where: tuple[Where, ...] = ()
    """Definitions of the functions that the script registered as hooks of modules before its first step."""
    batch_where: Where | None = None
    """The statement of the training loop that makes the batch, read from the source; None if the source does not show
    it."""
    run_delay_ratio: float | None = None
    """Share of the steady time in which the training thread was ready but had no core, 0..1; None if unknown."""
    excluded: Excluded | None = None
    """The part of the run outside the steady steps; None if it was not recorded."""
    warmup_columns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Every field of the warm-up steps as a column, one entry per step; empty if it was not recorded."""
    idle_cores: tuple[float, int] | None = None
    """How many of the cores that this process may run on were idle, on average over the steady time, whoever ran on the
    others; and the number of those cores. None if unknown."""
    peaks_bytes: Mapping[str, int] = field(default_factory=dict)
    """Highest resident memory by part of the run ('start', 'training', 'validation'), if it was read."""
    thread_lines: tuple[Line, ...] = ()
    """Lines of the script in which other threads of this process were at work, largest share first."""
    threads_at_work: float | None = None
    """Average number of other threads at work in lines of the script at a time; None if nobody looked."""
    device_wait_ratio: float = 0.0
    """Share of the steady step, 0..1, in which the host waits between its phases for a device that computes them; that
    time counts in the phases. 0 also if no device was timed."""
    ops: Mapping[str, Any] | None = None
    """Operators of one step with shapes and times (probe input), if a deep window recorded them."""
    products: Mapping[str, Any] | None = None
    """On an accelerator, if FLOPs were requested: operators of one step that multiply matrices, without times."""
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    """By technique id, from the probe after training."""
    applied: tuple[str, ...] = ()
    """Ids of the techniques that a strategy applied in this process, each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFailure:
    """A process that ran out of memory, or came close to it. Bytes are of ``device`` and of this process, except the
    total."""

    pid: int
    rank: int | None
    world_size: int
    device: str
    """'cpu' for the host's memory, else 'cuda' and the like."""
    is_killed: bool
    """Whether the kernel killed it; otherwise an allocation failed."""
    where: Where | None = None
    asked_bytes: int | None = None
    """Size of the allocation that failed."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    """Allocated on the device; on a host, the largest resident memory."""
    unallocated_bytes: int | None = None
    """Reserved by the allocator in blocks that did not fit the request."""
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    """Once all gradients exist."""
    optimizer_state_bytes: int | None = None
    activation_bytes: int | None = None
    """If it is known separately; otherwise it is part of what the other categories leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One training: the ranks of one run, sorted by rank. ``ranks[0]`` always exists."""

    ranks: tuple[RankAnalysis, ...]
    unit: str
    units_per_step: float | None
    accelerator: bool
    memory_failures: tuple[MemoryFailure, ...] = ()
    """The processes that ran out of memory, if the command ended because of it; includes those without a complete
    step."""
    memory_near: tuple[MemoryFailure, ...] = ()
    """The processes whose peak came close to the end of their memory, if the command did not end because of it."""
    utilization: Utilization = NOTHING
    """Of the steady steps."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """The minimum that the user wants, by name (core.utilization.TARGETS)."""
    waits: Mapping[str, float] = field(default_factory=dict)
    """Shares of the device's time in which it did not compute, by cause (diagnose/rules/low_utilization.py), from a
    kernel timeline of this run; empty without a timeline."""

    @property
    def lead(self) -> RankAnalysis:
        """The rank that single-process rules look at: rank 0, or the only process."""
        return self.ranks[0]

    def mean(self, field_name: str) -> float:
        """Mean of a row field's mean per steady step over the ranks that know it; UNKNOWN (-1) if none does."""
        known = [value for r in self.ranks if (value := r.mean[field_name]) >= 0]
        return sum(known) / len(known) if known else float(UNKNOWN)

    @property
    def step_ns(self) -> float:
        """Mean over ranks of the mean steady step."""
        return sum(r.step_mean_ns for r in self.ranks) / len(self.ranks)

    def share(self, phase: str) -> float:
        """Mean over ranks of a phase's share of the steady time, 0..1."""
        return sum(r.breakdown.share(phase) for r in self.ranks) / len(self.ranks)
