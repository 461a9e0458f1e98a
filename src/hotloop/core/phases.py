"""The nine phases of a step and their conservation law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import InvariantError

PHASES = (
    "input_wait",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "checkpoint",
    "validation",
    "other",
)
"""Host-side exclusive phases, in the order in which a report lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStats:
    """One phase over the steady steps of one rank (or the mean over ranks at the top of a report).

    Times are int nanoseconds per step except ``total_ns``; ``share_ratio`` is total over the total of all steps, 0..1.
    """

    total_ns: int
    share_ratio: float
    mean_ns: int
    std_ns: int
    min_ns: int
    median_ns: int
    p95_ns: int
    p99_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the steady steps went: one PhaseStats for each of PHASES.

    Refuses to exist unless all nine phases are there and the shares add to 1 within 1e-9.
    """

    phases: Mapping[str, PhaseStats]

    def __post_init__(self) -> None:
        if tuple(self.phases) != PHASES:
            raise InvariantError(f"a breakdown holds {tuple(self.phases)}, not the nine phases")
        share_sum = sum(p.share_ratio for p in self.phases.values())
        if abs(share_sum - 1.0) > 1e-9:
            raise InvariantError(f"the shares of a breakdown add to {share_sum!r}, not to 1")

    def share(self, phase: str) -> float:
        """Share of the steady time that ``phase`` took, 0..1."""
        return self.phases[phase].share_ratio

    def mean_ns(self, phase: str) -> int:
        """Mean time per step of ``phase`` in nanoseconds."""
        return self.phases[phase].mean_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """The part of one rank's run outside its steady steps, and so outside every share, cost and saving. Int ns.

    The run begins with the first step and ends with the recording. ``warmup_ns``, ``later_ns`` and ``tail_ns`` sum to
    ``total_ns``, which is ``ratio`` of the run.
    """

    count: int
    """Completed steps that are not steady."""
    total_ns: int
    ratio: float
    warmup_count: int
    warmup_ns: int
    later_count: int
    """Steps of a profiler or of a deep window."""
    later_ns: int
    """Their time, and that of rows that were lost."""
    tail_ns: int
    """After the last step; 0 if the recording breaks off and no sample shows more."""
    tail_phase: str | None = None
    """The phase that takes more than half of it; None if there is none."""
    tail_phase_ns: Mapping[str, int] = field(default_factory=dict)
    """The tail by the phases that were seen in it; they sum to ``tail_ns``, to within a nanosecond each."""
    startup_ns: int | None
    """From the start of the process to its first step: before the run. None if unknown."""
    phase_ns: Mapping[str, int]
    """The left-out steps by PHASES."""

    compile_ns: int
    """Time of the left-out steps in which torch.compile was at work, in whatever phase."""

    @property
    def run_ns(self) -> int:
        return round(self.total_ns / self.ratio) if self.ratio > 0 else 0

    @property
    def main_part(self) -> str | None:
        """What takes more than half of the left-out steps' time: ``compilation`` or a phase; None if nothing does."""
        half_ns = sum(self.phase_ns.values()) / 2
        parts = {"compilation": self.compile_ns, **self.phase_ns}
        return next((name.replace("_", " ") for name, part_ns in parts.items() if part_ns > half_ns), None)
