"""allocator-thrash: the caching allocator frees and asks for device memory in the middle of steps."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Skipped
from hotloop.core.rules import rule


@rule("allocator-thrash", "the caching allocator frees and asks for device memory in the middle of steps")
def allocator_thrash(analysis: Analysis) -> Skipped:
    """## What it does
    Finds steps in which the caching allocator returns its blocks to the device and requests new ones.

    ## Why it costs
    cudaMalloc and cudaFree take up to milliseconds, and cudaFree waits for all running kernels.

    ## How to tell
    The counters of allocation retries and of device allocations rise in steady steps, and the device timeline shows
    the waits. Batches whose shape changes from step to step are the usual cause.

    ## What to do
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; pad to a few fixed lengths; no `empty_cache()` in the loop; a
    smaller batch when memory is nearly full.

    ## When it is wrong
    During the first steps the allocator must ask for memory. A first batch of the largest shape settles it.
    """
    if not analysis.accelerator:
        return Skipped(rule="allocator-thrash", reason="the training ran on the CPU, without a caching allocator")
    return Skipped(rule="allocator-thrash", reason="no device timeline was recorded")
