"""Traces as others read them: some steps with what hotloop found as tracks, and events as a database holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import UsageError
from hotloop.core.graph import BOUND_KINDS
from hotloop.core.phases import PHASES
from hotloop.core.trace import DEVICE_WORK, Category, Trace
from hotloop.core.trace_results import EventTables, Slice, TraceExcerpt, Track

from .anatomy import HostPhases, find_host_phases, split_steps
from .classes import DeviceCover, cover_devices, partition_windows
from .critical_path import choose_step, find_critical_path
from .intervals import Int64s, Intervals, clip, find_gaps, overlap_pieces, subtract
from .links import Links
from .reduce import Groundwork, describe_steps, lay_groundwork
from .steps import DeviceSteps, StepWindows, assign_device_work

NEIGHBOURS = 1
"""Steps on either side of the usual one that are shown with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Steps by their places, first to last inclusive."""

    first: int
    last: int
    rows: Int64s
    """Ascending."""
    calls: Int64s
    """Rows of launching calls, and in ``launched`` the device work of each."""
    launched: Int64s

    @property
    def places(self) -> range:
        return range(self.first, self.last + 1)


def choose_steps(steps: StepWindows, wanted: tuple[int, int] | None) -> tuple[int, int]:
    """Places of the first and the last step: of the numbers ``wanted``, else the usual step and its neighbours.

    Raises UsageError when the trace has no such steps.
    """
    if steps.source == "whole trace":
        if wanted is not None:
            raise UsageError("--export-steps: the trace contains no steps; omit it to export the whole trace")
        return 0, len(steps) - 1
    if wanted is None:
        usual = choose_step(steps)
        return max(0, usual - NEIGHBOURS), min(len(steps) - 1, usual + NEIGHBOURS)
    low, high = wanted
    places = [at for at, number in enumerate(steps.index) if low <= number <= high]
    if not places:
        raise UsageError(
            f"--export-steps {low}:{high}: the trace contains steps {min(steps.index)} to {max(steps.index)}"
        )
    return places[0], places[-1]


def cut_excerpt(
    trace: Trace, links: Links, steps: StepWindows, seen: DeviceSteps | None, first: int, last: int
) -> Excerpt:
    """Everything on the host that overlaps the steps; all device work that overlaps their device windows or that they
    launched; and for all of this work its launching calls with the operators around them, wherever those lie, without
    which it would be known less well than in the whole trace."""
    chosen = np.full(len(trace.start_ns), steps.source == "whole trace")
    linked = np.flatnonzero(links.launch_row >= 0)
    if steps.source != "whole trace":
        low, high = int(steps.start_ns[first]), int(steps.end_ns[last])
        on_device = np.isin(trace.category, [int(c) for c in (*DEVICE_WORK, Category.SYNC, Category.DEVICE_ANNOTATION)])
        chosen |= ~on_device & _overlaps(trace, low, high)
        # The profiler's own span around all that it recorded would only make the excerpt look long.
        ends_after = trace.start_ns + trace.duration_ns > high
        chosen &= ~((trace.category == Category.OTHER) & (trace.start_ns < low) & ends_after)
        if seen is not None and seen.has_window[first : last + 1].any():
            windows = np.flatnonzero(seen.has_window[first : last + 1]) + first
            chosen |= on_device & _overlaps(trace, int(seen.start_ns[windows].min()), int(seen.end_ns[windows].max()))
        at = trace.start_ns[links.launch_row[linked]]
        chosen[links.device_rows[linked[(at >= low) & (at < high)]]] = True
        linked = linked[chosen[links.device_rows[linked]]]
        chosen[links.launch_row[linked]] = True
        around = links.op_place[linked]
        chosen[links.ranges.rows[around[around >= 0]]] = True
    return Excerpt(
        first=first,
        last=last,
        rows=np.flatnonzero(chosen),
        calls=links.launch_row[linked],
        launched=links.device_rows[linked],
    )


def _overlaps(trace: Trace, low_ns: int, high_ns: int) -> NDArray[np.bool_]:
    """Events with an instant in [low, high); one without length by its instant."""
    found: NDArray[np.bool_] = (trace.start_ns < high_ns) & (
        (trace.start_ns + trace.duration_ns > low_ns) | (trace.start_ns >= low_ns)
    )
    return found


NAME_LENGTH = 200
"""Of an event on the critical path; the event itself stands beside it with its whole name."""


def draw_steps(trace: Trace, wanted: tuple[int, int] | None = None) -> TraceExcerpt:
    """The steps of the numbers ``wanted``, else the usual step and its neighbours. Raises UsageError without events."""
    ground = lay_groundwork(trace)
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
    for at in excerpt.places:
        start_ns, end_ns = int(steps.start_ns[at]), int(steps.end_ns[at])
        args = {"host_ns": end_ns - start_ns, "is_complete": bool(steps.is_complete[at])}
        yield Slice(name=f"step {steps.index[at]}", start_ns=start_ns, end_ns=end_ns, args=args)


def _draw_phases(phases: HostPhases, steps: StepWindows, excerpt: Excerpt) -> Iterator[Slice]:
    at = slice(excerpt.first, excerpt.last + 1)
    windows = Intervals(steps.start_ns[at], steps.end_ns[at])
    pieces = overlap_pieces(Intervals(phases.edge_ns[:-1], phases.edge_ns[1:]), windows)
    phase, step = phases.phase[pieces.of_a], pieces.of_b
    # Neighbours of one phase and step are one slice.
    begins = np.ones(len(phase), dtype=bool)
    begins[1:] = (np.diff(phase) != 0) | (np.diff(step) != 0) | (pieces.start_ns[1:] != pieces.end_ns[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(phase))[: len(first)] - 1
    starts, ends = pieces.start_ns[first].tolist(), pieces.end_ns[last].tolist()
    for start_ns, end_ns, number, place in zip(starts, ends, phase[first].tolist(), step[first].tolist(), strict=True):
        args = {"step": steps.index[excerpt.first + place]}
        yield Slice(name=PHASES[number], start_ns=start_ns, end_ns=end_ns, args=args)


def _find_windows(seen: DeviceSteps, excerpt: Excerpt) -> tuple[list[int], Intervals]:
    """The places of the steps that the device worked for, and their windows on it."""
    places = [at for at in excerpt.places if seen.has_window[at]]
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
    slices = []
    for name, part in named.items():
        pieces = overlap_pieces(part, windows)
        columns = (pieces.start_ns.tolist(), pieces.end_ns.tolist(), pieces.of_b.tolist())
        slices += [(*piece, name) for piece in zip(*columns, strict=True)]
    for start_ns, end_ns, step, name in sorted(slices):
        yield Slice(name=name, start_ns=start_ns, end_ns=end_ns, args={"step": steps.index[places[step]]})


def _draw_paths(trace: Trace, ground: Groundwork, excerpt: Excerpt) -> tuple[tuple[Slice, ...], str | None]:
    slices: list[Slice] = []
    pathless = None
    for at in excerpt.places:
        try:
            path = find_critical_path(trace, ground.links, ground.classes, ground.steps, at)
        except UsageError as error:
            pathless = f"step {ground.steps.index[at]}: {error}"
            continue
        step, pieces = path.summary, path.stretches
        columns = (pieces.row.tolist(), pieces.begin_ns.tolist(), pieces.end_ns.tolist(), pieces.kind.tolist())
        for row, start_ns, end_ns, kind in zip(*columns, strict=True):
            event = trace.names[trace.name[row]][:NAME_LENGTH] if row >= 0 else "nothing recorded"
            slices.append(
                Slice(
                    name=f"{BOUND_KINDS[kind]}: {event}",
                    start_ns=start_ns,
                    end_ns=end_ns,
                    args={"step": step.step, "bound_by": BOUND_KINDS[kind], "paced_by": step.paced_by},
                )
            )
    return tuple(slices), pathless


ON_THE_DEVICE = (Category.SYNC, Category.DEVICE_ANNOTATION)
"""Drawn on the device, launched by nothing: which step they belong to is not known."""


def tabulate_events(trace: Trace) -> EventTables:
    ground = lay_groundwork(trace)
    links, steps = ground.links, ground.steps
    covers = cover_devices(trace, links, ground.classes)
    has_steps = steps.source != "whole trace"
    step = np.full(len(trace.start_ns), -1, dtype=np.int64)
    seen: DeviceSteps | None = None
    if has_steps:
        numbers = np.array([*steps.index, -1], dtype=np.int64)
        found = steps.find_step(trace.start_ns)
        found[np.isin(trace.category, [int(c) for c in ON_THE_DEVICE])] = -1
        step = numbers[found]
        step[links.device_rows] = -1
        for cover in covers:
            assigned = assign_device_work(trace, links, cover.work, steps)
            step[links.device_rows[cover.work]] = numbers[assigned.of_work]
            seen = assigned if seen is None else seen
    operator = np.full(len(links.device_rows), -1, dtype=np.int64)
    known = links.op_place >= 0
    operator[known] = links.ranges.rows[links.op_place[known]]
    return EventTables(
        step_source=steps.source if has_steps else None,
        step=step,
        device_rows=links.device_rows,
        kind=ground.classes.kind,
        launch_row=links.launch_row,
        operator_row=operator,
        steps=_list_steps(trace, ground, covers[0] if covers else None, seen) if has_steps else (),
    )


def _list_steps(
    trace: Trace, ground: Groundwork, cover: DeviceCover | None, seen: DeviceSteps | None
) -> list[tuple[int | bool | None, ...]]:
    phases = split_steps(find_host_phases(trace, ground.links, ground.steps), ground.steps)
    rows: list[tuple[int | bool | None, ...]] = []
    for window in describe_steps(ground.steps, phases, cover, seen):
        part = window.partition
        device: tuple[int | None, ...] = (None,) * 5
        if part is not None:
            device = (part.window_ns, part.compute_ns, part.exposed_comm_ns, part.exposed_mem_ns, part.idle_ns)
        at = (window.host_start_ns, window.host_end_ns, window.host_ns, window.device_start_ns)
        rows.append((window.index, window.is_complete, *at, *device, *window.phases_ns))
    return rows
