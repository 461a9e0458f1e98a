"""What a trial measured, which tuning compares, and the usual step, which forecasts are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .applied import AppliedTechnique


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one process of a trial (all its ranks) measured over its steady steps. None where nothing was counted."""

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
    """Gradient norms of some steps: the row's number from 0, and the value; None where a GradScaler skipped it."""
    norms_unseen: str = ""
    applied: tuple[AppliedTechnique, ...] = ()
    rank_peak_bytes: int | None = None
    """Peak memory of the rank that needs most; ``peak_bytes`` is of all ranks of a host together."""
    rank_count: int | None = None
    form: str = ""
    """What the training was seen to be: its ranks, DistributedDataParallel, the dtype of parameters and of autocast."""
    others_ratio: float | None = None
    """Share of the cores' time that other programs used during its steady steps; None where that was not to be seen."""
    pace_ns: float | None = None
    """Mean time of a fixed piece of work between its steady steps; None where that was not timed, or where processes of
    the training's own may slow it."""
    threads_count: int | None = None
    """Compute threads of a rank."""
    exchanges: bool | None = None
    """Whether the ranks were seen to exchange anything: DistributedDataParallel or collectives of the training."""
    work_drifts: bool = False
    """Whether the tokens or samples of a step grow or shrink over its steady steps."""
    whole_ns: int | None = None
    """Its steps from the first one on, warm-up included: what a cost that each start pays once is compared by."""
    whole_count: int = 0
    """How many steps ``whole_ns`` is of."""
    whole_others_ratio: float | None = None
    """As ``others_ratio``, from the first step to the last."""
    duration_s: float = 0.0
    """How long it took, from making its working copy to reading what it left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Means per steady step of the process that is probed, in ns, and how many batches a step has."""

    step_ns: float
    forward_ns: float
    backward_ns: float
    optimizer_ns: float
    input_ns: float
    """Waiting for batches and moving them, which grows with the batch."""
    other_ns: float = 0.0
    apart_ns: float = 0.0
    """Validation and checkpoints, which come once in so many samples whatever the batch."""
    exposed_comm_ns: float | None = None
    """Per step; the part of backward that waits for other ranks."""
    micro_batches: float = 1.0
    noise_ratio: float = 0.0
    largest_factor: float = 2.0
    """So many times the batch fit into the memory of the host, and into a step whose micro-batches are joined."""
    batch_size: int | None = None
    """Samples that one backward takes, as counted in the model's inputs; None when that is not one number."""

    @property
    def train_ns(self) -> float:
        """Forward and backward without waiting for other ranks."""
        return max(1.0, self.forward_ns + self.backward_ns - (self.exposed_comm_ns or 0.0))
