"""host-sync: the host waits for the device in the middle of a step."""

from __future__ import annotations

from hotloop.core.findings import Finding, Fix, Skipped
from hotloop.core.rules import rule_on_trace
from hotloop.core.trace_analysis import TraceAnalysis
from hotloop.judge.diagnose.measured import format_share
from hotloop.judge.diagnose.on_trace import (
    NO_DEVICE,
    describe_blame,
    device_ranks,
    find_worst,
    idle_of,
    saving_from,
    steps_in,
)

FEW_WAITS = 5
"""If no steps are known, fewer waits than these may just as well separate two parts of a program."""


@rule_on_trace(
    "host-sync",
    "the host waits for the device in the middle of a step",
    on_cpu="training ran on the CPU, where the host never waits for a device",
    asks=("no-host-syncs",),
)
def host_sync(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """## What it does
    Finds calls that make the host wait for the device within a step: `.item()`, `.cpu()`, `print` of a tensor, `if
    tensor:`, boolean masks, `torch.cuda.synchronize()`.

    ## Why it costs
    The host queues work ahead of the device. At a synchronization, it waits until the device has finished; then the
    device idles until new work arrives.

    ## How to recognize it
    On a device timeline, an idle span follows each wait of the host.

    ## What to do
    Keep values on the device (`loss.detach()`), read them back every N steps, and replace masks with `torch.where`.

    ## When it is wrong
    A wait at the end of a step costs nothing while the device stays busy. On a CPU these calls cost nothing either.
    """
    ranks = device_ranks(analysis)
    if not ranks:
        return Skipped(reason=NO_DEVICE)
    worst = find_worst(ranks, lambda one: idle_of(one).sync_drained_ns)
    if worst is None:
        return None
    rank, idle = worst.rank, idle_of(worst.rank)
    if rank.timeline.step_source == "whole trace" and idle.sync_drained_count < FEW_WAITS:
        return None
    callers = [row for row in idle.syncs if row.total_ns > 0]
    named = f", mostly after {callers[0].name}" if callers else ""
    return Finding(
        title=f"the device{worst.whose} idles {format_share(worst.cost_ratio)} of the time after the host waited "
        f"for it{named}",
        cost_ns=worst.cost_ns,
        time_ns={"idle": worst.cost_ns},
        cost_ratio=worst.cost_ratio,
        saving=saving_from(rank.forecasts.get("no-host-syncs"), worst.cost_ratio, 0.2, 0.6, 1.0),
        evidence={
            "waits_per_step": round(idle.sync_drained_count / steps_in(rank), 2),
            "after": [describe_blame(row) for row in callers[:3]],
        },
        fix=Fix(technique="fewer-host-syncs"),
        ranks=worst.ranks,
    )
