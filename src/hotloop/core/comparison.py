"""Comparison: why a step of one side takes longer or shorter than a step of the other; the contract hotloop.diff/1.

Times are int nanoseconds per step, means over steps and ranks. None means that the sides do not contain the value; it
never means zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from .environment import EnvironmentChange
from .errors import InvariantError
from .graph import DiffRow, DiffTerm, DiffTerms
from .utilization import Utilization

COMPARISON_SCHEMA = "hotloop.diff/1"
"""Version of the contract. Fields are added, never changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffSide:
    """What was compared on one side."""

    name: str
    """As the user gave it."""
    kind: str
    """'run' or 'traces'."""
    ranks_count: int
    """Number of processes in the means."""
    world_size: int | None
    steps_count: int
    """Number of each rank's steps in the means."""
    step_source: str
    """What begins or ends a step."""
    device: str | None
    """Type of the device: 'cpu', 'cuda', ...; for traces, 'cpu' if no device work was recorded, else 'device'."""
    samples_per_step: float | None
    """Of all ranks together."""
    tokens_per_step: float | None
    utilization: Utilization | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitChange:
    """The time of a step over the work in it."""

    unit: str
    """'sample' or 'token'."""
    before_count: float
    """Per step, of all ranks together."""
    after_count: float
    before_ns: float
    after_ns: float
    delta_ns: float
    half_width_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides compared. At least one of ``step`` and ``device`` is present."""

    tool_version: str
    before: DiffSide
    after: DiffSide
    warnings: tuple[str, ...]
    """What the reader has to know before reading any number."""
    step: DiffTerms | None
    """The step on the host, by phase (core.phases.PHASES); None if a side shows no host activity."""
    per_unit: UnitChange | None
    """None unless samples or tokens per step are known and differ."""
    device: DiffTerms | None
    """The device window of a step by part; None if a side shows no device."""
    kernels: tuple[DiffRow, ...]
    ops: tuple[DiffRow, ...]
    notes: tuple[str, ...]
    environment: tuple[EnvironmentChange, ...] = ()
    """What differs between the environments of two runs, as far as both recorded them."""

    def __post_init__(self) -> None:
        if self.step is None and self.device is None:
            raise InvariantError("a comparison of nothing")

    @property
    def lead(self) -> DiffTerm:
        """The main change of the comparison: of the step, else of the device window."""
        terms = self.step or self.device
        assert terms is not None
        return terms.whole

    @property
    def is_same(self) -> bool:
        """Whether there is no difference at all, in every term, kernel and operator."""
        sets = [terms for terms in (self.step, self.device) if terms is not None]
        moved = any(term.delta_ns for terms in sets for term in (terms.whole, *terms.terms))
        return not moved and not any(row.delta_ns for row in (*self.kernels, *self.ops))
