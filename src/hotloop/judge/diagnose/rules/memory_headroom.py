"""memory-headroom: more than half of the device memory is never used."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Fix, Kind, Skipped
from hotloop.core.rules import rule
from hotloop.judge.diagnose.measured import format_bytes, format_share

USED_RATIO = 0.5


@rule("memory-headroom", "more than half of the device memory is never used", kind=Kind.OPPORTUNITY)
def memory_headroom(analysis: Analysis) -> Finding | Skipped | None:
    """## What it does
    Compares peak device memory with the device's total, and reports how much stays free on every rank.

    ## Why it costs
    Free memory costs nothing by itself, but it can buy speed: a larger batch, training without activation
    checkpointing, or training without sharding if the model fits on one device.

    ## How to recognize it
    Even on the rank with the highest peak, less than half of the device's memory is used.

    ## What to do
    Try a larger batch (and tune the learning rate again), or turn off activation checkpointing and offloading.

    ## When it is wrong
    A larger batch changes the training results, and it is faster only while the device is not yet busy. Memory that
    other programs use on the device is not counted.
    """
    if not analysis.accelerator:
        return Skipped(reason="training ran on the CPU: there is no device memory")
    known = [rank for rank in analysis.ranks if rank.memory_peak_bytes is not None and rank.memory_total_bytes]
    if not known:
        return Skipped(reason="device memory was not measured")
    fullest = max(known, key=lambda rank: (rank.memory_peak_bytes or 0) / (rank.memory_total_bytes or 1))
    peak, total = fullest.memory_peak_bytes or 0, fullest.memory_total_bytes or 1
    if peak / total >= USED_RATIO:
        return None
    return Finding(
        title=f"{format_bytes(total - peak)} of device memory is never used (peak {format_share(peak / total)})",
        evidence={"peak_bytes": peak, "total_bytes": total},
        fix=Fix(technique="batch-size"),
    )
