"""PlanReport: the needs of a planned training, and whether it fits; the contract hotloop.plan/1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .findings import Value
from .prediction import (
    CostPrediction,
    MemoryPrediction,
    StepPrediction,
)

PLAN_SCHEMA = "hotloop.plan/1"
"""Version of the contract. Fields are added, never changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMemory:
    """Bytes on the device that needs most. peak = states + activations + other."""

    peak_bytes: int
    states_bytes: int
    activations_bytes: int
    other_bytes: int
    """Logits, buffers and context."""
    capacity_bytes: int
    params_bytes: int
    master_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    logits_bytes: int
    buffers_bytes: int
    context_bytes: int
    layer_bytes: int
    """Activations that one layer keeps, of one micro-batch."""
    layer_parts_bytes: Mapping[str, int]
    """The same by class of module."""
    when: str
    margin_ratio: float
    """Of the capacity: what remains of it; if below 0, what is missing."""
    error_ratio: float
    is_tight: bool
    """Whether it fits, but by less than the error of the forecast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """Time of one optimizer step."""

    low_ns: float
    mid_ns: float
    high_ns: float
    compute_ns: float
    exposed_ns: float
    bubble_ns: float
    optimizer_ns: float
    offload_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change of the run, planned again."""

    id: str
    """batch | accumulation | precision | optimizer | recompute | attention | loss | sharding | tensor-parallel |
    offload | together"""
    changes: Mapping[str, Value]
    """Keys of the workload file with their new values."""
    saved_bytes: int
    peak_bytes: int
    fits: bool
    slower_ratio: float | None
    """Time per token over the present one, minus 1; None if no time model was asked."""
    numerics: str
    """exact | reordered | lossy, as of techniques."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOption:
    """One configuration that a search found."""

    device: str
    gpus: int
    changes: Mapping[str, Value]
    """Keys of the workload file's [run]."""
    peak_bytes: int
    step_ns: float
    tokens_per_s: float
    mfu_ratio: float
    hours: float
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSearch:
    """Configurations that fit, best first."""

    goal: str
    """time | cost | memory"""
    tried: int
    fitting: int
    options: tuple[PlannedOption, ...]
    front: tuple[PlannedOption, ...]
    """No other is both faster and cheaper; fastest first. Empty if no price is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A planned training. None for what the time and cost models did not give."""

    tool_version: str
    name: str
    gpu: str
    device: str
    gpus: int
    params: int
    micro_batches: int
    data_ranks: int
    tokens_per_step: int | None
    """None for a traced module: its batch may hold anything."""
    fits: bool
    memory: PlannedMemory
    step: PlannedRange | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu_ratio: float | None = None
    hfu_ratio: float | None = None
    cost: CostPrediction | None = None
    search: PlannedSearch | None = None
    remedies: tuple[Remedy, ...] = ()
    run: Mapping[str, Value] = field(default_factory=dict)
    """The settings used for planning, including defaults."""
    basis: Mapping[str, str] = field(default_factory=dict)
    """Part -> formula, traced, calibrated or measured."""
    is_traced: bool = False
    """Whether the memory is that of a module on fake tensors, not of a formula for its layers."""
    notes: tuple[str, ...] = ()
    """What was assumed, for the reader."""


def make_memory(found: MemoryPrediction, layer_parts: Mapping[str, float]) -> PlannedMemory:
    return PlannedMemory(
        peak_bytes=found.peak_bytes,
        states_bytes=found.states_bytes,
        activations_bytes=found.activations_bytes,
        other_bytes=found.logits_bytes + found.buffers_bytes + found.context_bytes,
        capacity_bytes=found.capacity_bytes,
        params_bytes=found.params_bytes,
        master_bytes=found.master_bytes,
        gradients_bytes=found.gradients_bytes,
        optimizer_bytes=found.optimizer_bytes,
        logits_bytes=found.logits_bytes,
        buffers_bytes=found.buffers_bytes,
        context_bytes=found.context_bytes,
        layer_bytes=found.layer_bytes,
        layer_parts_bytes={name: round(size) for name, size in layer_parts.items()},
        when=found.when,
        margin_ratio=1 - found.peak_bytes / found.capacity_bytes,
        error_ratio=found.error_ratio,
        is_tight=found.fits and not found.fits_surely,
    )


def make_range(found: StepPrediction) -> PlannedRange:
    return PlannedRange(
        low_ns=found.low_ns,
        mid_ns=found.mid_ns,
        high_ns=found.high_ns,
        compute_ns=found.compute_ns,
        exposed_ns=found.exposed_ns,
        bubble_ns=found.bubble_ns,
        optimizer_ns=found.optimizer_ns,
        offload_ns=found.offload_ns,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroStage:
    """Model states on one device at one stage of ZeRO; stage 0 is data-parallel training without sharding."""

    stage: int
    params_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    """With the float32 copy of the parameters."""
    total_bytes: float
