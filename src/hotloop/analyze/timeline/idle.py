"""Gaps of one device -> IdleCauses: why it waited, and what the host did in the meantime.

A gap belongs to the event that ends it and to that event's launching call. Was the call made after the gap had begun
(or did it return late, so that it was slow itself), the host was late: *sync-drained* when the host had been waiting
for the device until it was empty, else *launch-late*. Of a sync-drained gap, what the host spent waiting for a batch,
collecting garbage or allocating is launch-late all the same: without the synchronisation it would still be waited for.
Was the call made in time, the event waited in its queue: *launch latency* under 10 us, else *queue-dependent*.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from hotloop.core.timeline import BlameRow, IdleCauses
from hotloop.core.trace import Category, Trace

from .intervals import EMPTY, Int64s, Intervals, cover_windows, find_gaps, overlap_pieces, unite
from .links import Links
from .names import TORCH_RANGE, match_names
from .nesting import NONE, Nesting, nest, split_by_thread
from .partition import DeviceCover
from .steps import LOADER_NEXT, PROFILER_STEP

LAUNCH_LATENCY_NS = 10_000
"""A queued kernel starts within this after the one before it; 2 to 8 us are usual on current devices."""

SYNC_CALL = re.compile(
    r"(?:Device|Stream|Event|Ctx)Synchronize(?:_ptsz)?(?:_v\d+)?$"
    r"|^(?:cuda|hip)Memcpy(?:2D|3D|ToSymbol|FromSymbol)?(?:_ptds)?(?:_v\d+)?$"
    r"|^(?:cu|hip)Memcpy(?:HtoD|DtoH)(?:_v\d+)*$|^hipMemcpyWithStream$",
)
"""Calls that return when the device is done."""
PAGEABLE_TO_HOST = re.compile(r"DtoH.*Pageable", re.IGNORECASE)
ALLOCATOR_CALL = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree|HostMalloc|MallocHost|FreeHost|HostRegister|HostUnregister)"
    r"|^cuMem(?:Alloc|Free|Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree|HostAlloc|HostRegister)"
)
GC_FRAME = re.compile(r"built-in (?:function|method) (?:gc\.)?collect\b|\bgc\.py\(\d+\)|\bgc_collect\b|: collect$")
NOTHING = "nothing recorded"
PYTHON_LINE = re.compile(r"\.py\(\d+\)")
PYTHON_GAPS = 4096
"""Python lines are looked up for this many of the longest late gaps."""
ROWS_AT_ONCE = 1 << 18

_LATE, _DEPENDENT, _LATENCY, _UNKNOWN = 0, 1, 2, 3


def explain_idle(trace: Trace, links: Links, cover: DeviceCover, main_thread: int | None, top: int) -> IdleCauses:
    """The causes of all gaps between the first and the last event of a device."""
    start, end = links.start_ns[cover.work], links.end_ns[cover.work]
    gaps = find_gaps(cover.busy, int(start.min()), int(end.max()))
    length = gaps.end_ns - gaps.start_ns
    call = _find_next_calls(trace, links, cover, gaps)
    cause = _judge(trace, gaps, call)
    late = np.flatnonzero(cause == _LATE)
    late_gaps = Intervals(gaps.start_ns[late], gaps.end_ns[late])
    thread = trace.thread[call[late]]
    sync_row = _find_draining_calls(trace, links, late_gaps, call[late], main_thread)
    drained = sync_row >= 0
    waits, wait_times = _find_waits(trace, links, late_gaps, thread, main_thread)
    late_length = length[late]
    held = np.where(drained, waits, late_length)
    blamed = _blame(trace, links.ranges, late_gaps, call[late], thread, main_thread, drained, top)
    python = _blame_python(trace, late_gaps, thread, main_thread, drained, top)
    slow = _time_inside_call(trace, late_gaps, call[late])
    return IdleCauses(
        idle_ns=gaps.total_ns,
        gaps_count=len(gaps),
        longest_ns=int(length.max()) if len(length) else 0,
        sync_drained_ns=int((late_length - held)[drained].sum()),
        launch_late_ns=int(held.sum()),
        queue_dependent_ns=int(length[cause == _DEPENDENT].sum()),
        launch_latency_ns=int(length[cause == _LATENCY].sum()),
        unknown_ns=int(length[cause == _UNKNOWN].sum()),
        sync_drained_count=int(np.count_nonzero(drained)),
        launch_late_count=int(np.count_nonzero(~drained)),
        queue_dependent_count=int(np.count_nonzero(cause == _DEPENDENT)),
        launch_latency_count=int(np.count_nonzero(cause == _LATENCY)),
        unknown_count=int(np.count_nonzero(cause == _UNKNOWN)),
        late_data_wait_ns=wait_times[0],
        late_gc_ns=wait_times[1],
        late_allocator_ns=wait_times[2] or 0,
        late_slow_call_ns=int(slow[~drained].sum()),
        blamed=blamed,
        blamed_python=python,
        syncs=_list_syncs(trace, links.ranges, sync_row, late_length - held, top),
    )


def _find_next_calls(trace: Trace, links: Links, cover: DeviceCover, gaps: Intervals) -> Int64s:
    """Row of the call that launched the event which ends each gap; NONE where unknown. Of several events that start
    together, the one launched first."""
    work = cover.work
    start = links.start_ns[work]
    launch = links.launch_row[work]
    at = np.searchsorted(start, gaps.end_ns, side="left")
    until = np.searchsorted(start, gaps.end_ns, side="right")
    found = launch[np.minimum(at, len(launch) - 1)] if len(launch) else np.full(len(gaps), NONE, dtype=np.int64)
    for several in np.flatnonzero(until - at > 1).tolist():
        rows = launch[at[several] : until[several]]
        rows = rows[rows >= 0]
        found[several] = rows[np.argmin(trace.start_ns[rows])] if len(rows) else NONE
    return found


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
    """Row of the synchronising call that was open when each gap began and returned in it, before the launch; on the
    thread that launched, or on the main one: what others wait for keeps nobody.

    A copy to pageable memory waits too, whatever the name of its call says. What comes after such a gap is late as
    well until the host is ahead again, so the time told here is the least that a synchronisation costs.
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
) -> tuple[Int64s, tuple[int, int | None, int]]:
    """Time of every late gap that the host spent waiting for a batch, collecting garbage or allocating, and the three
    totals. Where they meet, the first of them counts."""
    ranges = links.ranges
    loader = match_names(trace, trace.name[ranges.rows], LOADER_NEXT)
    python = np.flatnonzero(trace.category == Category.PYTHON)
    collecting = python[match_names(trace, trace.name[python], GC_FRAME)]
    calls = np.flatnonzero(trace.category == Category.RUNTIME)
    allocating = calls[match_names(trace, trace.name[calls], ALLOCATOR_CALL)]
    per_gap = np.zeros(len(gaps), dtype=np.int64)
    totals = [0, 0, 0]
    for one, mine in split_by_thread(thread):
        host = {one} if main_thread is None else {one, main_thread}
        chosen = np.array(sorted(host), dtype=np.int32)
        on_loader = loader & np.isin(ranges.thread, chosen)
        data = unite(ranges.start_ns[on_loader], ranges.end_ns[on_loader])
        garbage = _unite_rows(trace, collecting[np.isin(trace.thread[collecting], chosen)])
        memory = _unite_rows(trace, allocating[np.isin(trace.thread[allocating], chosen)])
        low, high = gaps.start_ns[mine], gaps.end_ns[mine]
        taken = EMPTY
        before = np.zeros(len(mine), dtype=np.int64)
        for i, part in enumerate((data, garbage, memory)):
            taken = unite(np.concatenate([taken.start_ns, part.start_ns]), np.concatenate([taken.end_ns, part.end_ns]))
            covered = cover_windows(taken, low, high)
            totals[i] += int((covered - before).sum())
            before = covered
        per_gap[mine] = before
    return per_gap, (totals[0], totals[1] if len(python) else None, totals[2])


def _unite_rows(trace: Trace, rows: Int64s) -> Intervals:
    return unite(trace.start_ns[rows], trace.start_ns[rows] + trace.duration_ns[rows])


def _time_inside_call(trace: Trace, gaps: Intervals, call: Int64s) -> Int64s:
    start = np.maximum(gaps.start_ns, trace.start_ns[call])
    end = np.minimum(gaps.end_ns, trace.start_ns[call] + trace.duration_ns[call])
    result: Int64s = np.maximum(end - start, 0)
    return result


def _blame(
    trace: Trace,
    ranges: Nesting,
    gaps: Intervals,
    call: Int64s,
    thread: NDArray[np.int32],
    main_thread: int | None,
    drained: NDArray[np.bool_],
    top: int,
) -> tuple[BlameRow, ...]:
    """What covered the late gaps, exactly: every nanosecond goes to the innermost operator, range or call that the
    launching thread had open, else the main thread, else to nothing recorded."""
    # A batch that is waited for is blamed as such, not on the operators with which the loader makes it.
    loader = match_names(trace, trace.name[ranges.rows], LOADER_NEXT)
    hidden = (ranges.find_nearest(loader) >= 0) & ~loader
    hidden |= match_names(trace, trace.name[ranges.rows], PROFILER_STEP)
    host = _find_rows_near(trace, (Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME), gaps)
    host = host[~np.isin(host, ranges.rows[hidden])]
    segments: dict[int, tuple[Intervals, Int64s]] = {}
    sums: dict[tuple[int, bool], list[int]] = {}
    for one, mine in split_by_thread(thread):
        left = Intervals(gaps.start_ns[mine], gaps.end_ns[mine])
        index = mine
        for source in dict.fromkeys((one, main_thread)):
            if source is None:
                continue
            if source not in segments:
                segments[source] = _flatten_thread(trace, host[trace.thread[host] == source])
            busy, row = segments[source]
            start, end, of_gap, of_segment = overlap_pieces(left, busy)
            _add(sums, trace.name[row[of_segment]], drained[index[of_gap]], end - start, index[of_gap])
            rest, of_rest = _cut(left, busy)
            left, index = rest, index[of_rest]
        nothing = np.full(len(left), NONE, dtype=np.int64)
        _add(sums, nothing, drained[index], left.end_ns - left.start_ns, index)
    kinds = _kinds_of_names(trace, host)
    rows = [
        BlameRow(
            name=trace.names[name] if name >= 0 else NOTHING,
            kind=kinds[name] if name >= 0 else NOTHING,
            cause="sync-drained" if is_drained else "launch-late",
            total_ns=total,
            gaps_count=count,
        )
        for (name, is_drained), (total, count) in sums.items()
        if total
    ]
    return tuple(sorted(rows, key=lambda r: (-r.total_ns, r.name, r.cause))[:top])


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
    start, end = trace.start_ns[rows], trace.start_ns[rows] + trace.duration_ns[rows]
    if len(rows) == 0:
        return EMPTY, np.empty(0, dtype=np.int64)
    thread = np.zeros(len(rows), dtype=np.int32)
    nesting = nest(np.arange(len(rows), dtype=np.int64), thread, start, end)
    edge = np.unique(np.concatenate([start, end]))
    place = nesting.find_innermost(np.zeros(len(edge) - 1, dtype=np.int32), edge[:-1])
    held = np.flatnonzero(place >= 0)
    return Intervals(edge[:-1][held], edge[1:][held]), rows[nesting.rows[place[held]]]


def _cut(a: Intervals, b: Intervals) -> tuple[Intervals, Int64s]:
    """What of each interval of ``a`` is not in ``b``, and the index in ``a`` of each piece."""
    if len(a) == 0 or len(b) == 0:
        return a, np.arange(len(a), dtype=np.int64)
    free = find_gaps(b, int(min(a.start_ns[0], b.start_ns[0])), int(max(a.end_ns[-1], b.end_ns[-1])))
    start, end, of_a, _ = overlap_pieces(a, free)
    return Intervals(start, end), of_a


def _add(
    sums: dict[tuple[int, bool], list[int]],
    name: NDArray[np.integer],
    drained: NDArray[np.bool_],
    length: Int64s,
    gap: Int64s,
) -> None:
    """Adds pieces to the sums by (name, drained); a gap counts once for each name."""
    if len(name) == 0:
        return
    key = (name.astype(np.int64) + 1) * 2 + drained
    order = np.lexsort((gap, key))
    key, length, gap = key[order], length[order], gap[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    totals = np.add.reduceat(length, first)
    distinct = np.concatenate([[1], (key[1:] != key[:-1]) | (gap[1:] != gap[:-1])]).astype(np.int64)
    counts = np.add.reduceat(distinct, first)
    for one, total, count in zip(key[first].tolist(), totals.tolist(), counts.tolist(), strict=True):
        entry = sums.setdefault((one // 2 - 1, bool(one % 2)), [0, 0])
        entry[0] += total
        entry[1] += count


def _blame_python(
    trace: Trace,
    gaps: Intervals,
    thread: NDArray[np.int32],
    main_thread: int | None,
    drained: NDArray[np.bool_],
    top: int,
) -> tuple[BlameRow, ...]:
    """The innermost Python line with a file during the longest late gaps; built-ins count for their caller."""
    length = gaps.end_ns - gaps.start_ns
    longest = np.sort(np.argsort(-length, kind="stable")[:PYTHON_GAPS])
    gaps = Intervals(gaps.start_ns[longest], gaps.end_ns[longest])
    thread, drained = thread[longest], drained[longest]
    python = _find_rows_near(trace, (Category.PYTHON,), gaps)
    python = python[match_names(trace, trace.name[python], PYTHON_LINE)]
    sums: dict[tuple[int, bool], list[int]] = {}
    segments: dict[int, tuple[Intervals, Int64s]] = {}
    for one, mine in split_by_thread(thread):
        left, index = Intervals(gaps.start_ns[mine], gaps.end_ns[mine]), mine
        for source in dict.fromkeys((one, main_thread)):
            if source is None:
                continue
            if source not in segments:
                segments[source] = _flatten_thread(trace, python[trace.thread[python] == source])
            busy, row = segments[source]
            start, end, of_gap, of_segment = overlap_pieces(left, busy)
            _add(sums, trace.name[row[of_segment]], drained[index[of_gap]], end - start, index[of_gap])
            left, of_rest = _cut(left, busy)
            index = index[of_rest]
    rows = [
        BlameRow(
            name=trace.names[name],
            kind="python",
            cause="sync-drained" if is_drained else "launch-late",
            total_ns=total,
            gaps_count=count,
        )
        for (name, is_drained), (total, count) in sums.items()
        if total
    ]
    return tuple(sorted(rows, key=lambda r: (-r.total_ns, r.name, r.cause))[:top])


def _list_syncs(trace: Trace, ranges: Nesting, sync_row: Int64s, after: Int64s, top: int) -> tuple[BlameRow, ...]:
    """Who waited for the device: the outermost operator around the waiting call, else the call itself."""
    drained = np.flatnonzero(sync_row >= 0)
    if len(drained) == 0:
        return ()
    calls = sync_row[drained]
    place = ranges.find_innermost(trace.thread[calls], trace.start_ns[calls])
    is_op = trace.category[ranges.rows] == Category.CPU_OP
    is_op &= ~match_names(trace, trace.name[ranges.rows], PROFILER_STEP)
    top_op = place.copy()
    inside = np.flatnonzero(place >= 0)
    top_op[inside[~is_op[place[inside]]]] = NONE
    climbing = np.flatnonzero(top_op >= 0)
    while len(climbing):
        parent = ranges.parent[top_op[climbing]]
        up = (parent >= 0) & is_op[np.maximum(parent, 0)]
        climbing, parent = climbing[up], parent[up]
        top_op[climbing] = parent
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
