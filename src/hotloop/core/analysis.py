"""Analysis: what the rules judge. One RankAnalysis per training process, facts as typed values.

Everything here is measured or stated by the program; None means that it was not measured.
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
    """Thread CPU time of the same, and time that it was ready but other programs had the cores."""
    collate_ns: float | None = None
    iterator_start_ns: float | None = None
    """Creating an iterator: worker start included, first batch not."""
    draws_random: bool | None = None
    """Reading a batch moved a global random generator; None where that was not seen, as in workers."""
    first_wait_ns: float | None = None
    """Wait for the first batch of an iterator, mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    index: int
    name: str = "?"
    own_class: bool | None = None
    """Not torch's class of that name, or of a name that torch does not have: by hand, or another library's."""
    where: Where | None = None
    foreach: bool | None = None
    fused: bool | None = None
    capturable: bool | None = None
    groups: int | None = None
    tensors: int | None = None
    parameters: int | None = None
    """Number of elements."""
    device: str | None = None
    dtype: str | None = None
    steps: int | None = None
    state_steps: int | None = None
    """Steps that its state counted after the first one that was seen, those of a loaded checkpoint included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpFacts:
    """Settings and gradient-synchronisation statistics of one DistributedDataParallel, per synchronised backward."""

    where: Where | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None
    bucket_cap_bytes: int | None = None
    bucket_sizes: tuple[int, ...] | None = None
    """Bytes of each bucket as now in use (rebuilt ones when there are)."""
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
        """Communication that no computation hides, per synchronised backward."""
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
    """Compiled graphs that one forward runs, in the mean; None where it was not seen (other backends than inductor)."""
    graph_ns_per_forward: float | None = None
    """Time inside them; the rest of the forward is guards, Python and eager operators between them."""
    graph_backward_calls_per_forward: float | None = None
    """Graphs that the backward of one forward runs; 0 where backwards run on another thread than the training's."""
    graph_backward_ns_per_forward: float | None = None
    limit_reason: str | None = None
    """The guard that failed when torch.compile reached its limit of recompilations; None where it was not reached."""
    limit_where: Where | None = None
    limit_step: int | None = None
    """Steps that were over when it was reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A place in the user's code with its share of the stack samples of one time field, 0..1."""

    where: Where
    share_ratio: float
    samples: int
    text: str = ""
    """The source line as it stands in the file; empty when it cannot be read."""
    stack: tuple[Where, ...] = ()
    """Outermost user frame first; the last one is ``where``."""
    leaf: str = ""
    """Innermost frame of any kind as 'module:function', for telling what the line was doing."""
    calls: tuple[str, ...] = ()
    """Names called by the statement at this line and by its enclosing loop body, read from the source."""
    walks_gradients: bool = False
    """The innermost loop around it, read from the source, is over gradients or touches a ``.grad``."""
    makes_batch: bool | None = None
    """Whether the loop's statement that led here makes the next step's batch: read from what it binds, and from what
    the loss needs. False where it needs what the forward gave; None where the source does not tell."""
    beside_save: bool = False
    """It stands in the same ``if``, ``with`` or ``try`` of a loop or function as a line that was seen to save."""
    is_python: bool = False
    """Its statement runs no operator, as far as its source and its innermost frame tell."""
    before_draws_ratio: float = 0.0
    """Part of ``share_ratio`` in which a sample was read, and no random number had been drawn for it yet."""
    ways: tuple[tuple[tuple[Where, ...], float], ...] = ()
    """Every stack that was seen to lead here, with its part of ``share_ratio``, largest first; ``stack`` is the first.

    Empty where only ``stack`` is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What a process does between the import of torch and the end of its first step, beyond a usual step. Int ns."""

    before_ns: int
    """Until torch was first seen to load a batch or to run a module."""
    first_step_ns: int
    """The first step beyond the median one."""
    lines: tuple[Line, ...] = ()
    """Of the samples up to the first step's end, largest share first."""

    @property
    def ns(self) -> int:
        return self.before_ns + self.first_step_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a probe measured: a technique's time per step for the probed part, against the present settings."""

    technique: str
    saving_low_ratio: float
    saving_mid_ratio: float
    saving_high_ratio: float
    settings: Mapping[str, Any]
    evidence: Mapping[str, Any]
    basis: Basis = Basis.MEASURED
    """``simulated`` where the change itself was not timed but computed from what was, or where the probe's times differ
    from the run's; ``rule-of-thumb`` where they differ so much that the probe does not stand for the run."""
    doubt: str = ""
    """How the probe's time of the present settings disagrees with the run's; empty where it agrees."""


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
    """Every field of the steady steps as a column, one entry a step; ``validations`` beside them: how many ended."""
    samples_per_step: float | None
    tokens_per_step: float | None
    padding_ratio: float | None
    """Share of padding in the sampled batches, 0..1."""
    padding_to_longest_ratio: float | None
    """Share that would be left if every batch were padded only to its own longest sample."""
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
    """torch.utils.checkpoint was used in training forwards."""
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
    """It holds LSTM, GRU or RNN layers of torch; None where it was not recorded."""
    model_is_sharded: bool | None = None
    """FSDP keeps the weights in parts on the ranks; None where it was not recorded."""
    start: RunStart | None = None
    """None where it was not recorded."""
    dense_table: tuple[int, int] | None = None
    """Rows and width of the largest embedding table whose gradient is dense; None without one."""
    table_rows: int | None = None
    """Rows that a micro-batch looks up in all embedding tables together, counted in the first ones; None if in none."""
    settings: tuple[str, ...] = ()
    """Ids of torch's settings for finding faults that were on at the first backward (rule debug-settings)."""
    settings_where: Mapping[str, Where] = field(default_factory=dict)
    """Where a setting was first made, by its id; of those that torch sets by a call."""
    hooks_where: tuple[Where, ...] = ()
    """Definitions of the functions that the script registered as hooks of modules before its first step."""
    batch_where: Where | None = None
    """The statement of the training loop that makes the batch, read from the source; None where it does not tell."""
    run_delay_ratio: float | None = None
    """Share of the steady time in which the training thread was ready but had no core, 0..1; None where not known."""
    excluded: Excluded | None = None
    """What the steady steps leave out of the run; None where it was not recorded."""
    warmup_columns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Every field of the warm-up steps as a column, one entry a step; empty where it was not recorded."""
    idle_cores: tuple[float, int] | None = None
    """Of the cores that this process may run on how many were idle, in the mean over the steady time, whoever ran on
    the others; and how many they are. None where not known."""
    peaks_bytes: Mapping[str, int] = field(default_factory=dict)
    """Highest resident memory by part of the run ('start', 'training', 'validation'), where it was read."""
    thread_lines: tuple[Line, ...] = ()
    """Lines of the script that other threads of this process were at work in, largest share of them first."""
    threads_at_work: float | None = None
    """So many other threads were at work in lines of the script at a time, in the mean; None where nobody looked."""
    device_wait_ratio: float = 0.0
    """Share of the steady step, 0..1, in which the host waits between its phases for a device that computes them: the
    phases have that time. 0 too where no device was timed."""
    ops: Mapping[str, Any] | None = None
    """Operators of one step with shapes and times (probe input), when a deep window recorded them."""
    products: Mapping[str, Any] | None = None
    """Of an accelerator, where FLOPs were asked for: operators of one step that multiply matrices, without times."""
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    """By technique id, from the probe after training."""
    applied: tuple[str, ...] = ()
    """Ids of the techniques that a strategy applied in this process, each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFailure:
    """A process that ended because memory ran out, or came near it. Bytes are of ``device`` and of this process, but
    for the total."""

    pid: int
    rank: int | None
    world_size: int
    device: str
    """'cpu' for the host's memory, else 'cuda' and the like."""
    is_killed: bool
    """The kernel killed it; else an allocation failed."""
    where: Where | None = None
    asked_bytes: int | None = None
    """Size of the allocation that failed."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    """Allocated on the device; of a host the largest resident memory."""
    unallocated_bytes: int | None = None
    """Reserved by the allocator in blocks that did not fit the request."""
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    """Once all gradients exist."""
    optimizer_state_bytes: int | None = None
    activation_bytes: int | None = None
    """Where it is told by itself; else it is part of what the other categories leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One training: the ranks of one run, sorted by rank. ``ranks[0]`` always exists."""

    ranks: tuple[RankAnalysis, ...]
    unit: str
    units_per_step: float | None
    accelerator: bool
    memory_failures: tuple[MemoryFailure, ...] = ()
    """The processes that ended out of memory, where the command ended so; also those without a complete step."""
    memory_near: tuple[MemoryFailure, ...] = ()
    """The processes whose peak came near the end of their memory, where the command did not end so."""
    utilization: Utilization = NOTHING
    """Of the steady steps."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """What the user wants reached at least, by name (core.utilization.TARGETS)."""
    waits: Mapping[str, float] = field(default_factory=dict)
    """Shares of the device's time in which it did not compute, by cause (diagnose/rules/low_utilization.py), from a
    kernel timeline of this run; empty without one."""

    @property
    def lead(self) -> RankAnalysis:
        """The rank that single-process rules look at: rank 0, or the only process."""
        return self.ranks[0]

    def mean(self, field_name: str) -> float:
        """Mean of a row field's mean per steady step over the ranks that know it; UNKNOWN (-1) when none does."""
        known = [value for r in self.ranks if (value := r.mean[field_name]) >= 0]
        return sum(known) / len(known) if known else float(UNKNOWN)

    @property
    def step_ns(self) -> float:
        """Mean over ranks of the mean steady step."""
        return sum(r.step_mean_ns for r in self.ranks) / len(self.ranks)

    def share(self, phase: str) -> float:
        """Mean over ranks of a phase's share of the steady time, 0..1."""
        return sum(r.breakdown.share(phase) for r in self.ranks) / len(self.ranks)
