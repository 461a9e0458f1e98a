"""The measurements of a trial, which tuning compares, and the usual step, which forecasts are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .applied import AppliedTechnique


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Measurements of one trial (all its ranks) over its steady steps. None if nothing was counted."""

    step_ns: float
    steady_count: int
    samples_per_step: float | None
    tokens_per_step: float | None
    peak_bytes: int | None
    one_time_ns: int | None
    """From the first event to the first steady step, beyond as many steady steps."""
    breakdown: Mapping[str, float] = field(default_factory=dict)
    losses: tuple[float | None, ...] = ()
    losses_unseen: str = ""
    norms: tuple[tuple[int, float | None], ...] = ()
    """Gradient norms of some steps: the row's number from 0, and the value; None if a GradScaler skipped it."""
    norms_unseen: str = ""
    applied: tuple[AppliedTechnique, ...] = ()
    rank_peak_bytes: int | None = None
    """Peak memory of the rank that needs most; ``peak_bytes`` is the sum over all ranks of a host."""
    rank_count: int | None = None
    others_ratio: float | None = None
    """Share of the cores' time that other programs used during its steady steps; None if that could not be seen."""
    pace_ns: float | None = None
    """Mean time of a fixed piece of work between its steady steps; None if that was not timed, or if processes of the
    training's own may slow it."""
    threads_count: int | None = None
    """Compute threads of a rank."""
    work_drifts: bool = False
    """Whether the tokens or samples of a step grow or shrink over its steady steps."""
    whole_ns: int | None = None
    """Its steps from the first one on, including the warm-up: for comparing a cost that each start pays once."""
    whole_count: int = 0
    """Number of steps in ``whole_ns``."""
    whole_others_ratio: float | None = None
    """Like ``others_ratio``, from the first step to the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Means per steady step of the process that is probed, in ns, and the number of batches per step."""

    step_ns: float
    forward_ns: float
    backward_ns: float
    optimizer_ns: float
    input_ns: float
    """Waiting for batches and moving them, which grows with the batch."""
    other_ns: float = 0.0
    apart_ns: float = 0.0
    """Validation and checkpoints, which come once per number of samples, whatever the batch."""
    exposed_comm_ns: float | None = None
    """Per step; the part of backward that waits for other ranks."""
    micro_batches: float = 1.0
    noise_ratio: float = 0.0
    largest_factor: float = 2.0
    """The multiple of the batch that fits into the host's memory, and into a step whose micro-batches are joined."""
    batch_size: int | None = None
    """Samples of one backward, as counted in the model's inputs; None if they vary."""

    @property
    def train_ns(self) -> float:
        """Forward and backward without waiting for other ranks."""
        return max(1.0, self.forward_ns + self.backward_ns - (self.exposed_comm_ns or 0.0))
