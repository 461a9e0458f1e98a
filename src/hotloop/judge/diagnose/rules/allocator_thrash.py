"""allocator-thrash: the caching allocator frees and reallocates device memory during steps."""

from __future__ import annotations

from hotloop.core.findings import Finding, Fix, Skipped
from hotloop.core.rules import rule_on_trace
from hotloop.core.trace_analysis import TraceAnalysis
from hotloop.judge.diagnose.measured import format_share
from hotloop.judge.diagnose.on_trace import device_ranks, find_worst, idle_of, saving_from

FEWEST_STEPS_COUNT = 3
"""The first step always requests its memory, so two steps may show no more than that."""


@rule_on_trace(
    "allocator-thrash",
    "the caching allocator frees and reallocates device memory during steps",
    on_cpu="training ran on the CPU, which has no caching allocator",
)
def allocator_thrash(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """## What it does
    Finds steps in which the caching allocator returns blocks to the device and requests new ones.

    ## Why it costs
    cudaMalloc and cudaFree can take milliseconds, and cudaFree waits for all running kernels.

    ## How to recognize it
    The counters for allocation retries and device allocations rise in steady steps, and the device timeline shows the
    waits. The usual cause is a batch shape that changes from step to step.

    ## What to do
    Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, pad to a few fixed lengths, and keep `empty_cache()` out of
    the loop. If memory is nearly full, use a smaller batch.

    ## When it is wrong
    In the first steps, the allocator has to request memory. Run a batch of the largest shape first.
    """
    ranks = [one for one in device_ranks(analysis) if one.complete_steps_count >= FEWEST_STEPS_COUNT]
    if not ranks:
        return Skipped(reason=f"the trace shows no device work over at least {FEWEST_STEPS_COUNT} complete steps")
    worst = find_worst(ranks, lambda one: idle_of(one).late_allocator_ns)
    if worst is None:
        return None
    return Finding(
        title=f"the device idles {format_share(worst.cost_ratio)} of the time while the host allocates or frees memory",
        cost_ns=worst.cost_ns,
        cost_ratio=worst.cost_ratio,
        saving=saving_from(None, worst.cost_ratio, 0.2, 0.6, 1.0),
        evidence={"steps": worst.rank.complete_steps_count},
        fix=Fix(technique="expandable-segments"),
        ranks=worst.ranks,
    )
