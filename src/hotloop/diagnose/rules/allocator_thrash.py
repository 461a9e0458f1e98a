"""allocator-thrash: the caching allocator frees and reallocates device memory during steps."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Fix, Skipped
from hotloop.core.rules import rule
from hotloop.core.trace_analysis import TraceAnalysis
from hotloop.diagnose.on_trace import MATERIAL_RATIO, device_ranks, named_ranks, saving_from, window_ns
from hotloop.diagnose.wording import format_share

FEWEST_STEPS_COUNT = 3
"""A first step asks for its memory; what two steps show may be that."""


def allocator_thrash_on_trace(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """Idle time of the device in which the host was in a call that allocates or frees device or pinned memory."""
    ranks = [one for one in device_ranks(analysis) if one.complete_steps_count >= FEWEST_STEPS_COUNT]
    if not ranks:
        reason = f"the trace shows no device work over at least {FEWEST_STEPS_COUNT} complete steps"
        return Skipped(reason=reason)
    ratios = [(one.judged_idle.late_allocator_ns if one.judged_idle else 0) / window_ns(one) for one in ranks]
    cost_ratio = max(ratios)
    rank = ranks[ratios.index(cost_ratio)]
    if cost_ratio < MATERIAL_RATIO:
        return None
    return Finding(
        title=f"the device idles {format_share(cost_ratio)} of the time while the host allocates or frees memory",
        cost_ns=round(cost_ratio * rank.step_ns),
        cost_ratio=cost_ratio,
        saving=saving_from(None, cost_ratio, 0.2, 0.6, 1.0),
        evidence={"steps": rank.complete_steps_count},
        fix=Fix(technique="expandable-segments"),
        ranks=named_ranks(tuple(r for r, x in zip(ranks, ratios, strict=True) if x >= 0.6 * cost_ratio), len(ranks)),
    )


@rule(
    "allocator-thrash",
    "the caching allocator frees and reallocates device memory during steps",
    on_trace=allocator_thrash_on_trace,
)
def allocator_thrash(analysis: Analysis) -> Skipped:
    """## What it does
    Finds steps in which the caching allocator returns blocks to the device and requests new ones.

    ## Why it costs
    cudaMalloc and cudaFree can take milliseconds, and cudaFree waits for all running kernels.

    ## How to tell
    The counters of allocation retries and device allocations rise in steady steps, and the device timeline shows the
    waits. The usual cause is a batch shape that changes from step to step.

    ## What to do
    Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, pad to a few fixed lengths, and keep `empty_cache()` out of
    the loop. If memory is nearly full, use a smaller batch.

    ## When it is wrong
    In the first steps the allocator has to request memory. Run a batch of the largest shape first.
    """
    if not analysis.accelerator:
        return Skipped(reason="the training ran on the CPU, without a caching allocator")
    return Skipped(reason="no device timeline was recorded")
