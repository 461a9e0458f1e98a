"""Files that a profiler wrote -> a Report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hotloop import __version__
from hotloop.analyze.timeline.anatomy import find_host_phases
from hotloop.analyze.timeline.collectives import collect_collectives
from hotloop.analyze.timeline.critical_path import cut_middle_step, summarize_path, summarize_ranks_path
from hotloop.analyze.timeline.memory import describe_memory
from hotloop.analyze.timeline.ranks import compare_ranks, compute_waits_by_row, list_rank_waits
from hotloop.analyze.timeline.reduce import ReduceOptions, lay_groundwork, reduce_trace
from hotloop.analyze.timeline.summary import (
    summarize_judged_device,
    summarize_trace_breakdown,
    summarize_trace_device,
    summarize_trace_ranks,
    summarize_trace_steps,
)
from hotloop.analyze.timeline.what_if import answer_asked, can_replay, forecast_for_rules, open_typical_window
from hotloop.apply import ACTS
from hotloop.core.acts import fill_fixes
from hotloop.core.errors import UsageError
from hotloop.core.graph import RankCollectives, RankSegments
from hotloop.core.redact import redact_text
from hotloop.core.report import Health, Report
from hotloop.core.timeline import TimelineNote
from hotloop.core.trace import Trace, TraceNote
from hotloop.core.trace_analysis import AskedChange, TraceAnalysis, TraceRank
from hotloop.diagnose import RULES, find_problems_in_trace
from hotloop.diagnose.verdict import describe_trace_verdict, first_serious
from hotloop.prescribe import combine_savings, rank_findings
from hotloop.trace.inputs import ReducedTraces, is_remote, map_traces
from hotloop.trace.source import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedRank:
    """What a worker sends back of one file."""

    rank: TraceRank
    collectives: RankCollectives
    segments: RankSegments | None
    """Of the step in the middle; None where it is not cut."""
    what_if: tuple[AskedChange, ...]
    notes: tuple[TimelineNote, ...]


def reduce_rank(trace: Trace, options: ReduceOptions) -> ReducedRank:
    """One file alone; everything that needs the other ranks comes after."""
    ground = lay_groundwork(trace, options.definitions)
    parts = (trace, ground.links, ground.classes, ground.steps)
    rank = TraceRank(facts=trace.facts, timeline=reduce_trace(trace, options, ground))
    asked, window, notes = list_asked(rank), None, []
    if asked and can_replay(ground.links, ground.steps):
        try:
            window = open_typical_window(*parts)
        except UsageError as error:
            notes.append(TimelineNote(level="info", code="not-replayed", message=str(error)))
    if window is not None:
        forecasts, told = forecast_for_rules(*parts, asked, window)
        rank, notes = replace(rank, forecasts=forecasts), [*notes, *told]
    if rank.timeline.step_source != "whole trace":
        rank = replace(rank, path=summarize_path(*parts, window))
    if trace.memory is not None:
        phases = find_host_phases(trace, ground.links, ground.steps)
        rank = replace(rank, memory=describe_memory(trace, ground.links, ground.steps, phases))
    answers, refusals = answer_asked(*parts, options.what_if) if options.what_if else ((), ())
    collectives = collect_collectives(*parts)
    return ReducedRank(
        rank=rank,
        collectives=collectives,
        segments=cut_middle_step(*parts, collectives) if options.beside_others else None,
        what_if=answers,
        notes=(*notes, *refusals),
    )


def answer_beside_others(
    trace: Trace, options: ReduceOptions, waits: Mapping[str, Mapping[int, int]]
) -> tuple[tuple[AskedChange, ...], tuple[TimelineNote, ...]]:
    """What was asked of one file, when the waits of its collectives are known (by the file's name)."""
    ground = lay_groundwork(trace, options.definitions)
    parts = (trace, ground.links, ground.classes, ground.steps)
    return answer_asked(*parts, options.what_if, waits.get(trace.facts.source))


def list_asked(rank: TraceRank) -> frozenset[str]:
    """What must be forecast: what the rules ask for that find something in this file alone."""
    found, _ = find_problems_in_trace(TraceAnalysis(ranks=(rank,)))
    return frozenset(name for finding in found for name in RULES[finding.rule].asks)


def report_traces(
    paths: Sequence[str | Path],
    *,
    options: ReduceOptions | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    cache_folder: Path | None = None,
    command: tuple[str, ...] = (),
) -> Report:
    """Read, reduce, judge and prescribe. Raises TraceError when no file can be read."""
    several = len(paths) > 1 or any(is_remote(path) or Path(path).is_dir() for path in paths)
    chosen = replace(options or ReduceOptions(), beside_others=several)
    needs_others = several and any(one.partition("=")[0] == "no-straggler" for one in chosen.what_if)
    read = partial(map_traces, paths, workers=workers, cache_folder=cache_folder)
    first = replace(chosen, what_if=()) if needs_others else chosen
    reduced = read(reduce=partial(reduce_rank, options=first), progress=progress)
    ranks = tuple(replace(one.result.rank, facts=one.facts) for one in reduced.traces)
    answers = tuple(
        replace(answer, rank=rank.facts.rank)
        for one, rank in zip(reduced.traces, ranks, strict=True)
        for answer in one.result.what_if
    )
    collectives = [replace(one.result.collectives, rank=one.facts.rank) for one in reduced.traces]
    together = compare_ranks(collectives)
    if needs_others:
        # The other ranks' collectives are known only now: the files are looked at once more, from their cache.
        waits = {one.facts.source: compute_waits_by_row(collectives, place) for place, one in enumerate(reduced.traces)}
        asked = read(reduce=partial(answer_beside_others, options=chosen, waits=waits))
        answers = tuple(
            replace(answer, rank=rank.facts.rank)
            for one, rank in zip(asked.traces, ranks, strict=True)
            for answer in one.result[0]
        )
        reduced = add_notes(reduced, [one.result[1] for one in asked.traces])
    notes = merge_notes(reduced)
    if together is None:
        return report_trace_analysis(TraceAnalysis(ranks=ranks, what_if=answers), notes, command)
    recorded = all(rank.facts.has_sync or not rank.timeline.devices for rank in ranks)
    segments = [one.result.segments for one in reduced.traces]
    analysis = TraceAnalysis(
        ranks=ranks,
        waits=list_rank_waits(together),
        matched_count=together.matched_count,
        transfer_ns=together.transfer_ns,
        span_ns=together.span_ns,
        ranks_path=summarize_ranks_path(collectives, segments, together.clocks, recorded),
        what_if=answers,
    )
    notes += tuple(TraceNote(level=n.level, code=n.code, message=n.message) for n in together.notes)
    return report_trace_analysis(analysis, notes, command)


def add_notes(
    reduced: ReducedTraces[ReducedRank], notes: Sequence[tuple[TimelineNote, ...]]
) -> ReducedTraces[ReducedRank]:
    """The same files, each with some more notes."""
    traces = tuple(
        replace(one, result=replace(one.result, notes=(*one.result.notes, *more)))
        for one, more in zip(reduced.traces, notes, strict=True)
    )
    return replace(reduced, traces=traces)


def merge_notes(reduced: ReducedTraces[ReducedRank]) -> tuple[TraceNote, ...]:
    """The notes of all files, worst first; what several files have in common is said once, with their number."""
    groups: dict[tuple[str, str], list[TraceNote]] = {}
    for one in reduced.traces:
        own = (
            TraceNote(level=n.level, code=n.code, message=n.message)
            for n in (*one.result.rank.timeline.notes, *one.result.notes)
        )
        # Both ends may count the same thing; what the analyses say names its consequence.
        known = {note.code: note for note in (*one.notes, *own)}
        for note in known.values():
            groups.setdefault((note.level, note.code), []).append(note)
    merged = list(reduced.notes)
    for (level, code), notes in groups.items():
        message = notes[0].message
        if len(reduced.traces) > 1:
            message = f"in {len(notes)} of {len(reduced.traces)} files: {message}"
        merged.append(TraceNote(level=level, code=code, message=message))
    return tuple(sorted(merged, key=lambda note: _LEVELS.index(note.level)))


_LEVELS = ("error", "warning", "info")


def report_trace_analysis(
    analysis: TraceAnalysis, notes: Sequence[TraceNote] = (), command: tuple[str, ...] = ()
) -> Report:
    """Judge and prescribe."""
    found, skipped = find_problems_in_trace(analysis)
    findings = fill_fixes(rank_findings(found), ACTS)
    breakdown, device = summarize_trace_breakdown(analysis), summarize_trace_device(analysis)
    in_steps = any(rank.timeline.in_steps is not None for rank in analysis.ranks)
    return Report(
        tool_version=__version__,
        command=command,
        environment={},
        outcome=None,
        verdict=describe_trace_verdict(
            findings, breakdown, summarize_judged_device(analysis), analysis.lead.judged_idle, in_steps
        ),
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
        next_command=f"hotloop rule {(first_serious(findings) or findings[0]).rule}" if findings else None,
        trace=analysis,
    )
