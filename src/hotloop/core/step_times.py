"""StepTimes: what a usual step of a training takes, which forecasts are made from."""

from __future__ import annotations

from dataclasses import dataclass


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
