"""launch-bound: the device idles because the host cannot launch kernels fast enough."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Skipped
from hotloop.core.rules import rule


@rule("launch-bound", "the device idles because the host cannot launch kernels fast enough")
def launch_bound(analysis: Analysis) -> Skipped:
    """## What it does
    Finds steps whose kernels are so short that launching them takes longer than running them.

    ## Why it costs
    The host needs 5 to 10 microseconds for every operator. A device that finishes each kernel sooner waits for the
    next launch, most of the step.

    ## How to tell
    On a kernel timeline the device is idle between short kernels, each of which starts as soon as it is launched,
    while the host is never blocked.

    ## What to do
    `torch.compile(mode="reduce-overhead")` or CUDA graphs; larger batches; fused optimizers; fewer, larger operators.

    ## When it is wrong
    Host times alone cannot show it: a host that runs ahead of the device looks the same. It is judged only where a
    kernel timeline exists.
    """
    if not analysis.accelerator:
        return Skipped(rule="launch-bound", reason="the training ran on the CPU: no device timeline was recorded")
    return Skipped(rule="launch-bound", reason="no device timeline was recorded")
