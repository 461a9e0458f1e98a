"""Results that analyze/ makes of a trace, and trace/ sends between processes, writes to a file or keeps in a
database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

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
