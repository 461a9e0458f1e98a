"""Results that analyze/ makes of a trace, and trace/ sends between processes, writes to a file or keeps in a
database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .trace import TraceFacts, TraceNote

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int8s = NDArray[np.int8]
    Int64s = NDArray[np.int64]

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedTrace(Generic[R]):
    """One trace after ``reduce``: small enough to be sent between processes."""

    facts: TraceFacts
    notes: tuple[TraceNote, ...]
    result: R


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedTraces(Generic[R]):
    """All traces, in the order of their ranks; ``notes`` are about the set, each trace has its own."""

    traces: tuple[ReducedTrace[R], ...]
    notes: tuple[TraceNote, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTables:
    """A trace's steps and device work, for a database. -1 means unknown."""

    step_source: str | None
    """How steps were found; None if the trace shows none."""
    step: Int64s
    """Number of the step of each event."""
    device_rows: Int64s
    """The events that are device work; the next three columns have an entry for each."""
    kind: Int8s
    launch_row: Int64s
    operator_row: Int64s
    steps: Sequence[tuple[Any, ...]]
    """Rows of the table of steps, without the rank."""
