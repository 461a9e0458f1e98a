"""Files that a profiler wrote -> a Report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hotloop import __version__
from hotloop.analyze.timeline.reduce import ReduceOptions, reduce_trace
from hotloop.analyze.timeline.summary import (
    summarize_trace_breakdown,
    summarize_trace_device,
    summarize_trace_ranks,
    summarize_trace_steps,
)
from hotloop.core.redact import redact_text
from hotloop.core.report import Health, Report
from hotloop.core.trace import Trace, TraceNote
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank
from hotloop.diagnose import find_problems_in_trace
from hotloop.diagnose.verdict import describe_trace_verdict
from hotloop.prescribe import combine_savings, rank_findings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedRank:
    """What a worker sends back of one file: the rank and what reading it met."""

    rank: TraceRank
    notes: tuple[TraceNote, ...]


def reduce_rank(trace: Trace, options: ReduceOptions) -> ReducedRank:
    """One file alone; everything that needs the other ranks comes after."""
    timeline = reduce_trace(trace, options)
    return ReducedRank(rank=TraceRank(facts=trace.facts, timeline=timeline), notes=trace.notes)


def report_traces(
    paths: Sequence[Path],
    *,
    options: ReduceOptions | None = None,
    map_traces: Callable[[Sequence[Path], Callable[[Trace], ReducedRank]], Sequence[ReducedRank]],
    command: tuple[str, ...] = (),
) -> Report:
    """Read, reduce, judge and prescribe. ``map_traces`` reads the files and applies a function to each of them."""
    reduced = map_traces(paths, partial(reduce_rank, options=options or ReduceOptions()))
    ordered = sorted(reduced, key=lambda one: (one.rank.facts.rank is None, one.rank.facts.rank or 0))
    analysis = TraceAnalysis(ranks=tuple(one.rank for one in ordered))
    return report_trace_analysis(analysis, merge_notes(ordered), command)


def merge_notes(reduced: Sequence[ReducedRank]) -> tuple[TraceNote, ...]:
    """The notes of all files, worst first; what several files have in common is said once, with their number."""
    groups: dict[tuple[str, str], list[TraceNote]] = {}
    for one in reduced:
        for note in one.notes:
            groups.setdefault((note.level, note.code), []).append(note)
        for own in one.rank.timeline.notes:
            note = TraceNote(level=own.level, code=own.code, message=own.message, count=own.count)
            groups.setdefault((note.level, note.code), []).append(note)
    merged = []
    for (level, code), notes in sorted(groups.items(), key=lambda item: _LEVELS.index(item[0][0])):
        message = notes[0].message
        if len(reduced) > 1:
            message = f"in {len(notes)} of {len(reduced)} files: {message}"
        merged.append(TraceNote(level=level, code=code, message=message))
    return tuple(merged)


_LEVELS = ("error", "warning", "info")


def report_trace_analysis(
    analysis: TraceAnalysis, notes: Sequence[TraceNote] = (), command: tuple[str, ...] = ()
) -> Report:
    """Judge and prescribe."""
    found, skipped = find_problems_in_trace(analysis)
    findings = tuple(replace(f, next=f"hotloop rule {f.rule}") for f in rank_findings(found))
    breakdown, device = summarize_trace_breakdown(analysis), summarize_trace_device(analysis)
    return Report(
        tool_version=__version__,
        command=command,
        environment={},
        outcome=None,
        verdict=describe_trace_verdict(findings, breakdown, device),
        step=summarize_trace_steps(analysis),
        breakdown=breakdown,
        device=device,
        memory=None,
        ranks=summarize_trace_ranks(analysis),
        findings=findings,
        combined_saving=combine_savings(findings),
        forecast_history={"n": 0, "median_abs_error": None},
        skipped=skipped,
        health=tuple(Health(level=note.level, message=redact_text(note.message)) for note in notes),
        overhead=None,
        next_command=f"hotloop rule {findings[0].rule}" if findings else None,
        trace=analysis,
    )
