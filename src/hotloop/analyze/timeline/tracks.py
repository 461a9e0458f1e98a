"""Some steps of a trace -> what to write of them, with what hotloop found in them as tracks of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.core.graph import BOUND_KINDS
from hotloop.core.phases import PHASES
from hotloop.core.trace import Trace
from hotloop.core.trace_results import Slice, TraceExcerpt, Track

from .anatomy import HostPhases, find_host_phases
from .critical_path import find_critical_path
from .device_partition import DeviceCover, cover_devices, partition_windows
from .excerpt import Excerpt, choose_steps, cut_excerpt
from .intervals import Intervals, clip, find_gaps, overlap_pieces, subtract
from .reduce import Groundwork, lay_groundwork
from .steps import DeviceSteps, StepWindows, assign_device_work

NAME_LENGTH = 200
"""Of an event on the critical path; the event itself stands beside it with its whole name."""


def draw_steps(trace: Trace, definitions: str = "default", wanted: tuple[int, int] | None = None) -> TraceExcerpt:
    """The steps of the numbers ``wanted``, else the usual step and its neighbours. Raises UsageError without events."""
    ground = lay_groundwork(trace, definitions)
    links, steps = ground.links, ground.steps
    if not len(steps):
        raise UsageError(f"{trace.facts.source} contains no events to export")
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
    return TraceExcerpt(
        rows=excerpt.rows,
        tracks=tuple(tracks),
        links=(excerpt.calls, excerpt.launched),
        steps=tuple(steps.index[first : last + 1]) if has_steps else (),
        pathless=pathless,
    )


def _draw_steps(steps: StepWindows, excerpt: Excerpt) -> Iterator[Slice]:
    for at in range(excerpt.first, excerpt.last + 1):
        start_ns, end_ns = int(steps.start_ns[at]), int(steps.end_ns[at])
        yield Slice(
            name=f"step {steps.index[at]}",
            start_ns=start_ns,
            end_ns=end_ns,
            args={"host_ns": end_ns - start_ns, "is_complete": bool(steps.is_complete[at])},
        )


def _draw_phases(phases: HostPhases, steps: StepWindows, excerpt: Excerpt) -> Iterator[Slice]:
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


def _draw_phase(piece: tuple[int, int, int, int], steps: StepWindows, excerpt: Excerpt) -> Slice:
    start_ns, end_ns, phase, step = piece
    return Slice(name=PHASES[phase], start_ns=start_ns, end_ns=end_ns, args={"step": steps.index[excerpt.first + step]})


def _find_windows(seen: DeviceSteps, excerpt: Excerpt) -> tuple[list[int], Intervals]:
    """The places of the steps that the device worked for, and their windows on it."""
    places = [at for at in range(excerpt.first, excerpt.last + 1) if seen.has_window[at]]
    return places, Intervals(seen.start_ns[places], seen.end_ns[places])


def _draw_windows(cover: DeviceCover, seen: DeviceSteps, steps: StepWindows, excerpt: Excerpt) -> Iterator[Slice]:
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


def _draw_partition(cover: DeviceCover, seen: DeviceSteps, steps: StepWindows, excerpt: Excerpt) -> Iterator[Slice]:
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
