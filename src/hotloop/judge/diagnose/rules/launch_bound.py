"""launch-bound: the device idles because the host cannot launch kernels fast enough."""

from __future__ import annotations

from hotloop.core.findings import Basis, Finding, Fix, Saving, Skipped, Value, saving_within
from hotloop.core.rules import rule_on_trace
from hotloop.core.timeline import IdleCauses
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank
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

SHORT_RATIO = 0.5
"""If fewer kernels than this are short, single slow calls come late, rather than launches in general..."""
STARVED_RATIO = 0.5
"""...unless the device found nothing queued after this share of its kernels: then the host is late all along."""
FEWEST_KERNELS = 25
"""With fewer kernels than this, no share is representative of the entire run."""


@rule_on_trace(
    "launch-bound",
    "the device idles because the host cannot launch kernels fast enough",
    on_cpu="training ran on the CPU: no device timeline was recorded",
    asks=("free-launches", "no-host-time"),
)
def launch_bound(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """## What it does
    Finds steps whose kernels are so short that launching them takes longer than running them.

    ## Why it costs
    The host needs 5 to 10 microseconds per operator. If the device finishes each kernel sooner, it spends most of the
    step waiting for the next launch.

    ## How to recognize it
    On a kernel timeline, the device idles between short kernels, each of which starts as soon as it is launched, and
    the host is never blocked.

    ## What to do
    Use `torch.compile(mode="reduce-overhead")` or CUDA graphs, larger batches, fused optimizers, or fewer, larger
    operators.

    ## When it is wrong
    Host times alone cannot show the problem: a host that runs ahead of the device looks the same. The rule needs a
    kernel timeline.
    """
    ranks = device_ranks(analysis)
    if not ranks:
        return Skipped(reason=NO_DEVICE)
    worst = find_worst(ranks, lambda one: _late_ns(idle_of(one)))
    if worst is None:
        return None
    rank, cost_ratio, idle = worst.rank, worst.cost_ratio, idle_of(worst.rank)
    launch, inside = rank.timeline.launch, rank.timeline.in_steps
    if launch is None:
        return None
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
    # Recording Python frames slows the host, and with it every launch: the profiler itself causes part of the idle
    # time.
    sure = 0.1 if rank.facts.has_stacks else 0.3
    late_calls: list[Value] = [describe_blame(row) for row in idle.blamed if row.cause == "launch-late"]
    return Finding(
        title=f"the device{worst.whose} idles {format_share(cost_ratio)} of the time because the host launches kernels "
        f"too late; {why}",
        cost_ns=worst.cost_ns,
        time_ns={"idle": worst.cost_ns},
        cost_ratio=cost_ratio,
        saving=_forecast_saving(rank, cost_ratio, sure),
        evidence={
            "short_kernels_ratio": launch.short_kernels_ratio,
            "starved_kernels_ratio": round(starved_ratio, 4),
            "kernels_per_step": round(kernels_count / steps_in(rank), 1),
            "host": late_calls[:3],
        },
        fix=Fix(technique="cuda-graphs"),
        ranks=worst.ranks,
    )


def _late_ns(idle: IdleCauses) -> int:
    """Idle time before launches that were made late, except what waiting for data, other calls and long pauses of the
    host explain."""
    explained = idle.late_data_wait_ns + (idle.late_gc_ns or 0) + idle.late_allocator_ns + idle.late_slow_call_ns
    return max(0, idle.launch_late_ns - explained - idle.late_long_ns)


def _forecast_saving(rank: TraceRank, cost_ratio: float, sure: float) -> Saving:
    """The saving if launches cost nothing; at best, the operators around them disappear as well, as in a graph."""
    launches, all_of_it = rank.forecasts.get("free-launches"), rank.forecasts.get("no-host-time")
    saving = saving_from(launches, cost_ratio, sure, 0.6, 1.0)
    if launches is None or all_of_it is None:
        return saving
    high = max(launches.saving_high_ratio, all_of_it.saving_mid_ratio)
    return saving_within(cost_ratio, launches.saving_low_ratio, launches.saving_mid_ratio, high, Basis.SIMULATED)
