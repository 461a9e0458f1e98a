"""Gaps of one device -> IdleCauses and a StepIdle for each step: why it waited, and what the host did in the meantime.

A gap belongs to the event that ends it and to that event's launching call. If the call was made after the gap had begun
(or returned late, so that it was slow itself), the host was late: *sync-drained* if the host had been waiting for the
device until it was empty, else *launch-late*. The part of a sync-drained gap in which the host waited for a batch,
collected garbage or allocated is still launch-late: without the synchronization, the device would wait for it all the
same. If the call was made in time, the event waited in its queue: *launch latency* under 10 us, else *queue-dependent*:
after communication, after an event of another stream, inside a graph, or for an unknown reason. A wait for an event is
recorded as such (cuda_sync), or else the launching thread requested it after its last launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hotloop.core.timeline import BlameRow, IdleCauses, StepIdle
from hotloop.core.trace import Category, Trace

from .classes import COMM, Classes, DeviceCover
from .intervals import (
    EMPTY,
    Int64s,
    Intervals,
    Pieces,
    cover_windows,
    cut,
    find_gaps,
    overlap_pieces,
    sum_groups,
    unite,
    unite_sets,
)
from .links import NONE, TORCH_RANGE, Links, Nesting, find_categories, flatten, match_names, split_by_thread
from .steps import LOADER_NEXT, PROFILER_STEP, DeviceSteps

LAUNCH_LATENCY_NS = 10_000
"""A queued kernel starts within this after the previous kernel; 2 to 8 us are usual on current devices."""

LONG_GAP_NS = 1_000_000
"""No launch takes this long, with the operators that lead to it: tens of microseconds are usual, hundreds are slow."""

SYNC_CALL = re.compile(
    r"(?:Device|Stream|Event|Ctx)Synchronize(?:_ptsz)?(?:_v\d+)?$"
    r"|^(?:cuda|hip)Memcpy(?:2D|3D|ToSymbol|FromSymbol)?(?:_ptds)?(?:_v\d+)?$"
    r"|^(?:cu|hip)Memcpy(?:HtoD|DtoH)(?:_v\d+)*$|^hipMemcpyWithStream$",
)
"""Calls that return once the device is done."""
PAGEABLE_TO_HOST = re.compile(r"DtoH.*Pageable", re.IGNORECASE)
ALLOCATOR_CALL = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree|HostMalloc|MallocHost|FreeHost|HostRegister|HostUnregister)"
    r"|^cuMem(?:Alloc|Free|Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree|HostAlloc|HostRegister)"
)
GC_FRAME = re.compile(r"built-in (?:function|method) (?:gc\.)?collect\b|\bgc\.py\(\d+\)|\bgc_collect\b|: collect$")
STREAM_WAIT_CALL = re.compile(r"^(?:cu|cuda|hip)StreamWaitEvent(?:_ptsz)?$")
NOTHING = "nothing recorded"
PYTHON_LINE = re.compile(r"\.py\(\d+\)")
PYTHON_GAPS = 4096
"""Python lines are looked up for this many of the longest late gaps."""
ROWS_AT_ONCE = 1 << 18
NAME_LENGTH = 400

_LATE, _DEPENDENT, _LATENCY, _UNKNOWN = 0, 1, 2, 3
_COMM, _EVENT, _GRAPH, _UNTOLD = 4, 5, 6, 7
"""Kinds of queue-dependent."""


def explain_idle(
    trace: Trace,
    links: Links,
    classes: Classes,
    cover: DeviceCover,
    seen: DeviceSteps,
    main_thread: int | None,
    top: int,
    only: NDArray[np.bool_] | None = None,
) -> tuple[IdleCauses, tuple[StepIdle | None, ...]]:
    """The causes of all gaps between the first and the last event of a device, and those in the window of each step
    (None for a step without one). ``only``: of the gaps that begin in the windows of these steps alone."""
    start, end = links.start_ns[cover.work], links.end_ns[cover.work]
    gaps = find_gaps(cover.busy, int(start.min()), int(end.max()))
    if only is not None:
        of_gap = _find_windows(seen, gaps.start_ns)
        chosen = (of_gap >= 0) & only[of_gap]
        gaps = Intervals(gaps.start_ns[chosen], gaps.end_ns[chosen])
    length = gaps.end_ns - gaps.start_ns
    work = _find_next_work(trace, links, cover, gaps)
    call = links.launch_row[work]
    cause = _judge(trace, gaps, call)
    dependent = np.flatnonzero(cause == _DEPENDENT)
    queued = np.full(len(gaps), _UNTOLD, dtype=np.int8)
    queued[dependent] = _split_queued(trace, links, classes, cover, gaps.start_ns[dependent], work[dependent])
    late = np.flatnonzero(cause == _LATE)
    late_gaps = Intervals(gaps.start_ns[late], gaps.end_ns[late])
    thread = trace.thread[call[late]]
    sync_row = _find_draining_calls(trace, links, late_gaps, call[late], main_thread)
    drained = sync_row >= 0
    pieces = _cut_at_steps(gaps, seen)
    late_pieces = np.flatnonzero(cause[pieces.of_a] == _LATE)
    of_late = np.searchsorted(late, pieces.of_a[late_pieces])
    stretches = Intervals(pieces.start_ns[late_pieces], pieces.end_ns[late_pieces])
    waits = _find_waits(trace, links, stretches, thread[of_late], main_thread)
    late_length = length[late]
    wait_of_gap = sum_groups(of_late, waits.sum(axis=0), len(late))
    after = np.where(drained, late_length - wait_of_gap, 0)
    slow = _time_inside_call(trace, late_gaps, call[late])
    host = _HostBlame(trace, links.ranges, late_gaps, thread, main_thread, drained)
    blamed, python = host.blame_calls(), host.blame_python()

    size, step = pieces.length_ns, pieces.of_b
    drained_ns, data_ns = np.zeros_like(size), np.zeros_like(size)
    drained_ns[late_pieces] = np.where(drained[of_late], size[late_pieces] - waits.sum(axis=0), 0)
    data_ns[late_pieces] = waits[0]
    kind = np.where(cause == _DEPENDENT, queued, cause)[pieces.of_a]
    rest_ns = np.maximum(late_length - wait_of_gap - slow, 0)
    causes = IdleCauses(
        **_sum_parts(kind, size, drained_ns, data_ns),
        gaps_count=len(gaps),
        longest_ns=int(length.max()) if len(length) else 0,
        sync_drained_count=int(np.count_nonzero(drained)),
        launch_late_count=int(np.count_nonzero(~drained)),
        queue_dependent_count=len(dependent),
        launch_latency_count=int(np.count_nonzero(cause == _LATENCY)),
        unknown_count=int(np.count_nonzero(cause == _UNKNOWN)),
        late_gc_ns=int(waits[1].sum()) if bool((trace.category == Category.PYTHON).any()) else None,
        late_allocator_ns=int(waits[2].sum()),
        late_slow_call_ns=int(slow[~drained].sum()),
        late_long_ns=int(rest_ns[~drained & (late_length >= LONG_GAP_NS)].sum()),
        blamed=_list_blame(trace, blamed, top),
        blamed_python=_list_blame(trace, python, top),
        syncs=_list_syncs(trace, links.ranges, sync_row, after, top),
    )
    mostly, mostly_python = _find_most_blamed(trace, blamed, seen), _find_most_blamed(trace, python, seen)
    order = np.argsort(step, kind="stable")
    bounds = np.searchsorted(step[order], np.arange(len(seen.has_window) + 1)).tolist()
    steps = []
    for i, (low, high) in enumerate(pairwise(bounds)):
        mine = order[low:high]
        parts = _sum_parts(kind[mine], size[mine], drained_ns[mine], data_ns[mine])
        one = StepIdle(**parts, blamed=mostly.get(i), blamed_python=mostly_python.get(i))
        steps.append(one if seen.has_window[i] else None)
    return causes, tuple(steps)


def _sum_parts(kind: NDArray[np.int8], size: Int64s, drained_ns: Int64s, data_ns: Int64s) -> dict[str, int]:
    """The fields of IdleParts of some pieces."""
    by_kind = sum_groups(kind, size, _UNTOLD + 1).tolist()
    drained = int(drained_ns.sum())
    return {
        "idle_ns": int(size.sum()),
        "sync_drained_ns": drained,
        "launch_late_ns": by_kind[_LATE] - drained,
        "queue_comm_ns": by_kind[_COMM],
        "queue_event_ns": by_kind[_EVENT],
        "queue_graph_ns": by_kind[_GRAPH],
        "queue_untold_ns": by_kind[_UNTOLD],
        "launch_latency_ns": by_kind[_LATENCY],
        "unknown_ns": by_kind[_UNKNOWN],
        "late_data_wait_ns": int(data_ns.sum()),
    }


def _cut_at_steps(gaps: Intervals, seen: DeviceSteps) -> Pieces:
    """The gaps, cut at the start and the end of each step's window: pieces by gap and step (NONE outside of all).

    A window begins with an event, so it can only cut a gap if that event has no length.
    """
    edges = np.unique(np.concatenate([seen.start_ns[seen.has_window], seen.end_ns[seen.has_window]]))
    at = np.searchsorted(gaps.start_ns, edges, side="right") - 1
    cuts = (at >= 0) & (edges > gaps.start_ns[np.maximum(at, 0)]) if len(gaps) else np.zeros(len(edges), dtype=bool)
    cuts[cuts] &= edges[cuts] < gaps.end_ns[at[cuts]]
    place = at[cuts] + 1
    start = np.insert(gaps.start_ns, place, edges[cuts])
    end = np.insert(gaps.end_ns, at[cuts], edges[cuts])
    of_gap = np.insert(np.arange(len(gaps), dtype=np.int64), place, at[cuts])
    return Pieces(start, end, of_gap, _find_windows(seen, start))


def _find_windows(seen: DeviceSteps, time_ns: Int64s) -> Int64s:
    """The step whose device window contains each instant; NONE outside of all."""
    holders = np.flatnonzero(seen.has_window & (seen.end_ns > seen.start_ns))
    if len(holders) == 0:
        return np.full(len(time_ns), NONE, dtype=np.int64)
    at = np.searchsorted(seen.start_ns[holders], time_ns, side="right") - 1
    held = holders[np.maximum(at, 0)]
    result: Int64s = np.where((at >= 0) & (time_ns < seen.end_ns[held]), held, NONE)
    return result


def _split_queued(
    trace: Trace, links: Links, classes: Classes, cover: DeviceCover, begin_ns: Int64s, work: Int64s
) -> NDArray[np.int8]:
    """What each queued piece of work waited for, if the device went idle at ``begin_ns``."""
    found = np.full(len(work), _UNTOLD, dtype=np.int8)
    if len(work) == 0:
        return found
    stream = trace.stream[links.device_rows]
    called = trace.start_ns[np.maximum(links.launch_row, 0)]
    linked = np.flatnonzero(links.launch_row >= 0)
    waits = _list_stream_waits(trace)
    key = stream if waits.is_recorded else trace.thread[np.maximum(links.launch_row, 0)]
    # The work that ended last before the gap is what an event can have represented.
    by_end = cover.work[np.argsort(links.end_ns[cover.work], kind="stable")]
    ended = by_end[np.maximum(np.searchsorted(links.end_ns[by_end], begin_ns, side="right") - 1, 0)]
    after_comm = (classes.kind[ended] == COMM) & (stream[ended] != stream[work])
    for holder, mine in split_by_thread(key[work]):
        calls, times = np.unique(called[linked[key[linked] == holder]]), waits.asked_ns[waits.key == holder]
        until = called[work[mine]]
        at = np.searchsorted(calls, until, side="left")
        since = np.where(at > 0, calls[np.maximum(at - 1, 0)], np.iinfo(np.int64).min)
        told = np.searchsorted(times, until, side="left") > np.searchsorted(times, since, side="right")
        found[mine[told]] = _EVENT
    found[(found == _EVENT) & after_comm] = _COMM
    found[classes.kind[work] == COMM] = _COMM
    same = links.by_graph[work] & (links.launch_row[work] == links.launch_row[ended])
    found[same] = _GRAPH
    return found


@dataclass(frozen=True, slots=True)
class _StreamWaits:
    """Waits of streams for events, in the order of time."""

    key: NDArray[np.int32]
    """The stream; if the trace does not record it, the thread that requested the wait."""
    asked_ns: Int64s
    is_recorded: bool


def _list_stream_waits(trace: Trace) -> _StreamWaits:
    rows = find_categories(trace, (Category.RUNTIME,))
    rows = rows[match_names(trace, trace.name[rows], STREAM_WAIT_CALL)]
    syncs = find_categories(trace, (Category.SYNC,))
    streams = dict(zip(trace.correlation[syncs].tolist(), trace.stream[syncs].tolist(), strict=True))
    stream = np.array([streams.get(id_, NONE) for id_ in trace.correlation[rows].tolist()], dtype=np.int32)
    is_recorded = bool((stream >= 0).any())  # a stream that is not among them waited for nothing
    return _StreamWaits(stream if is_recorded else trace.thread[rows], trace.start_ns[rows], is_recorded)


def _find_next_work(trace: Trace, links: Links, cover: DeviceCover, gaps: Intervals) -> Int64s:
    """Work number of the event that ends each gap. If several events start together, the one launched first."""
    work = cover.work
    start, launch = links.start_ns[work], links.launch_row[work]
    at = np.searchsorted(start, gaps.end_ns, side="left")
    until = np.searchsorted(start, gaps.end_ns, side="right")
    ending = work[np.minimum(at, max(len(work) - 1, 0))]
    for several in np.flatnonzero(until - at > 1).tolist():
        rows = launch[at[several] : until[several]]
        linked = np.flatnonzero(rows >= 0)
        if len(linked):
            ending[several] = work[at[several] + linked[np.argmin(trace.start_ns[rows[linked]])]]
    return ending


def _judge(trace: Trace, gaps: Intervals, call: Int64s) -> NDArray[np.int8]:
    known = call >= 0
    held = np.maximum(call, 0)
    called = trace.start_ns[held]
    returned = called + trace.duration_ns[held]
    short = gaps.end_ns - gaps.start_ns < LAUNCH_LATENCY_NS
    late = (called >= gaps.start_ns) | (~short & (returned > gaps.start_ns))
    cause = np.where(late, _LATE, np.where(short, _LATENCY, _DEPENDENT))
    return np.where(known, cause, _UNKNOWN).astype(np.int8)


def _find_draining_calls(trace: Trace, links: Links, gaps: Intervals, call: Int64s, main_thread: int | None) -> Int64s:
    """Row of the synchronizing call that was open when each gap began and returned in it, before the launch; on the
    thread that launched, or on the main thread: waits of other threads delay nobody.

    A copy to pageable memory waits too, whatever the name of its call says. Work after such a gap is also late until
    the host is ahead again, so the reported time is the least that a synchronization costs.
    """
    rows = np.flatnonzero(trace.category == Category.RUNTIME)
    rows = rows[match_names(trace, trace.name[rows], SYNC_CALL)]
    copies = np.flatnonzero((trace.category[links.device_rows] == Category.MEMCPY) & (links.launch_row >= 0))
    copies = copies[match_names(trace, trace.name[links.device_rows[copies]], PAGEABLE_TO_HOST)]
    calls = links.launch_row[copies]
    waited = trace.start_ns[calls] + trace.duration_ns[calls] >= links.end_ns[copies]
    rows = np.union1d(rows, calls[waited & ~links.by_graph[copies]])
    found = np.full(len(gaps), NONE, dtype=np.int64)
    if len(rows) == 0 or len(gaps) == 0:
        return found
    end = trace.start_ns[rows] + trace.duration_ns[rows]
    order = np.argsort(end, kind="stable")
    rows, end = rows[order], end[order]
    limit = np.minimum(gaps.end_ns, trace.start_ns[call])
    for one, mine in split_by_thread(trace.thread[call]):
        near = trace.thread[rows] == one
        if main_thread is not None:
            near |= trace.thread[rows] == main_thread
        waiting, returned = rows[near], end[near]
        if len(waiting) == 0:
            continue
        # The first to return after the gap began is the one that waited for this very idleness.
        at = np.searchsorted(returned, gaps.start_ns[mine], side="left")
        held = np.minimum(at, len(waiting) - 1)
        hit = (at < len(waiting)) & (returned[held] <= limit[mine])
        hit &= trace.start_ns[waiting[held]] <= gaps.start_ns[mine]
        found[mine[hit]] = waiting[held[hit]]
    return found


def _find_waits(
    trace: Trace, links: Links, gaps: Intervals, thread: NDArray[np.int32], main_thread: int | None
) -> Int64s:
    """(3, n) ns of each of the n gaps that the host spent waiting for a batch, collecting garbage, allocating. If they
    overlap, the first of them counts."""
    ranges = links.ranges
    loader = match_names(trace, trace.name[ranges.rows], LOADER_NEXT)
    python = np.flatnonzero(trace.category == Category.PYTHON)
    collecting = python[match_names(trace, trace.name[python], GC_FRAME)]
    calls = np.flatnonzero(trace.category == Category.RUNTIME)
    allocating = calls[match_names(trace, trace.name[calls], ALLOCATOR_CALL)]
    until_ns = np.zeros((3, len(gaps)), dtype=np.int64)
    for launching, mine in split_by_thread(thread):
        chosen = [launching] if main_thread is None else [launching, main_thread]
        on_loader = loader & np.isin(ranges.thread, chosen)
        taken = EMPTY
        for i, part in enumerate(
            (
                unite(ranges.start_ns[on_loader], ranges.end_ns[on_loader]),
                _unite_rows(trace, collecting[np.isin(trace.thread[collecting], chosen)]),
                _unite_rows(trace, allocating[np.isin(trace.thread[allocating], chosen)]),
            )
        ):
            taken = unite_sets(taken, part)
            until_ns[i, mine] = cover_windows(taken, gaps.start_ns[mine], gaps.end_ns[mine])
    return np.diff(until_ns, axis=0, prepend=0)


def _unite_rows(trace: Trace, rows: Int64s) -> Intervals:
    return unite(trace.start_ns[rows], trace.start_ns[rows] + trace.duration_ns[rows])


def _time_inside_call(trace: Trace, gaps: Intervals, call: Int64s) -> Int64s:
    start = np.maximum(gaps.start_ns, trace.start_ns[call])
    end = np.minimum(gaps.end_ns, trace.start_ns[call] + trace.duration_ns[call])
    result: Int64s = np.maximum(end - start, 0)
    return result


@dataclass(frozen=True, slots=True)
class _Blame:
    """Pieces of the late gaps, and what the host did in each."""

    start_ns: Int64s
    length_ns: Int64s
    gap: Int64s
    name: Int64s
    """NONE if nothing was recorded."""
    is_drained: NDArray[np.bool_]
    kinds: Mapping[int, str]
    """By name; 'python' for the others."""

    def list_rows(self, trace: Trace, group: Int64s) -> Iterator[tuple[int, BlameRow]]:
        """(group, row by name and cause), by group; pieces of a group below 0 are left out."""
        inside = group >= 0
        key = (group[inside] << 33) + ((self.name[inside] + 1) << 1) + self.is_drained[inside]
        keys, at = np.unique(key, return_inverse=True)
        total = sum_groups(at, self.length_ns[inside], len(keys))
        distinct = np.unique(np.stack([at, self.gap[inside]]), axis=1)[0]
        count = np.bincount(distinct, minlength=len(keys))
        for one, total_ns, gaps_count in zip(keys.tolist(), total.tolist(), count.tolist(), strict=True):
            name = ((one & ((1 << 33) - 1)) >> 1) - 1
            yield (
                one >> 33,
                BlameRow(
                    name=trace.names[name] if name >= 0 else NOTHING,
                    kind=NOTHING if name < 0 else self.kinds.get(name, "python"),
                    cause="sync-drained" if one & 1 else "launch-late",
                    total_ns=total_ns,
                    gaps_count=gaps_count,
                ),
            )


@dataclass(frozen=True, slots=True)
class _HostBlame:
    """Late gaps, and the threads whose activity explains them."""

    trace: Trace
    ranges: Nesting
    gaps: Intervals
    thread: NDArray[np.int32]
    """The launching thread of each gap."""
    main_thread: int | None
    is_drained: NDArray[np.bool_]

    def blame_calls(self) -> _Blame:
        """What covered the late gaps, exactly: every nanosecond goes to the innermost operator, range or call that the
        launching thread had open, else the main thread, else to nothing recorded."""
        trace, ranges = self.trace, self.ranges
        # Waiting for a batch is blamed as such, not on the operators with which the loader makes the batch.
        loader = match_names(trace, trace.name[ranges.rows], LOADER_NEXT)
        hidden = (ranges.find_nearest(loader) >= 0) & ~loader
        hidden |= match_names(trace, trace.name[ranges.rows], PROFILER_STEP)
        rows = _find_rows_near(trace, (Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME), self.gaps)
        rows = rows[~np.isin(rows, ranges.rows[hidden])]
        every = np.arange(len(self.gaps), dtype=np.int64)
        return self._split(rows, every, _kinds_of_names(trace, rows), with_nothing=True)

    def blame_python(self) -> _Blame:
        """The innermost Python line with a file during the longest late gaps; built-ins count for their caller."""
        trace, length = self.trace, self.gaps.end_ns - self.gaps.start_ns
        longest = np.sort(np.argsort(-length, kind="stable")[:PYTHON_GAPS])
        near = Intervals(self.gaps.start_ns[longest], self.gaps.end_ns[longest])
        rows = _find_rows_near(trace, (Category.PYTHON,), near)
        rows = rows[match_names(trace, trace.name[rows], PYTHON_LINE)]
        return self._split(rows, longest, {}, with_nothing=False)

    def _split(self, rows: Int64s, gaps: Int64s, kinds: Mapping[int, str], *, with_nothing: bool) -> _Blame:
        """Some gaps by the innermost of these rows; ``with_nothing`` keeps, without a name, what none of them
        covers."""
        segments: dict[int, tuple[Intervals, Int64s]] = {}
        parts = [np.empty((4, 0), dtype=np.int64)]
        for one, mine in split_by_thread(self.thread[gaps]):
            index = gaps[mine]
            left = Intervals(self.gaps.start_ns[index], self.gaps.end_ns[index])
            for source in dict.fromkeys((one, self.main_thread)):
                if source is None:
                    continue
                if source not in segments:
                    segments[source] = _flatten_thread(self.trace, rows[self.trace.thread[rows] == source])
                busy, row = segments[source]
                inside, outside = overlap_pieces(left, busy), cut(left, busy)
                names = self.trace.name[row[inside.of_b]]
                parts.append(np.stack([inside.start_ns, inside.length_ns, index[inside.of_a], names]))
                left, index = Intervals(outside.start_ns, outside.end_ns), index[outside.of_a]
            if with_nothing:
                parts.append(np.stack([left.start_ns, left.end_ns - left.start_ns, index, np.full_like(index, NONE)]))
        start, length, gap, name = np.concatenate(parts, axis=1)
        return _Blame(start, length, gap, name, self.is_drained[gap], kinds)


def _list_blame(trace: Trace, blame: _Blame, top: int) -> tuple[BlameRow, ...]:
    """The largest sums over the whole trace."""
    rows = [row for _, row in blame.list_rows(trace, np.zeros_like(blame.gap)) if row.total_ns]
    return tuple(sorted(rows, key=lambda r: (-r.total_ns, r.name, r.cause))[:top])


def _find_most_blamed(trace: Trace, blame: _Blame, seen: DeviceSteps) -> dict[int, BlameRow]:
    """The largest sum of each step."""
    largest: dict[int, BlameRow] = {}
    for step, row in blame.list_rows(trace, _find_windows(seen, blame.start_ns)):
        if row.total_ns > (largest[step].total_ns if step in largest else 0):
            largest[step] = replace(row, name=row.name[:NAME_LENGTH])
    return largest


def _kinds_of_names(trace: Trace, rows: Int64s) -> dict[int, str]:
    words = {int(Category.CPU_OP): "operator", int(Category.ANNOTATION): "range", int(Category.RUNTIME): "runtime"}
    names, first = np.unique(trace.name[rows], return_index=True)
    return {
        name: "range" if TORCH_RANGE.search(trace.names[name]) else words[kind]
        for name, kind in zip(names.tolist(), trace.category[rows[first]].tolist(), strict=True)
    }


def _find_rows_near(trace: Trace, categories: tuple[Category, ...], gaps: Intervals) -> Int64s:
    """Rows of some categories that meet a gap. In pieces: most rows of a long trace do not, and need no memory."""
    wanted = np.zeros(max(Category) + 1, dtype=bool)
    wanted[[int(c) for c in categories]] = True
    found = [np.empty(0, dtype=np.int64)]
    for low in range(0, len(trace.start_ns), ROWS_AT_ONCE):
        rows = low + np.flatnonzero(wanted[trace.category[low : low + ROWS_AT_ONCE]])
        start = trace.start_ns[rows]
        first = np.searchsorted(gaps.end_ns, start, side="right")
        last = np.searchsorted(gaps.start_ns, start + trace.duration_ns[rows], side="left")
        found.append(rows[first < last])
    return np.concatenate(found)


def _flatten_thread(trace: Trace, rows: Int64s) -> tuple[Intervals, Int64s]:
    """(disjoint stretches, row of the innermost event in each) of some rows of one thread."""
    flat = flatten(trace.start_ns[rows], trace.start_ns[rows] + trace.duration_ns[rows])
    held = np.flatnonzero(flat.innermost >= 0)
    return Intervals(flat.edge_ns[:-1][held], flat.edge_ns[1:][held]), rows[flat.innermost[held]]


def _list_syncs(trace: Trace, ranges: Nesting, sync_row: Int64s, after: Int64s, top: int) -> tuple[BlameRow, ...]:
    """Who waited for the device: the outermost operator around the waiting call, else the call itself."""
    drained = np.flatnonzero(sync_row >= 0)
    if len(drained) == 0:
        return ()
    calls = sync_row[drained]
    place = ranges.find_innermost(trace.thread[calls], trace.start_ns[calls])
    is_op = trace.category[ranges.rows] == Category.CPU_OP
    is_op &= ~match_names(trace, trace.name[ranges.rows], PROFILER_STEP)
    top_op = ranges.climb_within(place, is_op)
    name = trace.name[calls]
    by_op = np.flatnonzero(top_op >= 0)
    name[by_op] = trace.name[ranges.rows[top_op[by_op]]]
    rows = []
    for one in np.unique(name).tolist():
        mine = name == one
        rows.append(
            BlameRow(
                name=trace.names[one],
                kind="operator" if bool((top_op[mine] >= 0).any()) else "runtime",
                cause="sync-drained",
                total_ns=int(after[drained[mine]].sum()),
                gaps_count=int(np.count_nonzero(mine)),
            )
        )
    return tuple(sorted(rows, key=lambda r: (-r.total_ns, r.name))[:top])
