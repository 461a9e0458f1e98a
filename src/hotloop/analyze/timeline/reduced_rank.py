"""One file of a profiler -> a ReducedRank, small enough to send; those of all ranks -> the TraceAnalysis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from hotloop.core.errors import UsageError
from hotloop.core.graph import RankCollectives, RankSegments
from hotloop.core.redact import redact_text
from hotloop.core.report import Health
from hotloop.core.trace import Trace, TraceNote
from hotloop.core.trace_analysis import AskedChange, TraceAnalysis, TraceRank
from hotloop.core.trace_results import ReducedTraces

from .anatomy import find_host_phases
from .clocks import describe_hosts
from .collective_report import compare_ranks, list_waits_by_row
from .collectives import collect_collectives
from .critical_path import cut_middle_step, join_paths, summarize_path
from .memory import describe_memory
from .reduce import ReduceOptions, lay_groundwork, reduce_trace
from .what_if import answer_asked, can_replay, forecast_for_rules, open_typical_window

Waits = Mapping[str, Mapping[int, int]]
"""By the file's name: the wait of each of its collectives in ns, by its row."""
Answers = tuple[tuple[AskedChange, ...], tuple[TraceNote, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedRank:
    """What a worker sends back of one file."""

    rank: TraceRank
    collectives: RankCollectives
    segments: RankSegments | None
    """Of the step in the middle; None where it is not cut."""
    what_if: tuple[AskedChange, ...]
    notes: tuple[TraceNote, ...]


def describe_rank(
    trace: Trace, options: ReduceOptions, list_asked: Callable[[TraceRank], frozenset[str]]
) -> ReducedRank:
    """One file alone; everything that needs the other ranks comes after.

    ``list_asked`` names what must be forecast of a rank, for the rules that find something in it.
    """
    ground = lay_groundwork(trace, options.definitions)
    parts = (trace, ground.links, ground.classes, ground.steps)
    rank = TraceRank(facts=trace.facts, timeline=reduce_trace(trace, options, ground))
    asked, window, notes = list_asked(rank), None, []
    if asked and can_replay(ground.links, ground.steps):
        try:
            window = open_typical_window(*parts)
        except UsageError as error:
            notes.append(TraceNote(level="info", code="not-replayed", message=str(error)))
    if window is not None:
        forecasts, forecast_notes = forecast_for_rules(*parts, asked, window)
        rank, notes = replace(rank, forecasts=forecasts), [*notes, *forecast_notes]
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


def needs_others(changes: tuple[str, ...]) -> bool:
    """Whether one of the changes can only be answered beside the files of the other ranks."""
    return any(one.partition("=")[0] == "no-straggler" for one in changes)


def answer_beside_others(trace: Trace, options: ReduceOptions, waits: Waits) -> Answers:
    """What was asked of one file, when the waits of its collectives are known."""
    ground = lay_groundwork(trace, options.definitions)
    parts = (trace, ground.links, ground.classes, ground.steps)
    return answer_asked(*parts, options.what_if, waits.get(trace.facts.source))


def list_waits(reduced: ReducedTraces[ReducedRank]) -> Waits:
    """The waits of all files for each other."""
    sources = [one.facts.source for one in reduced.traces]
    return dict(zip(sources, list_waits_by_row(_list_collectives(reduced)), strict=True))


def add_answers(reduced: ReducedTraces[ReducedRank], answered: ReducedTraces[Answers]) -> ReducedTraces[ReducedRank]:
    """The same files with what was asked of each, and why some of it has no answer."""
    traces = tuple(
        replace(
            one,
            result=replace(one.result, what_if=other.result[0], notes=(*one.result.notes, *other.result[1])),
        )
        for one, other in zip(reduced.traces, answered.traces, strict=True)
    )
    return replace(reduced, traces=traces)


def join_ranks(reduced: ReducedTraces[ReducedRank]) -> tuple[TraceAnalysis, tuple[TraceNote, ...]]:
    """All ranks together, and what has to be said of their files."""
    ranks = tuple(replace(one.result.rank, facts=one.facts) for one in reduced.traces)
    answers = tuple(replace(answer, rank=one.facts.rank) for one in reduced.traces for answer in one.result.what_if)
    notes = merge_notes(reduced)
    collectives = _list_collectives(reduced)
    together = compare_ranks(collectives)
    if together is None:
        return TraceAnalysis(ranks=ranks, what_if=answers), notes
    recorded = all(rank.facts.has_sync or not rank.timeline.devices for rank in ranks)
    segments = [one.result.segments for one in reduced.traces]
    analysis = TraceAnalysis(
        ranks=ranks,
        waits=together.waits,
        matched_count=together.matched_count,
        transfer_ns=together.transfer_ns,
        span_ns=together.span_ns,
        collectives=together.kinds,
        hosts=describe_hosts(together.clocks),
        ranks_path=join_paths(collectives, segments, together.clocks, recorded),
        what_if=answers,
    )
    return analysis, (*notes, *together.notes)


def merge_notes(reduced: ReducedTraces[ReducedRank]) -> tuple[TraceNote, ...]:
    """The notes of all files, worst first; what several files have in common is said once, with their number."""
    groups: dict[tuple[str, str], list[TraceNote]] = {}
    for one in reduced.traces:
        own = (*one.result.rank.timeline.notes, *one.result.notes)
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


def describe_notes(notes: Iterable[TraceNote]) -> tuple[Health, ...]:
    """Notes as the report holds them."""
    return tuple(Health(level=note.level, message=redact_text(note.message)) for note in notes)


_LEVELS = ("error", "warning", "info")


def _list_collectives(reduced: ReducedTraces[ReducedRank]) -> list[RankCollectives]:
    return [replace(one.result.collectives, rank=one.facts.rank) for one in reduced.traces]
