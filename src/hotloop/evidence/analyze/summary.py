"""Training or TraceAnalysis -> the parts of a report that restate it: step, ranks, breakdown, memory, lines, cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from hotloop import __version__
from hotloop.core.applied import AppliedTechnique
from hotloop.core.phases import PHASES, Breakdown, PhaseStats
from hotloop.core.recording import OTHER_WAIT_FIELD
from hotloop.core.report import (
    Device,
    DevicePart,
    DevicePhase,
    Health,
    LineShare,
    MemorySummary,
    Overhead,
    RankSummary,
    Report,
    StepSummary,
)
from hotloop.core.timeline import DevicePartition
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank

from .partition import FIELD_PHASE
from .process import ProcessAnalysis
from .trainings import Training, find_unit_drift, measure_hosts

MAX_LINES_PER_PHASE = 8
LOUD_EXCLUDED_RATIO = 0.1
"""From this share of the run on, the time outside the steady steps is a warning."""


def summarize_steps(training: Training) -> StepSummary:
    """The steps of a training; times are means over its processes, rates are of all of them together."""
    processes, analysis = training.processes, training.analysis
    lead = training.lead
    drift = find_unit_drift(processes, analysis.unit)
    return StepSummary(
        count=lead.rank.steps,
        steady_count=lead.rank.steady_count,
        unit=analysis.unit,
        units_per_step=analysis.units_per_step,
        units_noise_ratio=units_noise_ratio(processes, analysis.unit),
        unit_drift=None if drift is None else {"first_third": drift[0], "last_third": drift[1]},
        mean_ns=round(analysis.step_ns),
        median_ns=round(_mean([p.rank.step_median_ns for p in processes])),
        p95_ns=round(_mean([p.step_p95_ns for p in processes])),
        cv_ratio=_mean_known([p.step_cv_ratio for p in processes]),
        tail_ns=lead.tail_ns,
        time_to_first_step_ns=lead.time_to_first_step_ns,
        batches_per_s=_rate(processes, [p.batches_per_step for p in processes]),
        samples_per_s=_rate(processes, [p.rank.samples_per_step for p in processes]),
        tokens_per_s=_rate(processes, [p.rank.tokens_per_step for p in processes]),
        excluded=lead.rank.excluded,
    )


def warn_of_excluded(training: Training) -> tuple[Health, ...]:
    """A warning if a good part of the run is outside the steady steps, to which all shares and costs refer."""
    left_out = training.lead.rank.excluded
    if left_out is None or left_out.ratio < LOUD_EXCLUDED_RATIO:
        return ()
    message = (
        f"shares, costs and savings cover the steady steps, {1 - left_out.ratio:.0%} of the run: the other "
        f"{left_out.total_ns * 1e-9:.3g} s are left out"
    )
    if 2 * left_out.tail_ns > left_out.total_ns:
        what = "" if left_out.tail_phase is None else f" ({left_out.tail_phase.replace('_', ' ')})"
        message += f"; most of them follow the last step{what}"
    elif left_out.main_part is not None:
        those = "that step" if left_out.count == 1 else "those steps"
        message += f"; most of {those} is {left_out.main_part}"
    return (Health(level="warning", message=message),)


def summarize_rank(process: ProcessAnalysis) -> RankSummary:
    """One process as a row of the report's rank table. ``device`` is None: there is no kernel timeline."""
    rank = process.rank
    return RankSummary(
        rank=rank.rank,
        local_rank=rank.local_rank,
        host=rank.host,
        pid=rank.pid,
        restart=rank.restart,
        world_size=rank.world_size,
        anchor=rank.anchor,
        steps=rank.steps,
        skipped_steps=rank.skipped_steps,
        ended=process.ended,
        mean_ns=round(rank.step_mean_ns),
        median_ns=round(rank.step_median_ns),
        breakdown=rank.breakdown,
        device=None,
        memory=process.memory,
        lost_rows=process.lost_rows,
    )


def merge_breakdowns(breakdowns: Sequence[Breakdown]) -> Breakdown:
    """The mean over ranks of every figure of their breakdowns (at least one)."""
    count = len(breakdowns)
    if count == 1:
        return breakdowns[0]
    phases = {}
    for name in PHASES:
        parts = [b.phases[name] for b in breakdowns]
        means: dict[str, Any] = {
            one.name: sum(getattr(part, one.name) for part in parts) / count for one in fields(PhaseStats)
        }
        phases[name] = PhaseStats(**{key: mean if key == "share_ratio" else round(mean) for key, mean in means.items()})
    return Breakdown(phases)


def summarize_breakdown(training: Training) -> Breakdown:
    """The breakdown at the top of the report: the mean over ranks."""
    return merge_breakdowns([rank.breakdown for rank in training.analysis.ranks])


def summarize_device_phases(training: Training) -> tuple[DevicePhase, ...]:
    """Device time next to host time of the phases over all timed steps of all ranks, in the order of PHASES."""
    found = []
    for name in PHASES:
        parts = [part for process in training.processes for part in process.device_phases if part.phase == name]
        count = sum(part.steps_count for part in parts)
        if count:
            found.append(
                DevicePhase(
                    phase=name,
                    device_mean_ns=round(sum(part.device_mean_ns * part.steps_count for part in parts) / count),
                    host_mean_ns=round(sum(part.host_mean_ns * part.steps_count for part in parts) / count),
                    steps_count=count,
                )
            )
    return tuple(found)


def summarize_memory(training: Training) -> MemorySummary:
    """The memory that came closest to its limit (or, with unknown limits, is used most): for an accelerator that of one
    process, for a host that of all its processes of this training together."""
    memories = measure_hosts(training.processes).values() or [p.memory for p in training.processes]
    return max(memories, key=lambda m: (m.peak_ratio or 0.0, m.peak_bytes or 0))


def summarize_lines(training: Training) -> tuple[LineShare, ...]:
    """The lines of the lead process that held each phase's stack samples, largest share of each phase first.

    No-grad forwards count as validation when the process spent more of its time in validation than in them.
    """
    lead = training.lead
    totals: dict[str, int] = {}
    places: dict[str, dict[tuple[str, int, str], int]] = {}
    for field_name, count in lead.line_samples.items():
        phase = _phase_of(field_name, lead)
        totals[phase] = totals.get(phase, 0) + count
        for line in lead.rank.lines.get(field_name, ()):
            key = (line.where.file, line.where.line, line.where.function)
            held = places.setdefault(phase, {})
            held[key] = held.get(key, 0) + line.samples
    found = []
    for phase in PHASES:
        ranked = sorted(places.get(phase, {}).items(), key=lambda item: (-item[1], item[0]))
        for (file, line_number, function), samples in ranked[:MAX_LINES_PER_PHASE]:
            found.append(
                LineShare(
                    phase=phase,
                    file=file,
                    line=line_number,
                    function=function,
                    share_ratio=samples / totals[phase],
                    samples=samples,
                )
            )
    return tuple(found)


def summarize_overhead(training: Training) -> Overhead | None:
    """hotloop's own cost: times of all processes together, memory of the largest; None if no process reported it.

    ``share_ratio`` is the mean over the processes that reported it: they run at the same time.
    """
    known = [p.overhead for p in training.processes if p.overhead is not None]
    if not known:
        return None
    return Overhead(
        hooks_ns=_sum_known([o.hooks_ns for o in known]),
        sampler_ns=_sum_known([o.sampler_ns for o in known]),
        deep_window_ns=_sum_known([o.deep_window_ns for o in known]),
        share_ratio=_mean_known([o.share_ratio for o in known]),
        memory_bytes=max((o.memory_bytes for o in known if o.memory_bytes is not None), default=None),
        method=next((o.method for o in known if o.method), ""),
    )


def _phase_of(field_name: str, process: ProcessAnalysis) -> str:
    if field_name == "nograd_ns":
        mean_ns = process.rank.breakdown.mean_ns("validation")
        if 2 * mean_ns > process.rank.mean["nograd_ns"] > 0:
            return "validation"
    return "validation" if field_name == OTHER_WAIT_FIELD else FIELD_PHASE.get(field_name, "other")


def _rate(processes: Sequence[ProcessAnalysis], per_step: Sequence[float | None]) -> float | None:
    """Units per second of all processes together; None unless every process knows its units."""
    rates = [
        units * 1e9 / process.rank.step_mean_ns
        for process, units in zip(processes, per_step, strict=True)
        if units and process.rank.step_mean_ns > 0
    ]
    return sum(rates) if len(rates) == len(processes) else None


def units_noise_ratio(processes: Sequence[ProcessAnalysis], unit: str) -> float | None:
    """Standard error of the work per step over it: only tokens are read from only some of the batches."""
    if unit != "token":
        return 0.0 if unit == "sample" else None
    known = [(p.rank.tokens_per_step, p.units.tokens_noise_ratio) for p in processes]
    errors = [tokens * ratio for tokens, ratio in known if tokens is not None and ratio is not None]
    if len(errors) < len(known):
        return None
    return math.hypot(*errors) / sum(tokens or 0.0 for tokens, _ in known)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _sum_known(values: Sequence[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def summarize_strategy(training: Training) -> tuple[AppliedTechnique, ...]:
    """The changes by the run's strategy; those that several ranks report alike appear once, with their ranks."""
    ranks: dict[str, list[int]] = {}
    first: dict[str, AppliedTechnique] = {}
    for process in training.processes:
        for one in process.applied:
            key = repr(one)
            first.setdefault(key, one)
            if process.rank.rank is not None:
                ranks.setdefault(key, []).append(process.rank.rank)
    return tuple(replace(one, ranks=tuple(ranks.get(key, ()))) for key, one in first.items())


NO_MEMORY = MemorySummary(
    peak_bytes=None,
    allocated_bytes=None,
    reserved_bytes=None,
    total_bytes=None,
    peak_ratio=None,
    growth_bytes_per_step=None,
)


def summarize_trace_steps(analysis: TraceAnalysis) -> StepSummary | None:
    """The complete steps of all ranks, on the host if it was recorded; None if the lead rank shows no steps.

    Their number is that of the lead rank: a step of the training is one step of every rank.
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
    """Lengths of the complete steps, ns; empty if the file shows no steps."""
    if rank.timeline.step_source == "whole trace":
        return []
    return [step.host_ns for step in rank.timeline.steps if step.is_complete and step.host_ns > 0]


def summarize_trace_breakdown(analysis: TraceAnalysis) -> Breakdown | None:
    """Mean over the ranks; None if a file cannot show the phases."""
    known = [rank.timeline.anatomy.breakdown for rank in analysis.ranks]
    found = [breakdown for breakdown in known if breakdown is not None]
    return merge_breakdowns(found) if len(found) == len(known) else None


def summarize_trace_device(analysis: TraceAnalysis) -> Device | None:
    """All ranks' busiest devices together; None if a file shows no device work."""
    parts = [rank.partition for rank in analysis.ranks]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return replace(describe_parts(known), sm_active_ratio=analysis.utilization.sm_active_ratio)


def summarize_judged_device(analysis: TraceAnalysis) -> Device | None:
    """The same in the complete steps alone, if a file shows more than these."""
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
    """The report of traces as far as it restates what was recorded, before any judgement."""
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
