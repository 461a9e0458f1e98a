"""The hosts of a training with their clocks, and the attempts that it took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClock:
    """A host of the training, and how far its wall clock is ahead of that of the first host in the list."""

    name: str
    ranks: tuple[int, ...]
    offset_ns: int | None
    """In the middle of the steps that both share; None if nothing shows it."""
    drift_ppm: float | None
    """How much faster it runs, in parts per million; None if it does not differ from 0 beyond its error."""
    uncertainty_ns: int | None
    """Of the offset corrected by the drift, anywhere in the shared steps."""
    basis: str
    """The basis of the offset's estimate, or why it is unknown."""
    stopped_after_step: int | None = None
    """Whether its ranks recorded no end while others went on; None if they did not stop early."""
    stopped_before_end_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a training's ranks; a launcher starts them again after a failure or when nodes come and go."""

    restart: int
    """Restarts that a launcher had counted by then; those without a step of any rank do not count as attempts here."""
    world_size: int
    ranks_count: int
    """Ranks that completed a step."""
    hosts: tuple[str, ...]
    steps: int
    """Of the rank with most."""
    first_step: int | None
    """Optimizer steps before this attempt's first step, by the optimizer's own state; None if that does not count
    them."""
    trained_ns: int
    """Total steps of the rank with most of them."""
    gap_ns: int | None = None
    """From the last step of the previous attempt to the first of this one; None for the first attempt, and if
    unknown."""
    repeated_steps: int | None = None
    """Steps of the previous attempt that were lost with it and are repeated; None as above."""
    repeated_ns: int | None = None
    repeated_basis: str | None = None
    """'optimizer state', or 'last checkpoint': the last checkpoint that was seen is assumed to be the one loaded."""
