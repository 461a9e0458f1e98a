"""host-sync: the host waits for the device in the middle of a step."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Fix, Skipped
from hotloop.core.rules import rule
from hotloop.core.trace_analysis import TraceAnalysis
from hotloop.diagnose.on_trace import (
    MATERIAL_RATIO,
    NO_DEVICE,
    describe_blame,
    device_ranks,
    named_ranks,
    saving_from,
    steps_in,
    window_ns,
)
from hotloop.diagnose.wording import format_share

FEW_WAITS = 5
"""Where no steps are known, fewer waits than these may as well lie between two parts of a program."""


def host_sync_on_trace(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """Idle time of the device that follows a wait of the host for it."""
    ranks = device_ranks(analysis)
    if not ranks:
        return Skipped(reason=NO_DEVICE)
    ratios = [(r.judged_idle.sync_drained_ns if r.judged_idle else 0) / window_ns(r) for r in ranks]
    worst = max(range(len(ranks)), key=lambda i: ratios[i])
    rank, cost_ratio = ranks[worst], ratios[worst]
    whose = f" of rank {rank.facts.rank}" if len(ranks) > 1 else ""
    idle = rank.judged_idle
    if idle is None or cost_ratio < MATERIAL_RATIO:
        return None
    if rank.timeline.step_source == "whole trace" and idle.sync_drained_count < FEW_WAITS:
        return None
    callers = [row for row in idle.syncs if row.total_ns > 0]
    named = f", mostly after {callers[0].name}" if callers else ""
    return Finding(
        title=f"the device{whose} idles {format_share(cost_ratio)} of the time after the host waited for it{named}",
        cost_ns=round(cost_ratio * rank.step_ns),
        time_ns={"idle": round(cost_ratio * rank.step_ns)},
        cost_ratio=cost_ratio,
        saving=saving_from(rank.forecasts.get("no-host-syncs"), cost_ratio, 0.2, 0.6, 1.0),
        evidence={
            "waits_per_step": round(idle.sync_drained_count / steps_in(rank), 2),
            "after": [describe_blame(row) for row in callers[:3]],
        },
        fix=Fix(technique="fewer-host-syncs"),
        ranks=named_ranks(tuple(r for r, x in zip(ranks, ratios, strict=True) if x >= 0.6 * cost_ratio), len(ranks)),
    )


@rule(
    "host-sync",
    "the host waits for the device in the middle of a step",
    on_trace=host_sync_on_trace,
    asks=("no-host-syncs",),
)
def host_sync(analysis: Analysis) -> Skipped:
    """## What it does
    Finds calls that make the host wait for the device within a step: `.item()`, `.cpu()`, `print` of a tensor, `if
    tensor:`, boolean masks, `torch.cuda.synchronize()`.

    ## Why it costs
    The host queues work ahead of the device. At a synchronisation it waits until the device has finished; then the
    device idles until new work arrives.

    ## How to tell
    On a device timeline, an idle span follows each wait of the host.

    ## What to do
    Keep values on the device (`loss.detach()`), read them back every N steps, and replace masks with `torch.where`.

    ## When it is wrong
    A wait at the end of a step costs nothing while the device stays busy. On a CPU these calls cost nothing either.
    """
    if not analysis.accelerator:
        return Skipped(reason="the training ran on the CPU, where nothing runs ahead of the host")
    return Skipped(reason="no device timeline was recorded")
