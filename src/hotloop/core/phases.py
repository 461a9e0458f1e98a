"""The nine phases of a step and their conservation law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
