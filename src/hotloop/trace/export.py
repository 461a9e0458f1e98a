"""Traces -> a Chrome trace of a few steps of one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hotloop.core.trace import Trace, TraceFacts
from hotloop.core.trace_results import TraceExcerpt

from .chrome import write_chrome
from .inputs import find_traces, read_trace_file


def export_steps(
    paths: Sequence[str | Path],
    lead: TraceFacts,
    target: Path,
    draw: Callable[[Trace], TraceExcerpt],
    *,
    cache_folder: Path | None = None,
) -> tuple[str, TraceExcerpt]:
    """Write what ``draw`` makes of the lead rank's trace; answers the name of its file and what was written.

    ``lead`` says which of the files that ``paths`` mean it is.
    """
    files = find_traces(paths).files
    file = next((f for f in files if f.source == lead.source), files[0])
    traces = read_trace_file(file, cache_folder=cache_folder)
    trace = next((t for t in traces if t.facts.rank == lead.rank), traces[0])
    excerpt = draw(trace)
    which = f"steps {excerpt.steps[0]} to {excerpt.steps[-1]}" if excerpt.steps else "everything"
    about = f"{which} of {trace.facts.source}, by hotloop"
    write_chrome(target, trace, excerpt.rows, excerpt.tracks, excerpt.links, about)
    return trace.facts.source, excerpt
