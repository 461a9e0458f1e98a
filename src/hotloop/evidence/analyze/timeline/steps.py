"""Trace -> StepWindows: the windows of the training steps on the host, and to which step each device event belongs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.trace import DEVICE_WORK, Category, Trace

from .intervals import Int64s
from .links import NONE, Links, find_categories, match_names

PROFILER_STEP = re.compile(r"^ProfilerStep#(\d+)$")
LOADER_NEXT = re.compile(r"^enumerate\(DataLoader\)#.*__next__")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
ITERATION = re.compile(
    r"^\W*(?:(?:train(?:ing)?|global)[_ .:]?)?(?:step|iter|iteration|batch|microstep)s?(?:[_ .:#=\-]*\d+)?\W*$",
    re.IGNORECASE,
)
"""Ranges that a user draws around one step: 'step 12', 'train_step', 'Iteration#3', '## iter ##'."""
BACKWARD_NAME = re.compile(
    r"^autograd::engine::evaluate_function|AccumulateGrad$|Backward\d*$|^torch\.distributed\.ddp\.reducer::"
)
"""Operators that autograd runs in a backward pass. Releases before 1.11 have no evaluate_function, only the nodes;
DistributedDataParallel's reducer works at the end of the pass."""

HOST_ACTIVITY = (Category.CPU_OP, Category.RUNTIME, Category.ANNOTATION, Category.PYTHON)
"""The work of a host. The span that the profiler draws around its own run is not part of it."""

MIN_INFERRED_STEPS = 2
"""One range or one optimizer step shows no rhythm."""


@dataclass(frozen=True, slots=True)
class StepWindows:
    """Windows on the host, disjoint and in order."""

    source: str
    index: tuple[int, ...]
    start_ns: Int64s
    end_ns: Int64s
    is_complete: NDArray[np.bool_]
    main_thread: int | None

    def __len__(self) -> int:
        return len(self.start_ns)

    def find_step(self, time_ns: Int64s) -> Int64s:
        """Position of the step whose window contains each instant; NONE between and outside of the windows."""
        at = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        held = np.maximum(at, 0)
        inside = (at >= 0) & (time_ns < self.end_ns[held]) if len(self) else np.zeros(len(time_ns), dtype=bool)
        return np.where(inside, at, NONE)


@dataclass(frozen=True, slots=True)
class DeviceSteps:
    """The steps as one device saw them; one entry for each step."""

    of_work: Int64s
    """Step of each work number of the device; NONE if no step launched it."""
    start_ns: Int64s
    """-1 for a step without a device window."""
    end_ns: Int64s
    gpu_events: Int64s
    unlinked_events: Int64s
    has_window: NDArray[np.bool_]


def find_steps(trace: Trace, links: Links) -> StepWindows:
    """The steps of a trace: ProfilerStep ranges, else the user's iteration ranges, else optimizer steps, else batches
    of a loader, else the whole trace as one window."""
    matched = _match_ranges(trace, links)
    if not matched:
        return _whole_trace(trace, find_main_thread(trace, links))
    source, places = matched[0]
    if source == "ProfilerStep" or source.startswith("range "):
        return _steps_from_spans(trace, links, places, source)
    return _steps_between(trace, links, places, source, are_ends=source == "optimizer")


def find_main_thread(trace: Trace, links: Links) -> int | None:
    """The interned thread that drives the training: that of the step ranges, loaders and optimizers if there are any,
    else the one with the most operators that are not of a backward pass; None without host ranges."""
    ranges = links.ranges
    if len(ranges) == 0:
        return None
    name = trace.name[ranges.rows]
    for pattern in (PROFILER_STEP, LOADER_NEXT, OPTIMIZER_STEP):
        marked = match_names(trace, name, pattern)
        if marked.any():
            return _find_most_common(ranges.thread[marked])
    forward = ~match_names(trace, name, BACKWARD_NAME)
    # A thread that only runs what autograd gives it has a backward node around everything.
    top = (ranges.parent < 0) & forward
    chosen = top if top.any() else np.ones(len(ranges), dtype=bool)
    return _find_most_common(ranges.thread[chosen])


def _find_most_common(thread: NDArray[np.int32]) -> int:
    """The thread that occurs most; the lowest if there are several. An unknown thread is -1, and counts like the
    others."""
    found, count = np.unique(thread, return_counts=True)
    return int(found[np.argmax(count)])


def _match_ranges(trace: Trace, links: Links) -> list[tuple[str, Int64s]]:
    """(source, positions in the nesting) of everything that could mark steps, the best first: ranges that take no time
    mark none."""
    ranges = links.ranges
    name = trace.name[ranges.rows]
    lasts = ranges.end_ns > ranges.start_ns
    found: list[tuple[str, Int64s]] = []
    profiler = np.flatnonzero(lasts & match_names(trace, name, PROFILER_STEP))
    if len(profiler):
        found.append(("ProfilerStep", profiler))
    drawn = lasts & (trace.category[ranges.rows] == Category.ANNOTATION)
    iteration = np.flatnonzero(drawn & match_names(trace, name, ITERATION))
    found += _group_iterations(trace, links, iteration)
    optimizer = np.flatnonzero(lasts & match_names(trace, name, OPTIMIZER_STEP))
    if len(optimizer):
        # With several optimizers, a step ends with the one that steps least often: the others run inside it.
        kinds, count = np.unique(name[optimizer], return_counts=True)
        enough = count >= MIN_INFERRED_STEPS
        if enough.any():
            rarest = kinds[enough][np.argmin(count[enough])]
            found.append(("optimizer", optimizer[name[optimizer] == rarest]))
    loader = np.flatnonzero(lasts & match_names(trace, name, LOADER_NEXT))
    if len(loader) >= MIN_INFERRED_STEPS:
        found.append(("dataloader", loader))
    return found


def _group_iterations(trace: Trace, links: Links, places: Int64s) -> list[tuple[str, Int64s]]:
    """The iteration ranges by their name without its number; the name with the most time first."""
    groups: dict[tuple[str, int], list[int]] = {}
    for place in places.tolist():
        stem = re.sub(r"[\W_]*\d+\W*$", "", trace.names[trace.name[links.ranges.rows[place]]]).strip(" #")
        groups.setdefault((stem, int(links.ranges.thread[place])), []).append(place)
    found = []
    for (stem, _), members in groups.items():
        at = np.array(members, dtype=np.int64)
        if len(at) >= MIN_INFERRED_STEPS:
            found.append((int((links.ranges.end_ns[at] - links.ranges.start_ns[at]).sum()), stem, at))
    return [(f"range {stem}", at) for _, stem, at in sorted(found, key=lambda f: (-f[0], f[1]))]


def _steps_from_spans(trace: Trace, links: Links, places: Int64s, source: str) -> StepWindows:
    """The ranges of the thread that has most of them, numbered as the profiler numbers them, else from 0."""
    ranges = links.ranges
    thread = _find_most_common(ranges.thread[places])
    places = _keep_disjoint(links, places[ranges.thread[places] == thread])
    numbers = list(range(len(places)))
    if source == "ProfilerStep":
        names = (trace.names[i] for i in trace.name[ranges.rows[places]].tolist())
        numbers = [int(found.group(1)) if (found := PROFILER_STEP.match(name)) else 0 for name in names]
    start, end = ranges.start_ns[places], ranges.end_ns[places]
    return StepWindows(source, tuple(numbers), start, end, np.ones(len(places), dtype=bool), thread)


def _steps_between(trace: Trace, links: Links, places: Int64s, source: str, *, are_ends: bool) -> StepWindows:
    """Windows that end, or begin, with each marker. The first begins, or the last ends, where the thread's recording
    does, so it may be cut."""
    ranges = links.ranges
    thread = _find_most_common(ranges.thread[places])
    places = _keep_disjoint(links, places[ranges.thread[places] == thread])
    first, last = _extent_of_thread(trace, thread)
    marks = (ranges.end_ns if are_ends else ranges.start_ns)[places]
    edges = np.insert(marks, 0, first) if are_ends else np.append(marks, last)
    complete = np.ones(len(places), dtype=bool)
    complete[0 if are_ends else -1] = False
    return StepWindows(source, tuple(range(len(places))), edges[:-1], edges[1:], complete, thread)


def _whole_trace(trace: Trace, main: int | None) -> StepWindows:
    rows = find_categories(trace, HOST_ACTIVITY)
    if len(rows) == 0:
        rows = find_categories(trace, DEVICE_WORK)
    empty = np.empty(0, dtype=np.int64)
    if len(rows) == 0:
        return StepWindows("whole trace", (), empty, empty, np.empty(0, dtype=bool), main)
    low = int(trace.start_ns[rows].min())
    high = int((trace.start_ns[rows] + trace.duration_ns[rows]).max())
    one = np.array([low], dtype=np.int64), np.array([high], dtype=np.int64)
    return StepWindows("whole trace", (0,), *one, np.ones(1, dtype=bool), main)


def _extent_of_thread(trace: Trace, thread: int) -> tuple[int, int]:
    rows = find_categories(trace, HOST_ACTIVITY)
    rows = rows[trace.thread[rows] == thread]
    end = trace.start_ns[rows] + trace.duration_ns[rows]
    return int(trace.start_ns[rows].min()), int(end.max())


def _keep_disjoint(links: Links, places: Int64s) -> Int64s:
    """The positions whose range begins after the previously kept ones have ended (bounded: one range per step)."""
    start, end = links.ranges.start_ns, links.ranges.end_ns
    order = places[np.argsort(start[places], kind="stable")]
    kept, reach = [], None
    for place in order.tolist():
        if reach is None or start[place] >= reach:
            kept.append(place)
            reach = end[place]
    return np.array(kept, dtype=np.int64)


def assign_device_work(trace: Trace, links: Links, work: Int64s, steps: StepWindows) -> DeviceSteps:
    """The step of each work of one device: that of its launching call. Unlinked work belongs to the device window that
    contains its own start, and is counted."""
    launch = links.launch_row[work]
    linked = launch >= 0
    step = np.full(len(work), NONE, dtype=np.int64)
    if steps.source == "whole trace":
        step[:] = 0 if len(steps) else NONE
    else:
        step[linked] = steps.find_step(trace.start_ns[launch[linked]])
    start_ns, end_ns = links.start_ns[work], links.end_ns[work]
    far = np.iinfo(np.int64).max
    first = np.full(len(steps), far, dtype=np.int64)
    last = np.full(len(steps), NONE, dtype=np.int64)
    mine = step >= 0
    if not mine.any() and len(steps) and not linked.any():
        # No launches at all (only the device was recorded): only the host windows can guide the assignment.
        step = steps.find_step(start_ns)
        mine = step >= 0
    np.minimum.at(first, step[mine], start_ns[mine])
    np.maximum.at(last, step[mine], end_ns[mine])
    has = first < far
    # Work of a later step that overtook on another stream moves the edge: windows follow each other.
    begin = np.minimum.accumulate(first[::-1])[::-1] if len(steps) else first
    window_start = np.where(has, begin, NONE)
    window_end = np.full(len(steps), NONE, dtype=np.int64)
    holders = np.flatnonzero(has)
    if len(holders):
        window_end[holders[:-1]] = window_start[holders[1:]]
        window_end[holders[-1]] = max(last[holders[-1]], window_start[holders[-1]])
    loose = np.flatnonzero(~linked & (step < 0))
    if len(loose) and len(holders):
        at = np.searchsorted(window_start[holders], start_ns[loose], side="right") - 1
        held = holders[np.maximum(at, 0)]
        inside = (at >= 0) & (start_ns[loose] < window_end[held])
        step[loose[inside]] = held[inside]
    mine = step >= 0
    events = np.bincount(step[mine], minlength=len(steps)).astype(np.int64)
    unlinked = np.bincount(step[mine & ~linked], minlength=len(steps)).astype(np.int64)
    return DeviceSteps(step, window_start, window_end, events, unlinked, has)
