"""Files that a profiler wrote -> a Report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hotloop import __version__
from hotloop.change.apply import ACTS
from hotloop.core.report import Report
from hotloop.core.settings import load_settings
from hotloop.core.trace import Trace, TraceNote
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank
from hotloop.evidence.analyze.summary import restate_trace, summarize_judged_device
from hotloop.evidence.analyze.timeline.reduce import (
    ReducedRank,
    ReduceOptions,
    describe_notes,
    describe_rank,
    join_ranks,
)
from hotloop.evidence.trace.byte_source import Progress
from hotloop.evidence.trace.inputs import map_traces
from hotloop.evidence.trace.memory_files import read_memory_file
from hotloop.judge.diagnose import RULES, find_problems_in_trace
from hotloop.judge.diagnose.completion import complete_findings
from hotloop.judge.diagnose.memory_remedies import MemorySituation, list_failures
from hotloop.judge.diagnose.rules.out_of_memory import describe_failures, out_of_memory
from hotloop.judge.diagnose.verdict import describe_memory_verdict, describe_trace_verdict, first_serious


def report_traces(
    paths: Sequence[str | Path],
    *,
    options: ReduceOptions | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    command: tuple[str, ...] = (),
    targets: Mapping[str, float] | None = None,
) -> Report:
    """Read, reduce, judge and prescribe. Raises TraceError when no file can be read."""
    reduced = map_traces(
        paths,
        workers=workers,
        reduce=partial(reduce_rank, options=options or ReduceOptions()),
        progress=progress,
    )
    analysis, notes = join_ranks(reduced)
    return report_trace_analysis(replace(analysis, targets=targets or {}), notes, command)


def reduce_rank(trace: Trace, options: ReduceOptions) -> ReducedRank:
    """One file alone, with forecasts for the rules that find something in it."""
    return describe_rank(trace, options, _list_asked)


def _list_asked(rank: TraceRank) -> frozenset[str]:
    found, _ = find_problems_in_trace(TraceAnalysis(ranks=(rank,)))
    return frozenset(name for finding in found for name in RULES[finding.rule].asks)


def report_trace_analysis(
    analysis: TraceAnalysis, notes: Sequence[TraceNote] = (), command: tuple[str, ...] = ()
) -> Report:
    """Judge and prescribe."""
    found, skipped = find_problems_in_trace(analysis, off=load_settings().ignore)
    findings, combined = complete_findings(found, ACTS)
    seen, judged = restate_trace(analysis), summarize_judged_device(analysis)
    in_steps = any(rank.timeline.in_steps is not None for rank in analysis.ranks)
    return replace(
        seen,
        command=command,
        verdict=describe_trace_verdict(findings, seen.breakdown, judged, analysis.lead.judged_idle, in_steps),
        findings=findings,
        combined_saving=combined,
        skipped=skipped,
        health=describe_notes(notes),
        next_command=f"hotloop rule {(first_serious(findings) or findings[0]).rule}" if findings else None,
    )


def report_memory_files(paths: Sequence[Path], command: tuple[str, ...] = ()) -> Report:
    """The report of memory snapshots. Raises RecordingError in one line for a file that is none."""
    read = [read_memory_file(path) for path in paths]
    found = [one for file, _ in read for one in describe_failures(list_failures(file), known=MemorySituation())]
    findings, _ = complete_findings([out_of_memory.sign(one) for one in found], ACTS)
    return Report(
        tool_version=__version__,
        command=command,
        verdict=f"{findings[0].rule}: {findings[0].title}" if findings else describe_memory_verdict(read[0][0]),
        findings=findings,
        health=describe_notes([note for _, notes in read for note in notes]),
        memory_files=tuple(file for file, _ in read),
    )
