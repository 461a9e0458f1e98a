"""out-of-memory: the run ended because it ran out of memory, or nearly filled the host's."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.analysis import Analysis, MemoryFailure, RankAnalysis
from hotloop.core.findings import Finding, Severity, Value
from hotloop.core.rules import rule
from hotloop.judge.diagnose.measured import format_bytes, format_share
from hotloop.judge.diagnose.memory_remedies import (
    MemorySituation,
    describe_held,
    describe_remedies,
    describe_situation,
    growth_per_step,
    rank_remedies,
)

NEARLY_FULL_RATIO = 0.97
"""The same as for memory-pressure."""


@rule("out-of-memory", "the run ended because it ran out of memory, or nearly filled the host's", ends_run=True)
def out_of_memory(analysis: Analysis) -> tuple[Finding, ...]:
    """## What it does
    Reports the process that ran out of memory, the allocation that failed, what held the memory, and the remedies,
    starting with those that save the most bytes for the least time. Also reports a run whose peak exceeds 90 % of the
    host's memory; for device memory, see `memory-pressure`.

    ## Why it costs
    You lose all progress since the last checkpoint, and the next run ends at the same step.

    ## How to recognize it
    The run raised an uncaught `torch.OutOfMemoryError`, `MemoryError` or "can't allocate memory", or received SIGKILL
    while the kernel counted an out-of-memory kill. Parameters, optimizer state and gradients are counted from the
    tensors themselves; the rest is activations, batches and, on the host, the interpreter with its libraries.

    ## What to do
    If a single allocation is larger than all of the memory, change the line that requests it. If memory grew from step
    to step, see `memory-growth`. Otherwise, use one or more of these: smaller micro-batches with gradient accumulation;
    activation checkpointing, which costs one more forward per step; bf16; an optimizer or model that is sharded over
    the ranks (ZeRO, FSDP); offloading to the host, which costs copies. Set `expandable_segments:True` if the allocator
    had reserved enough memory, but in blocks that did not fit. If no step was completed, only sizes are known, not
    times.

    ## When it is wrong
    `saves at most` is an upper bound: a smaller micro-batch saves only memory that scales with the batch, and
    checkpointing keeps the input of every block. After a kill on a shared host, another program may have held the
    memory.
    """
    return describe_failures(analysis.memory_failures, analysis) or tuple(filter(None, [_describe_near(analysis)]))


def describe_failures(
    failures: Sequence[MemoryFailure], analysis: Analysis | None = None, known: MemorySituation | None = None
) -> tuple[Finding, ...]:
    """One finding for all failures, about the process that held the most memory; ``analysis`` is None if no step was
    completed.

    ``known``: a file's information about the run, used in place of a recorded process.
    """
    if not failures:
        return ()
    worst = max(failures, key=lambda one: one.used_bytes or 0)
    rank = None if analysis is None else next((r for r in analysis.ranks if r.pid == worst.pid), None)
    is_too_large = _is_too_large(worst)
    remedies = [] if is_too_large else rank_remedies(worst, known or describe_situation(rank))
    named = tuple(sorted(one.rank for one in failures if one.rank is not None))
    evidence: dict[str, Value] = {
        "device": worst.device,
        "asked_bytes": worst.asked_bytes,
        **describe_held(worst),
        "growth_bytes_per_step": None if rank is None else growth_per_step(rank),
        **describe_remedies(remedies),
        "steps": None if rank is None else rank.steps,
    }
    finding = Finding(
        title=_title(worst, is_too_large, _when(rank, known), len(failures)),
        evidence=evidence,
        where=() if worst.where is None else (worst.where,),
        fix=remedies[0].fix if remedies else None,
        ranks=named if worst.world_size > 1 else (),
        severity_override=Severity.HIGH,
    )
    return (finding,)


def _describe_near(analysis: Analysis) -> Finding | None:
    """The same for host memory; memory-pressure reports a device that is nearly full."""
    near = [one for one in analysis.memory_near if one.device == "cpu"]
    if not near:
        return None
    worst = max(near, key=lambda one: one.used_bytes or 0)
    ratio = (worst.used_bytes or 0) / (worst.total_bytes or 1)
    rank = next((r for r in analysis.ranks if r.pid == worst.pid), None)
    remedies = rank_remedies(worst, describe_situation(rank))
    whose = "the run's processes use" if worst.world_size > 1 else "the run uses"
    return Finding(
        title=f"{whose} {format_share(ratio)} of {format_bytes(worst.total_bytes or 0)} of host memory at its peak",
        evidence={"device": worst.device, **describe_held(worst), **describe_remedies(remedies)},
        fix=remedies[0].fix if remedies else None,
        severity_override=Severity.MEDIUM if ratio >= NEARLY_FULL_RATIO else Severity.LOW,
    )


def _when(rank: RankAnalysis | None, known: MemorySituation | None) -> str:
    if rank is not None:
        return f" after {rank.steps:,} step{'s' * (rank.steps != 1)}"
    return "" if known is not None else " before completing its first step"


def _is_too_large(failure: MemoryFailure) -> bool:
    """Whether this single allocation would not fit into empty memory."""
    asked, total = failure.asked_bytes, failure.total_bytes
    return asked is not None and total is not None and asked > total


def _title(failure: MemoryFailure, is_too_large: bool, when: str, count: int) -> str:
    memory = "host memory" if failure.device == "cpu" else f"{failure.device} memory"
    who = "the run" if failure.world_size == 1 or failure.rank is None else f"rank {failure.rank}"
    if count > 1:
        who += f" (and {count - 1} more)"
    title = f"{who} ran out of {memory}{when}"
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
