"""launch-bound: the device idles because the host cannot launch kernels fast enough."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Fix, Saving, Skipped, Value, saving_within
from hotloop.core.rules import rule
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank
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

SHORT_RATIO = 0.5
"""Where fewer kernels than this are short, it is single slow calls that come late, not launching itself..."""
STARVED_RATIO = 0.5
"""...but for a device that found nothing queued after this share of its kernels: the host is behind all along."""
FEWEST_KERNELS = 25
"""Of so few kernels no share says what a training does all along."""


def launch_bound_on_trace(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """Idle time in which the next launch had not been made, less what waiting for data, other calls and long
    pauses of the host explain."""
    ranks = device_ranks(analysis)
    if not ranks:
        return Skipped(reason=NO_DEVICE)
    late = []
    for rank in ranks:
        idle = rank.judged_idle
        assert idle is not None
        explained = idle.late_data_wait_ns + (idle.late_gc_ns or 0) + idle.late_allocator_ns + idle.late_slow_call_ns
        explained += idle.late_long_ns
        late.append(max(0, idle.launch_late_ns - explained))
    ratios = [ns / window_ns(rank) for ns, rank in zip(late, ranks, strict=True)]
    worst = max(range(len(ranks)), key=lambda i: ratios[i])
    rank, cost_ratio = ranks[worst], ratios[worst]
    whose = f" of rank {rank.facts.rank}" if len(ranks) > 1 else ""
    launch, inside = rank.timeline.launch, rank.timeline.in_steps
    if launch is None or cost_ratio < MATERIAL_RATIO:
        return None
    idle = rank.judged_idle
    assert idle is not None
    kernels_count = launch.kernels_count if inside is None else inside.kernels_count
    starved_ratio = min(1.0, idle.launch_late_count / max(1, kernels_count))
    short_ratio = launch.short_kernels_ratio or 0.0
    starved = starved_ratio >= STARVED_RATIO and kernels_count >= FEWEST_KERNELS
    if short_ratio < SHORT_RATIO and not starved:
        return None
    why = (
        f"{format_share(short_ratio)} of the kernels take less than 10 µs"
        if short_ratio >= SHORT_RATIO
        else f"after {format_share(starved_ratio)} of the kernels, nothing is queued"
    )
    cost_ns = cost_ratio * rank.step_ns
    # Recording Python frames slows the host, and with it every launch: part of the idle time is the profiler's own.
    sure = 0.1 if rank.facts.has_stacks else 0.3
    late_calls: list[Value] = [describe_blame(row) for row in idle.blamed if row.cause == "launch-late"]
    evidence: dict[str, Value] = {
        "short_kernels_ratio": launch.short_kernels_ratio,
        "starved_kernels_ratio": round(starved_ratio, 4),
        "kernels_per_step": round(kernels_count / steps_in(rank), 1),
        "host": late_calls[:3],
    }
    return Finding(
        title=f"the device{whose} idles {format_share(cost_ratio)} of the time because the host launches kernels too "
        f"late; {why}",
        cost_ns=round(cost_ns),
        time_ns={"idle": round(cost_ns)},
        cost_ratio=cost_ratio,
        saving=_forecast_saving(rank, cost_ratio, sure),
        evidence=evidence,
        fix=Fix(technique="cuda-graphs"),
        ranks=named_ranks(tuple(r for r, x in zip(ranks, ratios, strict=True) if x >= 0.6 * cost_ratio), len(ranks)),
    )


def _forecast_saving(rank: TraceRank, cost_ratio: float, sure: float) -> Saving:
    """What launches that cost nothing would save; at best the operators around them go as well, as in a graph."""
    launches, all_of_it = rank.forecasts.get("free-launches"), rank.forecasts.get("no-host-time")
    saving = saving_from(launches, cost_ratio, sure, 0.6, 1.0)
    if launches is None or all_of_it is None:
        return saving
    high = max(launches.saving_high_ratio, all_of_it.saving_mid_ratio)
    return saving_within(cost_ratio, launches.saving_low_ratio, launches.saving_mid_ratio, high, Basis.SIMULATED)


@rule(
    "launch-bound",
    "the device idles because the host cannot launch kernels fast enough",
    on_trace=launch_bound_on_trace,
    asks=("free-launches", "no-host-time"),
)
def launch_bound(analysis: Analysis) -> Skipped:
    """## What it does
    Finds steps whose kernels are so short that launching them takes longer than running them.

    ## Why it costs
    The host needs 5 to 10 microseconds per operator. A device that finishes each kernel sooner spends most of the step
    waiting for the next launch.

    ## How to tell
    On a kernel timeline, the device idles between short kernels, each of which starts as soon as it is launched, and
    the host is never blocked.

    ## What to do
    Use `torch.compile(mode="reduce-overhead")` or CUDA graphs, larger batches, fused optimizers, or fewer, larger
    operators.

    ## When it is wrong
    Host times alone cannot show it: a host that runs ahead of the device looks the same. The rule needs a kernel
    timeline.
    """
    if not analysis.accelerator:
        return Skipped(reason="the training ran on the CPU: no device timeline was recorded")
    return Skipped(reason="no device timeline was recorded")
