"""The results of a plan: memory of one device, time of one step, cost; each with its basis and a validated range."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """Bytes on the device that needs most, at the moment of its peak."""

    params_bytes: int
    """Weights that the layers compute with."""
    master_bytes: int
    """Float32 copies of the weights that the optimizer updates, if it keeps any in addition to them."""
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    """The output, its float32 copy, and its gradient, while the loss is computed."""
    buffers_bytes: int
    """Buckets, gathered layers, work space."""
    context_bytes: int
    """Memory of the driver, its libraries and the communicators, and losses to fragmentation."""
    capacity_bytes: int
    layer_bytes: int
    """Activations that one layer keeps, of one micro-batch."""
    when: str
    """The moment of the peak: forward | backward | loss | optimizer."""
    error_ratio: float
    """90 % of the published rows that were not fitted are within this share of the prediction."""
    basis: str

    @property
    def states_bytes(self) -> int:
        """Parameters, master weights, gradients and optimizer states."""
        return self.params_bytes + self.master_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def peak_bytes(self) -> int:
        return self.states_bytes + self.activations_bytes + self.logits_bytes + self.buffers_bytes + self.context_bytes

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes

    @property
    def fits_surely(self) -> bool:
        """Whether it also fits at the upper end of the range."""
        return self.peak_bytes * (1 + self.error_ratio) <= self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """Time of one optimizer step, in ns, and its parts, which sum to ``mid_ns``."""

    low_ns: float
    mid_ns: float
    high_ns: float
    compute_ns: float
    exposed_ns: float
    """Communication that does not overlap with computation."""
    bubble_ns: float
    """A pipeline rank waits for the others."""
    optimizer_ns: float
    offload_ns: float
    tokens_per_s_per_gpu: float
    mfu_ratio: float
    """Model FLOPs (6 N + 12 L h s per token, non-causal; PaLM, appendix B) over the device's dense peak."""
    hfu_ratio: float
    """The same, including what is computed twice."""
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPrediction:
    """One checkpoint of weights and optimizer states, written while training waits."""

    total_bytes: int
    rank_bytes: int
    """Of one rank that writes."""
    ranks: int
    """That write; the others hold copies."""
    stall_s: float | None
    """None if the bandwidth of the storage is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPrediction:
    """Of one training: ``tokens`` at the predicted rate, with failures."""

    tokens: int
    hours: float
    """Wall time with checkpoints, failures and restarts."""
    compute_hours: float
    """Wall time without them."""
    gpu_hours: float
    usd: float | None
    """None if no price is known."""
    energy_kwh: float | None
    price: str
    """Which price, from where and when."""
    waste_ratio: float | None = None
    """Share of ``hours`` that trains nothing: checkpoints, restarts, and what is computed twice."""
    mtbf_s: float | None = None
    """Mean time between two interruptions of this training."""
    checkpoint: CheckpointPrediction | None = None
    interval_s: float | None = None
    """The time of computation between two checkpoints that wastes least (Daly); None if checkpoints cost nothing."""
    interval_steps: int | None = None
    stall_per_step_ns: float | None = None
    """Time that checkpoints add to a step on average; None if their stall is unknown."""
    notes: tuple[str, ...] = ()
    """What was assumed because it is unknown."""
