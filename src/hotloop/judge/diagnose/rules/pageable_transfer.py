"""pageable-transfer: batches are copied to the device from pageable memory."""

from __future__ import annotations

from hotloop.core.findings import Basis, Finding, Fix, Skipped, saving_within
from hotloop.core.rules import rule_on_trace
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank
from hotloop.judge.diagnose.measured import format_share
from hotloop.judge.diagnose.on_trace import NO_DEVICE, device_ranks, find_worst


@rule_on_trace(
    "pageable-transfer",
    "batches are copied to the device from pageable memory",
    on_cpu="training ran on the CPU: nothing is copied to a device",
)
def pageable_transfer(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """## What it does
    Finds copies of batches to the device that start from ordinary (pageable) host memory.

    ## Why it costs
    The driver copies pageable memory in pieces through its own buffer, at half the speed of a copy from pinned memory.
    The host waits for the copy, so it cannot overlap with computation.

    ## How to recognize it
    The device timeline shows each copy's kind. The cost is the time of pageable copies that does not overlap with
    kernels.

    ## What to do
    Set `pin_memory=True` on the DataLoader and copy with `batch.to(device, non_blocking=True)`.

    ## When it is wrong
    Batches of a few kilobytes copy in microseconds either way. Pinned memory cannot be paged out; too much of it slows
    the whole machine.
    """
    ranks = device_ranks(analysis)
    if not ranks:
        return Skipped(reason=NO_DEVICE)
    if all(r.timeline.ratios.pageable_copies_ns is None for r in ranks):
        return Skipped(reason="the names of the copies do not show whether memory is pinned")
    worst = find_worst(ranks, _exposed_ns)
    if worst is None:
        return None
    rank, cost_ratio = worst.rank, worst.cost_ratio
    return Finding(
        title=f"copies from pageable memory that do not overlap with kernels take {format_share(cost_ratio)} of the "
        f"device's time",
        phase="h2d",
        cost_ns=worst.cost_ns,
        time_ns={"exposed_mem": worst.cost_ns},
        cost_ratio=cost_ratio,
        # Pinned memory copies at about twice the rate; a copy that overlaps with computation costs nothing.
        saving=saving_within(cost_ratio, 0.4 * cost_ratio, 0.7 * cost_ratio, cost_ratio, Basis.RULE_OF_THUMB),
        evidence={"pageable_copies_ns": rank.judged_pageable_ns, "exposed_ns": _exposed_ns(rank)},
        fix=Fix(technique="pinned-memory", settings={"pin_memory": True, "non_blocking": True}),
        ranks=() if rank.facts.rank is None or len(analysis.ranks) == 1 else (rank.facts.rank,),
    )


def _exposed_ns(rank: TraceRank) -> int:
    """Copies from pageable memory that overlap with neither computation nor communication."""
    return min(rank.judged_pageable_ns or 0, 0 if rank.judged is None else rank.judged.exposed_mem_ns)
