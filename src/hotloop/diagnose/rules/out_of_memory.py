"""out-of-memory: the run ended because it ran out of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.core.analysis import Analysis, MemoryFailure, RankAnalysis
from hotloop.core.findings import Finding, Fix, Severity, Value
from hotloop.core.rules import rule
from hotloop.diagnose.loading import main_loader
from hotloop.diagnose.wording import format_bytes

NOISE_MULTIPLE = 3.0
"""A growth below so many standard errors is noise."""


@dataclass(frozen=True, slots=True)
class _Remedy:
    fix: Fix
    saved_bytes: float | None
    """At most; None when what it would save was not measured."""
    time_cost_ratio: float | None = None
    """Of the step's time; None when not known."""

    @property
    def worth(self) -> tuple[bool, float]:
        """Bytes, less the share of the time that they cost; what is unknown comes last."""
        return self.saved_bytes is None, -(self.saved_bytes or 0.0) * (1.0 - (self.time_cost_ratio or 0.0))


@rule("out-of-memory", "the run ended because it ran out of memory")
def out_of_memory(analysis: Analysis) -> tuple[Finding, ...]:
    """## What it does
    Reports the process that ran out of memory, the allocation that failed, what held the memory, and the remedies,
    starting with those that save most bytes for the least time.

    ## Why it costs
    You lose everything since the last checkpoint, and the next run ends at the same step.

    ## How to tell
    An uncaught `torch.OutOfMemoryError`, `MemoryError` or "can't allocate memory", or SIGKILL while the kernel counted
    an out-of-memory kill. Parameters, optimizer state and gradients are counted from the tensors themselves; the rest
    is activations, batches and, on the host, the interpreter with its libraries.

    ## What to do
    If one allocation is larger than all memory, change the line that requests it. If memory grew from step to step, see
    `memory-growth`. Otherwise, where they apply: smaller micro-batches with gradient accumulation; activation
    checkpointing, for one more forward per step; bf16; an optimizer or model sharded over the ranks (ZeRO, FSDP);
    offloading to the host, which costs copies. Set `expandable_segments:True` if the allocator had reserved enough, in
    blocks that did not fit. If no step ended, only sizes are known, not times.

    ## When it is wrong
    `saves at most` is a bound: a smaller micro-batch saves only what scales with the batch, and checkpointing keeps the
    input of every block. After a kill on a shared host, another program may have held the memory.
    """
    return describe_failures(analysis.memory_failures, analysis)


def describe_failures(failures: Sequence[MemoryFailure], analysis: Analysis | None = None) -> tuple[Finding, ...]:
    """One finding for all of them, of the process that held most; ``analysis`` is None when no step was completed."""
    if not failures:
        return ()
    worst = max(failures, key=lambda one: one.used_bytes or 0)
    rank = None if analysis is None else next((r for r in analysis.ranks if r.pid == worst.pid), None)
    parts = (worst.parameter_bytes, worst.gradient_bytes, worst.optimizer_state_bytes)
    known = sum(part or 0 for part in parts)
    rest = None if worst.used_bytes is None or None in parts else max(0, worst.used_bytes - known)
    is_too_large = _is_too_large(worst)
    remedies = [] if is_too_large else sorted(_remedies(worst, rank, rest), key=lambda remedy: remedy.worth)
    named = tuple(sorted(one.rank for one in failures if one.rank is not None))
    evidence: dict[str, Value] = {
        "device": worst.device,
        "asked_bytes": worst.asked_bytes,
        "used_bytes": worst.used_bytes,
        "total_bytes": worst.total_bytes,
        "free_bytes": worst.free_bytes,
        "parameter_bytes": worst.parameter_bytes,
        "gradient_bytes": worst.gradient_bytes,
        "optimizer_state_bytes": worst.optimizer_state_bytes,
        "activations_and_rest_bytes": rest,
        "reserved_but_unallocated_bytes": worst.unallocated_bytes,
        "growth_bytes_per_step": None if rank is None else _growth(rank),
        "saves_at_most_bytes": {
            one.fix.technique: None if one.saved_bytes is None else round(one.saved_bytes) for one in remedies
        }
        or None,
        "time_cost_ratio": {
            one.fix.technique: round(one.time_cost_ratio, 4) for one in remedies if one.time_cost_ratio is not None
        }
        or None,
        "steps": None if rank is None else rank.steps,
    }
    finding = Finding(
        title=_title(worst, is_too_large, rank, len(failures)),
        evidence=evidence,
        where=() if worst.where is None else (worst.where,),
        fix=remedies[0].fix if remedies else None,
        ranks=named if worst.world_size > 1 else (),
        severity_override=Severity.HIGH,
    )
    return (finding,)


def _is_too_large(failure: MemoryFailure) -> bool:
    """Whether the one allocation would not fit into empty memory."""
    asked, total = failure.asked_bytes, failure.total_bytes
    return asked is not None and total is not None and asked > total


def _title(failure: MemoryFailure, is_too_large: bool, rank: RankAnalysis | None, count: int) -> str:
    memory = "host memory" if failure.device == "cpu" else f"{failure.device} memory"
    who = "the run" if failure.world_size == 1 or failure.rank is None else f"rank {failure.rank}"
    if count > 1:
        who += f" (and {count - 1} more)"
    when = "before completing its first step" if rank is None else f"after {rank.steps:,} step{'s' * (rank.steps != 1)}"
    title = f"{who} ran out of {memory} {when}"
    if failure.is_killed:
        title += ": the kernel killed it"
    used = None if failure.used_bytes is None else format_bytes(failure.used_bytes)
    total = "" if failure.total_bytes is None else f" of {format_bytes(failure.total_bytes)}"
    if is_too_large:
        return f"{title}: one allocation of {format_bytes(failure.asked_bytes or 0)} exceeds all memory ({total[4:]})"
    if failure.asked_bytes is not None:
        held = "" if used is None else f" with {used}{total} in use"
        return f"{title}: allocating {format_bytes(failure.asked_bytes)} failed{held}"
    return title if used is None else f"{title}, with {used}{total} in use"


def _growth(rank: RankAnalysis) -> int | None:
    """Bytes per step by which memory grew, beyond noise."""
    slope, noise = rank.memory_growth_bytes_per_step, rank.memory_growth_noise_bytes_per_step
    return round(slope) if slope is not None and noise is not None and slope > NOISE_MULTIPLE * noise else None


def _remedies(failure: MemoryFailure, rank: RankAnalysis | None, rest: float | None) -> list[_Remedy]:
    """What applies to this process, in the order of preference where nothing else tells them apart."""
    found = []

    def offer(technique: str, saved: float | None, cost: float | None = None) -> None:
        found.append(_Remedy(Fix(technique=technique), saved, cost))

    state, gradients = failure.optimizer_state_bytes, failure.gradient_bytes
    growth = None if rank is None else _growth(rank)
    if rank is not None and growth is not None:
        offer("detach-kept-tensors", float(growth * rank.steps), 0.0)
    unallocated = failure.unallocated_bytes
    if unallocated is not None and unallocated >= (failure.asked_bytes or 0):
        offer("expandable-segments", unallocated, 0.0)
    samples = None if rank is None else _micro_batch_samples(rank)
    if samples is None or samples > 1:
        smallest = 0.5 if samples is None else 1.0 / samples
        offer("accumulation", None if rest is None else rest * (1.0 - smallest))
    if rank is None or not rank.checkpointing:
        # Backward computes the forward again.
        again = None if rank is None else rank.breakdown.share("forward")
        offer("activation-checkpointing", rest, again)
    if rank is None or (rank.autocast_dtype is None and rank.model_dtype in (None, "float32")):
        offer("bf16-autocast", None if rest is None else 0.5 * rest)
    if failure.world_size > 1 and not (rank is not None and rank.model_is_sharded):
        others = 1.0 - 1.0 / failure.world_size
        offer("zero-optimizer", None if state is None else state * others)
        parts = (failure.parameter_bytes, gradients, state)
        whole = None if None in parts else sum(part or 0 for part in parts) * others
        offer("fsdp2", whole)
    if failure.device != "cpu":
        offer("activation-offload", rest)
        offer("optimizer-state-offload", state)
    return found


def _micro_batch_samples(rank: RankAnalysis) -> float | None:
    loader = main_loader(rank)
    if loader is not None and loader.batch_size:
        return float(loader.batch_size)
    return None if not rank.samples_per_step else rank.samples_per_step / max(1.0, rank.mean["backwards"])
