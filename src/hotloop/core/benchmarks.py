"""BenchmarkResult: the tables of one benchmark; the contract hotloop.bench/1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .findings import Value

BENCH_SCHEMA = "hotloop.bench/1"
"""Version of the contract. Fields are added, never changed."""

Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """Rows are mappings from column to value; a column's name ends in its unit. None is unknown."""

    tool_version: str
    benchmark: str
    """train, loader, scaling or comm."""
    subject: str
    """What was measured, as the user named it."""
    tables: tuple[tuple[Row, ...], ...]
    facts: Row = field(default_factory=dict)
    machine: Row = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    """The conclusions from the figures, most important first; empty if nothing is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRun:
    """One launch. ``units_per_step`` is the sum over all ranks; None means unknown."""

    ranks: int
    step_ns: float
    unit: str
    units_per_step: float | None
    exposed_ns: float | None
    """Communication per step that does not overlap with computation, mean over ranks."""
    threads: int | None
    latency_ns: float | None = None
    """The least that the step's all-reduces of gradients cost, however few bytes they carry."""
