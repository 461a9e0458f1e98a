"""What held the memory of a process, and what is known about its training -> remedies by bytes saved and time lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hotloop.core.analysis import MemoryFailure, RankAnalysis
from hotloop.core.findings import Fix, Value
from hotloop.core.memory_snapshot import MemoryFile
from hotloop.core.trace_analysis import TraceRank
from hotloop.judge.diagnose.loading import main_loader

NOISE_MULTIPLE = 3.0
"""Growth below this many standard errors is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySituation:
    """The facts that decide which remedies apply; None if unknown."""

    growth_bytes: float | None = None
    """Total growth of memory, beyond noise."""
    samples_count: float | None = None
    """Of a micro-batch."""
    recomputes: bool | None = None
    forward_ratio: float | None = None
    """Share of the step's time."""
    is_low_precision: bool | None = None
    is_sharded: bool | None = None


@dataclass(frozen=True, slots=True)
class MemoryRemedy:
    fix: Fix
    saved_bytes: float | None
    """Upper bound; None if the saving was not measured."""
    time_cost_ratio: float | None = None
    """Of the step's time; None if unknown."""

    @property
    def worth(self) -> tuple[bool, float]:
        """Bytes, less the share of the time that they cost; unknown values come last."""
        return self.saved_bytes is None, -(self.saved_bytes or 0.0) * (1.0 - (self.time_cost_ratio or 0.0))


def describe_situation(rank: RankAnalysis | None) -> MemorySituation:
    """Of a recorded process; ``rank`` is None if it completed no step."""
    if rank is None:
        return MemorySituation()
    growth, loader = growth_per_step(rank), main_loader(rank)
    samples = None if not rank.samples_per_step else rank.samples_per_step / max(1.0, rank.mean["backwards"])
    low = None if rank.model_dtype is None else rank.model_dtype != "float32"
    return MemorySituation(
        growth_bytes=None if growth is None else float(growth * rank.steps),
        samples_count=float(loader.batch_size) if loader is not None and loader.batch_size else samples,
        recomputes=bool(rank.checkpointing),
        forward_ratio=rank.breakdown.share("forward"),
        is_low_precision=True if rank.autocast_dtype is not None else low,
        is_sharded=rank.model_is_sharded,
    )


def describe_traced_situation(rank: TraceRank) -> MemorySituation:
    """Of a profiler's file."""
    again = rank.timeline.ratios.recompute_ratio
    return MemorySituation(recomputes=None if again is None else again > 0, forward_ratio=rank.share("forward"))


def growth_per_step(rank: RankAnalysis) -> int | None:
    """Bytes per step by which memory grew, beyond noise."""
    slope, noise = rank.memory_growth_bytes_per_step, rank.memory_growth_noise_bytes_per_step
    return round(slope) if slope is not None and noise is not None and slope > NOISE_MULTIPLE * noise else None


def rest_bytes(held: MemoryFailure) -> int | None:
    """What is neither parameter nor gradient nor optimizer state: activations, batches, work space."""
    parts = (held.parameter_bytes, held.gradient_bytes, held.optimizer_state_bytes)
    if held.activation_bytes is not None or held.used_bytes is None or None in parts:
        return held.activation_bytes
    return max(0, held.used_bytes - sum(part or 0 for part in parts))


def held_by_category(
    category_bytes: Mapping[str, int] | None, device: str, world_size: int, total_bytes: int | None = None
) -> MemoryFailure:
    """A peak by memory_snapshot.MEMORY_CATEGORIES, as what a process held; a value without events is unknown, not
    zero."""
    told = category_bytes or {}
    untold = category_bytes is None or told.get("unknown", 0) > 0

    def known(*names: str) -> int | None:
        found = sum(told.get(name, 0) for name in names)
        return None if untold and not found else found

    return MemoryFailure(
        pid=0,
        rank=None,
        world_size=world_size,
        device=device,
        is_killed=False,
        total_bytes=total_bytes,
        used_bytes=sum(told.values()) or None,
        parameter_bytes=known("parameter"),
        gradient_bytes=known("gradient"),
        optimizer_state_bytes=known("optimizer_state"),
        activation_bytes=known("activation", "autograd_detail", "temporary", "input"),
    )


def list_failures(file: MemoryFile) -> tuple[MemoryFailure, ...]:
    """Allocations of a snapshot that failed. The categories are what the device held at its peak."""
    peaks = {one.device: one.peak for one in file.devices}
    failures = []
    for one in file.out_of_memory:
        peak, used, reserved = peaks.get(one.device), one.requested_bytes, one.reserved_bytes
        held = held_by_category(None if peak is None else peak.by_category, "cuda", 1)
        failures.append(
            replace(
                held,
                where=one.where,
                asked_bytes=one.failed_bytes,
                free_bytes=one.device_free_bytes,
                used_bytes=held.used_bytes if used is None else used,
                unallocated_bytes=None if reserved is None or used is None else max(0, reserved - used),
            )
        )
    return tuple(failures)


def rank_remedies(held: MemoryFailure, known: MemorySituation) -> list[MemoryRemedy]:
    """The remedies that apply, most bytes for the least time first; ties in the order of preference."""
    found = []

    def offer(technique: str, saved: float | None, cost: float | None = None) -> None:
        found.append(MemoryRemedy(Fix(technique=technique), saved, cost))

    state, gradients, rest = held.optimizer_state_bytes, held.gradient_bytes, rest_bytes(held)
    if known.growth_bytes is not None:
        offer("detach-kept-tensors", known.growth_bytes, 0.0)
    if held.unallocated_bytes is not None and held.unallocated_bytes >= max(1, held.asked_bytes or 0):
        offer("expandable-segments", held.unallocated_bytes, 0.0)
    samples = known.samples_count
    if samples is None or samples > 1:
        smallest = 0.5 if samples is None else 1.0 / samples
        for technique in ("accumulation", "smaller-batch"):
            offer(technique, None if rest is None else rest * (1.0 - smallest))
    if not known.recomputes:
        # Backward computes the forward again.
        offer("activation-checkpointing", rest, known.forward_ratio)
    if not known.is_low_precision:
        offer("bf16-autocast", None if rest is None else 0.5 * rest)
    if held.world_size > 1 and not known.is_sharded:
        others = 1.0 - 1.0 / held.world_size
        offer("zero-optimizer", None if state is None else state * others)
        parts = (held.parameter_bytes, gradients, state)
        whole = None if None in parts else sum(part or 0 for part in parts) * others
        offer("fsdp2", whole)
    return sorted(found, key=lambda remedy: remedy.worth)


def describe_remedies(remedies: list[MemoryRemedy]) -> dict[str, Value]:
    """As evidence of a finding, by technique, in their order."""
    return {
        "saves_at_most_bytes": {
            one.fix.technique: None if one.saved_bytes is None else round(one.saved_bytes) for one in remedies
        }
        or None,
        "time_cost_ratio": {
            one.fix.technique: round(one.time_cost_ratio, 4) for one in remedies if one.time_cost_ratio is not None
        }
        or None,
    }


def describe_held(held: MemoryFailure) -> dict[str, Value]:
    """What held the memory, as evidence of a finding."""
    return {
        "used_bytes": held.used_bytes,
        "total_bytes": held.total_bytes,
        "free_bytes": held.free_bytes,
        "parameter_bytes": held.parameter_bytes,
        "gradient_bytes": held.gradient_bytes,
        "optimizer_state_bytes": held.optimizer_state_bytes,
        "activations_and_rest_bytes": rest_bytes(held),
        "reserved_but_unallocated_bytes": held.unallocated_bytes,
    }
