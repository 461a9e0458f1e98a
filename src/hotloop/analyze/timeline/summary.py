"""TraceAnalysis -> the parts of a report that only restate it: steps, breakdown, device, memory, ranks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from hotloop import __version__
from hotloop.analyze.summary import merge_breakdowns
from hotloop.core.phases import Breakdown
from hotloop.core.report import Device, DevicePart, MemorySummary, RankSummary, Report, StepSummary
from hotloop.core.timeline import DevicePartition
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank

NO_MEMORY = MemorySummary(
    peak_bytes=None,
    allocated_bytes=None,
    reserved_bytes=None,
    total_bytes=None,
    peak_ratio=None,
    growth_bytes_per_step=None,
)


def summarize_trace_steps(analysis: TraceAnalysis) -> StepSummary | None:
    """The complete steps of all ranks, on the host where it was recorded; None when the lead rank shows no steps.

    How many there are is told of the lead rank: a step of the training is one step of every rank.
    """
    lead = analysis.lead
    if not step_lengths(lead):
        return None
    lengths = [length for rank in analysis.ranks for length in step_lengths(rank)]
    mean_ns = statistics.fmean(lengths)
    return StepSummary(
        count=len(lead.timeline.steps),
        steady_count=len(step_lengths(lead)),
        unit="step",
        units_per_step=1.0,
        mean_ns=round(analysis.step_ns),
        median_ns=round(statistics.median(lengths)),
        p95_ns=_nearest_rank(lengths, 0.95),
        cv_ratio=statistics.stdev(lengths) / mean_ns if len(lengths) > 1 else None,
        tail_ns=None,
        time_to_first_step_ns=None,
        batches_per_s=None,
        samples_per_s=None,
        tokens_per_s=None,
        mfu_ratio=analysis.utilization.mfu_ratio,
    )


def step_lengths(rank: TraceRank) -> list[int]:
    """Lengths of the complete steps, ns; empty when the file shows no steps."""
    if rank.timeline.step_source == "whole trace":
        return []
    return [step.host_ns for step in rank.timeline.steps if step.is_complete and step.host_ns > 0]


def summarize_trace_breakdown(analysis: TraceAnalysis) -> Breakdown | None:
    """Mean over the ranks; None when a file cannot show the phases."""
    known = [rank.timeline.anatomy.breakdown for rank in analysis.ranks]
    found = [breakdown for breakdown in known if breakdown is not None]
    return merge_breakdowns(found) if len(found) == len(known) else None


def summarize_trace_device(analysis: TraceAnalysis) -> Device | None:
    """All ranks' busiest devices together; None when a file shows no device work."""
    parts = [rank.partition for rank in analysis.ranks]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return replace(describe_parts(known), sm_active_ratio=analysis.utilization.sm_active_ratio)


def summarize_judged_device(analysis: TraceAnalysis) -> Device | None:
    """The same in the complete steps alone, where a file shows more than these."""
    parts = [rank.judged for rank in analysis.ranks]
    known = [part for part in parts if part is not None]
    return describe_parts(known) if len(known) == len(parts) else None


def describe_parts(parts: Sequence[DevicePartition]) -> Device:
    """Sums of the partitions, and their shares of the sum of the windows."""
    window_ns = max(1, sum(part.window_ns for part in parts))

    def share(total_ns: int) -> DevicePart:
        return DevicePart(total_ns=total_ns, share_ratio=total_ns / window_ns)

    return Device(
        compute=share(sum(part.compute_ns for part in parts)),
        exposed_comm=share(sum(part.exposed_comm_ns for part in parts)),
        exposed_mem=share(sum(part.exposed_mem_ns for part in parts)),
        idle=share(sum(part.idle_ns for part in parts)),
        busy_ratio=sum(part.busy_ns for part in parts) / window_ns,
    )


def summarize_trace_ranks(analysis: TraceAnalysis) -> tuple[RankSummary, ...]:
    """One row a file."""
    return tuple(_summarize_rank(rank) for rank in analysis.ranks)


def _summarize_rank(rank: TraceRank) -> RankSummary:
    lengths = step_lengths(rank)
    return RankSummary(
        rank=rank.facts.rank,
        local_rank=None,
        host=rank.facts.host or "?",
        pid=0,
        restart=0,
        world_size=rank.facts.world_size or 1,
        anchor=rank.timeline.step_source,
        steps=len(lengths),
        skipped_steps=0,
        ended=None,
        mean_ns=round(rank.step_ns),
        median_ns=round(statistics.median(lengths)) if lengths else round(rank.step_ns),
        breakdown=rank.timeline.anatomy.breakdown,
        device=None
        if rank.partition is None
        else replace(describe_parts([rank.partition]), sm_active_ratio=rank.timeline.utilization.sm_active_ratio),
        memory=NO_MEMORY,
        lost_rows=0,
    )


def _nearest_rank(values: Sequence[int], at: float) -> int:
    return sorted(values)[max(0, math.ceil(at * len(values)) - 1)]


def restate_trace(analysis: TraceAnalysis) -> Report:
    """The report of traces as far as it restates what was recorded, before anything is judged."""
    return Report(
        tool_version=__version__,
        command=(),
        verdict="",
        step=summarize_trace_steps(analysis),
        breakdown=summarize_trace_breakdown(analysis),
        device=summarize_trace_device(analysis),
        utilization=analysis.utilization,
        ranks=summarize_trace_ranks(analysis),
        hosts=analysis.hosts,
        trace=analysis,
    )
