"""pageable-transfer: batches are copied to the device from pageable memory, while the host waits."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Skipped
from hotloop.core.rules import rule


@rule("pageable-transfer", "batches are copied to the device from pageable memory")
def pageable_transfer(analysis: Analysis) -> Skipped:
    """## What it does
    Finds copies of batches to the device that start from ordinary (pageable) host memory.

    ## Why it costs
    The driver copies pageable memory in pieces through a buffer of its own: half the speed of a copy from pinned
    memory, and the host waits for it, so it cannot run beside the computation.

    ## How to tell
    The device timeline names each copy's kind. Pageable copies that no kernel hides are the cost.

    ## What to do
    Set `pin_memory=True` on the DataLoader and copy with `batch.to(device, non_blocking=True)`.

    ## When it is wrong
    Batches of a few kilobytes copy in microseconds either way. Pinned memory is taken from the host's memory for
    good; too much of it slows the whole machine.
    """
    if not analysis.accelerator:
        return Skipped(rule="pageable-transfer", reason="the training ran on the CPU: nothing is copied to a device")
    return Skipped(rule="pageable-transfer", reason="no device timeline was recorded")
