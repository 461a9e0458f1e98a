"""TraceAnalysis: the input of the rules if the evidence is files that a profiler wrote, not a recording of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .analysis import Forecast
from .errors import InvariantError
from .graph import DeviceMemoryTimeline
from .hosts import HostClock
from .timeline import DevicePartition, IdleCauses, RankTimeline, StepIdle
from .trace import TraceFacts
from .utilization import Utilization, mean_utilization


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPath:
    """The critical path of one step, summed up: what would have to be faster for the step to be shorter."""

    step: int
    paced_by: str
    """'host' or 'device': the one whose end ends the step."""
    bound_ns: Mapping[str, int]
    """Time by what bounds it (core.graph.BOUND_KINDS); sums to the step."""
    parts: tuple[tuple[str, str, int], ...]
    """(name, kind, ns), the longest first."""
    has_sync_events: bool
    """If False, waits for the device were inferred, and the path is a guess where they matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRank:
    """One file: one process, nearly always one rank."""

    facts: TraceFacts
    timeline: RankTimeline
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    """By change ('no-input-wait', 'no-host-syncs', ...): the forecast of a step's re-timed graph for it."""

    path: StepPath | None = None
    """Of the complete step of median length; None if there is none or it is too large."""
    memory: tuple[DeviceMemoryTimeline, ...] = ()
    """The allocators of its devices, accelerators first; empty if the file has no memory events."""

    @property
    def complete_steps_count(self) -> int:
        """Steps that the recording contains in full; 0 if the file shows no steps."""
        if self.timeline.step_source == "whole trace":
            return 0
        return sum(1 for step in self.timeline.steps if step.is_complete)

    @property
    def step_ns(self) -> float:
        """Mean complete step on the host, else the mean window of the device, ns; the whole trace without steps."""
        complete = [step for step in self.timeline.steps if step.is_complete] or list(self.timeline.steps)
        lengths = [step.host_ns for step in complete if step.host_ns > 0]
        if lengths:
            return sum(lengths) / len(lengths)
        return float(sum(d.partition.window_ns for d in self.timeline.devices[:1]))

    @property
    def partition(self) -> DevicePartition | None:
        """The busiest device over the whole trace; None without device work."""
        return self.timeline.devices[0].partition if self.timeline.devices else None

    @property
    def utilization_window_ns(self) -> int:
        """The window of its utilization: the steps that are complete on the device, else the entire trace; 0 without
        one."""
        parts = [step.partition for step in self.timeline.steps if step.is_whole_on_device] or [self.partition]
        return sum(part.window_ns for part in parts if part is not None)

    @property
    def judged(self) -> DevicePartition | None:
        """The busiest device in its complete steps, or over the entire trace if that is the same or no step is
        known."""
        steps = self.timeline.in_steps
        return self.partition if steps is None else steps.partition

    @property
    def judged_idle(self) -> IdleCauses | None:
        """Why it idled in that time."""
        steps = self.timeline.in_steps
        return self.timeline.idle if steps is None else steps.idle

    @property
    def judged_pageable_ns(self) -> int | None:
        """Its copies from or to pageable memory in that time."""
        steps = self.timeline.in_steps
        return self.timeline.ratios.pageable_copies_ns if steps is None else steps.pageable_copies_ns

    @property
    def judged_steps_count(self) -> int:
        """Steps in this time; 0 if the file shows no steps."""
        steps = self.timeline.in_steps
        if self.timeline.step_source == "whole trace":
            return 0
        return len(self.timeline.steps) if steps is None else steps.steps_count

    @property
    def trains(self) -> bool | None:
        """Whether a backward or an optimizer was seen; None if the file shows no operators."""
        if not self.timeline.ops:
            return None
        return any(phase in ("backward", "optimizer") for phase in self.timeline.anatomy.phases_seen)

    def share(self, phase: str) -> float | None:
        """Share of a host phase, 0..1; None if the file shows no host activity."""
        breakdown = self.timeline.anatomy.breakdown
        return None if breakdown is None else breakdown.share(phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWait:
    """The time that one rank waits in the collectives that all ranks share, ns over the matched collectives."""

    rank: int | None
    wait_ns: int
    last_arrivals_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Some changes, re-timed on the dependency graph of some consecutive steps of one rank. Times are ns."""

    rank: int | None
    source: str
    """The file."""
    changes: tuple[str, ...]
    """As they were requested, all made together."""
    basis: str
    """'simulated', or 'rule-of-thumb' if the unchanged replay misses the measured step by more than 2 %."""
    basis_reason: str
    steps_count: int
    paced_by: str
    """'host' or 'device': which of them the unchanged steps are counted on."""
    measured_step_ns: int
    replayed_step_ns: int
    """Of the unchanged steps."""
    step_ns: int
    low_step_ns: int
    """The best case: waits that the trace does not explain disappear with the change."""
    high_step_ns: int
    """The worst case: they stay as long as they were."""
    saving_low_ratio: float
    saving_mid_ratio: float
    """1 - new/old time per step; below 0 if the change makes it slower."""
    saving_high_ratio: float
    bound_by: str
    """What sets the pace after the change: 'host' or 'device'."""
    inferred_edges: int
    """Edges of the graph that are guessed from times; all others are recorded facts."""
    edges_count: int

    def __post_init__(self) -> None:
        if not self.low_step_ns <= self.step_ns <= self.high_step_ns:
            raise InvariantError(f"a forecast outside of its own range: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAnalysis:
    """The files of one training, sorted by rank. ``ranks[0]`` always exists."""

    ranks: tuple[TraceRank, ...]
    waits: tuple[RankWait, ...] = ()
    """Empty with a single rank, or if no collective could be matched."""
    matched_count: int = 0
    transfer_ns: int | None = None
    """Time from the last arrival to the end, over the matched collectives, mean over ranks."""
    span_ns: int | None = None
    """Length of the matched collectives' span, first start to last end."""
    hosts: tuple[HostClock, ...] = ()
    """Empty with a single rank, and if a file does not name its host."""
    what_if: tuple[WhatIf, ...] = ()
    """One for each change and rank, then all changes together; empty unless requested."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """The minimum that the user wants, by name (core.utilization.TARGETS)."""

    @property
    def utilization(self) -> Utilization:
        """Mean over the ranks, by the length of their windows."""
        windows = [float(rank.utilization_window_ns) for rank in self.ranks]
        return mean_utilization([rank.timeline.utilization for rank in self.ranks], windows)

    @property
    def lead(self) -> TraceRank:
        return self.ranks[0]

    @property
    def step_ns(self) -> float:
        """Mean over ranks of the mean step."""
        return sum(r.step_ns for r in self.ranks) / len(self.ranks)


PARTITION_KEYS = (
    "window_ns",
    "busy_ns",
    "idle_ns",
    "compute_ns",
    "comm_ns",
    "mem_ns",
    "overlap_ns",
    "exposed_comm_ns",
    "exposed_mem_ns",
)


def format_device(rank: TraceRank) -> dict[str, Any] | None:
    """The busiest device over the entire trace, in the form of the report's JSON; None without device work."""
    if not rank.timeline.devices:
        return None
    device = rank.timeline.devices[0]
    return {
        **_format_partition(device.partition),
        "gpu_events": device.gpu_events,
        "unlinked_events": device.unlinked_events,
    }


def format_step_windows(rank: TraceRank) -> list[dict[str, Any]]:
    """The device windows of the steps, in the form of the report's JSON; empty if the file shows no steps."""
    if rank.timeline.step_source == "whole trace":
        return []
    return [
        {
            "index": step.index,
            "start_ns": step.device_start_ns,
            **_format_partition(step.partition),
            "gpu_events": step.gpu_events,
            "unlinked_events": step.unlinked_events,
            "idle_causes": _format_idle(step.idle),
        }
        for step in rank.timeline.steps
    ]


IDLE_KEYS = (
    "sync_drained_ns",
    "launch_late_ns",
    "queue_dependent_ns",
    "launch_latency_ns",
    "unknown_ns",
)
"""These sum to the idle time of the window."""
IDLE_PARTS = ("queue_comm_ns", "queue_event_ns", "queue_graph_ns", "queue_untold_ns", "late_data_wait_ns")
"""The first four sum to queue_dependent_ns, the last is a part of launch_late_ns."""


def _format_idle(idle: StepIdle | None) -> dict[str, Any] | None:
    if idle is None:
        return None
    values: dict[str, Any] = {key: getattr(idle, key) for key in (*IDLE_KEYS, *IDLE_PARTS)}
    for key, row in (("blamed", idle.blamed), ("blamed_python", idle.blamed_python)):
        values[key] = None if row is None else {"name": row.name, "cause": row.cause, "total_ns": row.total_ns}
    return values


def _format_partition(partition: DevicePartition | None) -> dict[str, int | None]:
    return {key: None if partition is None else getattr(partition, key) for key in PARTITION_KEYS}
