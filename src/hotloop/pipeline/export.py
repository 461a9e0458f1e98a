"""Traces -> a Chrome trace of a few steps, with what hotloop found in them as tracks of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotloop.analyze.timeline.anatomy import HostPhases, find_host_phases
from hotloop.analyze.timeline.critical_path import find_critical_path
from hotloop.analyze.timeline.excerpt import Excerpt, choose_steps, cut_excerpt
from hotloop.analyze.timeline.intervals import Intervals, clip, find_gaps, overlap_pieces, subtract
from hotloop.analyze.timeline.partition import DeviceCover, cover_devices, partition_windows
from hotloop.analyze.timeline.reduce import Groundwork, lay_groundwork
from hotloop.analyze.timeline.steps import DeviceSteps, Steps, assign_device_work
from hotloop.core.errors import UsageError
from hotloop.core.graph import BOUND_KINDS
from hotloop.core.phases import PHASES
from hotloop.core.trace import Trace, TraceFacts
from hotloop.trace.chrome import Slice, Track, write_chrome
from hotloop.trace.inputs import find_traces, read_trace_file

NAME_LENGTH = 200
"""Of an event on the critical path; the event itself stands beside it with its whole name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    source: str
    rank: int | None
    steps: tuple[int, ...]
    """Their numbers; empty where the trace shows no steps and was exported whole."""
    events_count: int
    pathless: str | None
    """Why a step has no critical path; None where all have one."""


def export_steps(
    paths: Sequence[str | Path],
    lead: TraceFacts,
    target: Path,
    *,
    wanted: tuple[int, int] | None = None,
    definitions: str = "default",
    cache_folder: Path | None = None,
) -> Exported:
    """Write the steps of the lead rank's trace (numbers ``wanted``, else the usual step and its neighbours).

    ``lead`` says which of the files that ``paths`` mean it is.
    """
    files = find_traces(paths).files
    file = next((f for f in files if f.source == lead.source), files[0])
    traces = read_trace_file(file, cache_folder=cache_folder)
    trace = next((t for t in traces if t.facts.rank == lead.rank), traces[0])
    return export_trace(trace, lay_groundwork(trace, definitions), target, wanted)


def export_trace(trace: Trace, ground: Groundwork, target: Path, wanted: tuple[int, int] | None = None) -> Exported:
    """Write some steps of one trace."""
    links, steps = ground.links, ground.steps
    if not len(steps):
        raise UsageError(f"{trace.facts.source} holds no events that could be exported")
    first, last = choose_steps(steps, wanted)
    covers = cover_devices(trace, links, ground.classes)
    cover = covers[0] if covers else None
    seen = assign_device_work(trace, links, cover.work, steps) if cover else None
    excerpt = cut_excerpt(trace, links, steps, seen, first, last)
    has_steps = steps.source != "whole trace"
    tracks = []
    if has_steps:
        tracks.append(Track(name="steps on the host", slices=_draw_steps(steps, excerpt)))
    phases = find_host_phases(trace, links, steps)
    if len(phases.phase):
        tracks.append(Track(name="phases on the host", slices=_draw_phases(phases, steps, excerpt)))
    if cover is not None and seen is not None and has_steps:
        device = f"device {cover.device}"
        tracks.append(Track(name=f"steps on {device}", slices=_draw_windows(cover, seen, steps, excerpt)))
        tracks.append(Track(name=f"{device}: where time goes", slices=_draw_partition(cover, seen, steps, excerpt)))
    path, pathless = _draw_paths(trace, ground, excerpt) if has_steps else ((), None)
    if path:
        tracks.append(Track(name="critical path", slices=path))
    numbers = steps.index[first : last + 1] if has_steps else ()
    which = f"steps {numbers[0]} to {numbers[-1]}" if numbers else "everything"
    write_chrome(
        target,
        trace,
        excerpt.rows,
        tracks,
        (excerpt.calls, excerpt.launched),
        about=f"{which} of {trace.facts.source}, by hotloop",
    )
    return Exported(
        source=trace.facts.source,
        rank=trace.facts.rank,
        steps=numbers,
        events_count=len(excerpt.rows),
        pathless=pathless,
    )


def _draw_steps(steps: Steps, excerpt: Excerpt) -> Iterator[Slice]:
    for at in range(excerpt.first, excerpt.last + 1):
        start_ns, end_ns = int(steps.start_ns[at]), int(steps.end_ns[at])
        yield Slice(
            name=f"step {steps.index[at]}",
            start_ns=start_ns,
            end_ns=end_ns,
            args={"host_ns": end_ns - start_ns, "is_complete": bool(steps.is_complete[at])},
        )


def _draw_phases(phases: HostPhases, steps: Steps, excerpt: Excerpt) -> Iterator[Slice]:
    at = slice(excerpt.first, excerpt.last + 1)
    windows = Intervals(steps.start_ns[at], steps.end_ns[at])
    start, end, segment, step = overlap_pieces(Intervals(phases.edge_ns[:-1], phases.edge_ns[1:]), windows)
    pieces = zip(start.tolist(), end.tolist(), phases.phase[segment].tolist(), step.tolist(), strict=True)
    previous: tuple[int, int, int, int] | None = None
    for piece in pieces:
        if previous is not None and previous[1:] == (piece[0], piece[2], piece[3]):
            previous = (previous[0], piece[1], piece[2], piece[3])
            continue
        if previous is not None:
            yield _draw_phase(previous, steps, excerpt)
        previous = piece
    if previous is not None:
        yield _draw_phase(previous, steps, excerpt)


def _draw_phase(piece: tuple[int, int, int, int], steps: Steps, excerpt: Excerpt) -> Slice:
    start_ns, end_ns, phase, step = piece
    return Slice(name=PHASES[phase], start_ns=start_ns, end_ns=end_ns, args={"step": steps.index[excerpt.first + step]})


def _find_windows(seen: DeviceSteps, excerpt: Excerpt) -> tuple[list[int], Intervals]:
    """The places of the steps that the device worked for, and their windows on it."""
    places = [at for at in range(excerpt.first, excerpt.last + 1) if seen.has_window[at]]
    return places, Intervals(seen.start_ns[places], seen.end_ns[places])


def _draw_windows(cover: DeviceCover, seen: DeviceSteps, steps: Steps, excerpt: Excerpt) -> Iterator[Slice]:
    places, windows = _find_windows(seen, excerpt)
    parts = partition_windows(cover, windows.start_ns, windows.end_ns)
    for at, start_ns, end_ns, part in zip(
        places, windows.start_ns.tolist(), windows.end_ns.tolist(), parts, strict=True
    ):
        yield Slice(
            name=f"step {steps.index[at]}",
            start_ns=start_ns,
            end_ns=end_ns,
            args={
                "compute_ns": part.compute_ns,
                "exposed_comm_ns": part.exposed_comm_ns,
                "exposed_mem_ns": part.exposed_mem_ns,
                "idle_ns": part.idle_ns,
            },
        )


def _draw_partition(cover: DeviceCover, seen: DeviceSteps, steps: Steps, excerpt: Excerpt) -> Iterator[Slice]:
    places, windows = _find_windows(seen, excerpt)
    if not places:
        return
    low, high = int(windows.start_ns[0]), int(windows.end_ns[-1])
    compute, both, busy = (clip(part, low, high) for part in (cover.compute, cover.compute_or_comm, cover.busy))
    named = {
        "compute": compute,
        "exposed_comm": subtract(both, compute),
        "exposed_mem": subtract(busy, both),
        "idle": find_gaps(busy, low, high),
    }
    pieces = []
    for name, part in named.items():
        start, end, _, step = overlap_pieces(part, windows)
        pieces += list(zip(start.tolist(), end.tolist(), step.tolist(), [name] * len(start), strict=True))
    for start_ns, end_ns, step, name in sorted(pieces):
        yield Slice(name=name, start_ns=start_ns, end_ns=end_ns, args={"step": steps.index[places[step]]})


def _draw_paths(trace: Trace, ground: Groundwork, excerpt: Excerpt) -> tuple[tuple[Slice, ...], str | None]:
    slices: list[Slice] = []
    pathless = None
    for at in range(excerpt.first, excerpt.last + 1):
        try:
            path = find_critical_path(trace, ground.links, ground.classes, ground.steps, at)
        except UsageError as error:
            pathless = f"step {ground.steps.index[at]}: {error}"
            continue
        ends = np.append(path.from_ns[1:], path.end_ns)
        stretches = zip(path.rows.tolist(), path.from_ns.tolist(), ends.tolist(), path.kinds.tolist(), strict=True)
        for row, start_ns, end_ns, kind in stretches:
            event = trace.names[trace.name[row]][:NAME_LENGTH] if row >= 0 else "nothing recorded"
            slices.append(
                Slice(
                    name=f"{BOUND_KINDS[kind]}: {event}",
                    start_ns=start_ns,
                    end_ns=end_ns,
                    args={"step": path.step, "bound_by": BOUND_KINDS[kind], "paced_by": path.paced_by},
                )
            )
    return tuple(slices), pathless
