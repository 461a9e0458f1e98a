"""TraceAnalysis: what the rules judge when the evidence is files that a profiler wrote, not a recording of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .analysis import Forecast
from .timeline import DevicePartition, RankTimeline
from .trace import TraceFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPath:
    """The critical path of one step, summed up: what would have to be faster for the step to be shorter."""

    step: int
    paced_by: str
    """'host' or 'device': whose end makes the step end."""
    bound_ns: Mapping[str, int]
    """Time by what bounds it (core.graph.BOUND_KINDS); sums to the step."""
    parts: tuple[tuple[str, str, int], ...]
    """(name, kind, ns), the longest first."""
    has_sync_events: bool
    """False: waits for the device were inferred, and the path is a guess where they matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRank:
    """One file: one process, nearly always one rank."""

    facts: TraceFacts
    timeline: RankTimeline
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    """By change ('no-input-wait', 'no-host-syncs', ...): what the re-timed graph of a step says of it."""

    path: StepPath | None = None
    """Of the complete step of median length; None where there is none or it is too large."""

    @property
    def complete_steps_count(self) -> int:
        """Steps that the recording holds whole; 0 when the file shows no steps."""
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

    def share(self, phase: str) -> float | None:
        """Share of a host phase, 0..1; None when the file shows no host activity."""
        breakdown = self.timeline.anatomy.breakdown
        return None if breakdown is None else breakdown.share(phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWait:
    """What one rank waits in the collectives that all ranks share, ns over the matched collectives."""

    rank: int | None
    wait_ns: int
    last_arrivals_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAnalysis:
    """The files of one training, sorted by rank. ``ranks[0]`` always exists."""

    ranks: tuple[TraceRank, ...]
    waits: tuple[RankWait, ...] = ()
    """Empty with a single rank, or when no collective could be matched."""
    matched_count: int = 0
    transfer_ns: int | None = None
    """Time from the last arrival to the end, over the matched collectives, mean over ranks."""
    span_ns: int | None = None
    """Time that the matched collectives lie apart, first start to last end."""

    @property
    def lead(self) -> TraceRank:
        return self.ranks[0]

    @property
    def step_ns(self) -> float:
        """Mean over ranks of the mean step."""
        return sum(r.step_ns for r in self.ranks) / len(self.ranks)
