"""memory-pressure: device memory is nearly full."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, MemoryFailure
from hotloop.core.findings import Finding, Severity, Skipped
from hotloop.core.rules import rule
from hotloop.core.trace_analysis import TraceAnalysis
from hotloop.judge.diagnose.measured import format_bytes, format_share
from hotloop.judge.diagnose.memory_remedies import (
    describe_held,
    describe_remedies,
    describe_situation,
    describe_traced_situation,
    held_by_category,
    rank_remedies,
)

FULL_RATIO = 0.90
NEARLY_FULL_RATIO = 0.97


def memory_pressure_on_trace(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """The allocator's own peak as a share of the device's memory; other programs on the device are not seen."""
    found = []
    for rank in analysis.ranks:
        totals = {one.index: one.total_bytes for one in rank.facts.devices}
        for one in rank.memory:
            total = totals.get(one.device)
            if one.device_type != "cpu" and one.is_absolute and total:
                found.append((one.peak_allocated_bytes / total, rank, one, total))
    if not found:
        return Skipped(
            reason="the trace lacks memory events with totals (profile_memory=True), or the size of the device",
        )
    peak_ratio, rank, memory, total_bytes = max(found, key=lambda one: one[0])
    peak_bytes = memory.peak_allocated_bytes
    if peak_ratio <= FULL_RATIO:
        return None
    where = f" on rank {rank.facts.rank}" if len(analysis.ranks) > 1 else ""
    held = held_by_category(memory.peak_by_category, memory.device_type, rank.facts.world_size or 1, total_bytes)
    remedies = rank_remedies(held, describe_traced_situation(rank))
    return Finding(
        title=f"device memory peaks at {format_share(peak_ratio)} of {format_bytes(total_bytes)}{where}",
        evidence={"peak_bytes": peak_bytes, **describe_held(held), **describe_remedies(remedies)},
        fix=remedies[0].fix if remedies else None,
        ranks=() if rank.facts.rank is None or len(analysis.ranks) == 1 else (rank.facts.rank,),
        severity_override=Severity.MEDIUM if peak_ratio >= NEARLY_FULL_RATIO else Severity.LOW,
    )


@rule("memory-pressure", "device memory is nearly full", on_trace=memory_pressure_on_trace)
def memory_pressure(analysis: Analysis) -> Finding | Skipped | None:
    """## What it does
    Compares peak device memory with the device's total.

    ## Why it costs
    Above 90 %, the allocator starts to free cached blocks and retry, which stalls the device, and a single longer batch
    can end the run.

    ## How to recognize it
    The peak exceeds 90 % of the device's memory on the reported rank.

    ## What to do
    Apply the first remedy that the evidence lists: remedies are ordered by the most bytes that each can save, relative
    to the time that it costs. They include smaller micro-batches with gradient accumulation, bf16, activation
    checkpointing, sharding, offloading and, against fragmentation, `expandable_segments:True`.

    ## When it is wrong
    A program that deliberately reserves all memory at its start is not under memory pressure: look at allocated memory,
    not at reserved memory.
    """
    if not analysis.accelerator:
        return Skipped(reason="training ran on the CPU: there is no device memory")
    known = [rank for rank in analysis.ranks if rank.memory_peak_bytes is not None and rank.memory_total_bytes]
    if not known:
        return Skipped(reason="device memory was not measured")
    ratios = [(rank.memory_peak_bytes or 0) / (rank.memory_total_bytes or 1) for rank in known]
    peak_ratio = max(ratios)
    if peak_ratio <= FULL_RATIO:
        return None
    worst = known[ratios.index(peak_ratio)]
    where = f" on rank {worst.rank}" if len(analysis.ranks) > 1 else ""
    bare = MemoryFailure(
        pid=worst.pid,
        rank=worst.rank,
        world_size=worst.world_size,
        device=worst.device_type,
        is_killed=False,
        used_bytes=worst.memory_peak_bytes,
        total_bytes=worst.memory_total_bytes,
    )
    held = next((one for one in analysis.memory_near if one.pid == worst.pid), bare)
    remedies = rank_remedies(held, describe_situation(worst))
    return Finding(
        title=f"device memory peaks at {format_share(peak_ratio)} of {format_bytes(worst.memory_total_bytes or 0)}"
        f"{where}",
        evidence={"peak_bytes": worst.memory_peak_bytes, **describe_held(held), **describe_remedies(remedies)},
        fix=remedies[0].fix if remedies else None,
        ranks=() if worst.rank is None or len(analysis.ranks) == 1 else (worst.rank,),
        # Full memory is a risk in every step, not growth with a date.
        severity_override=Severity.MEDIUM if peak_ratio >= NEARLY_FULL_RATIO else Severity.LOW,
    )
