"""The hosts of a training with their clocks, and the attempts that it took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClock:
    """A host of the training, and how far its wall clock is ahead of that of the first host in the list."""

    name: str
    ranks: tuple[int, ...]
    offset_ns: int | None
    """In the middle of the steps that both share; None where nothing tells it."""
    drift_ppm: float | None
    """How much faster it runs, in parts per million; None where that is not told from 0."""
    uncertainty_ns: int | None
    """Of the offset corrected by the drift, anywhere in the shared steps."""
    basis: str
    """What the offset is estimated from, or why it is unknown."""
    stopped_after_step: int | None = None
    """Its ranks recorded no end, and others went on; None where they did not stop early."""
    stopped_before_end_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a training's ranks; a launcher starts them anew after a failure or when nodes come and go."""

    restart: int
    """Restarts that a launcher had counted by then: those without a step of any rank are no attempt here."""
    world_size: int
    ranks_count: int
    """Ranks that completed a step."""
    hosts: tuple[str, ...]
    steps: int
    """Of the rank with most."""
    first_step: int | None
    """Steps of the optimizer before this attempt's first one, by its own state; None where that does not count."""
    trained_ns: int
    """Steps of the rank with most of them, in all."""
    gap_ns: int | None = None
    """From the last step of the attempt before to this one's first; None for the first one, and where unknown."""
    repeated_steps: int | None = None
    """Steps of the attempt before that were lost with it and are made again; None as above."""
    repeated_ns: int | None = None
    repeated_basis: str | None = None
    """'optimizer state', or 'last checkpoint': the last one that was seen is taken for the one that was loaded."""
