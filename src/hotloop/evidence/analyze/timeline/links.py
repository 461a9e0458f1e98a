"""Trace -> which range encloses which, and which host call launched which device work from which operator.

Profilers round: a child may end one tick after its parent. Such a range still belongs to the parent that was open when
it began. A range without length encloses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.trace import DEVICE_WORK, Category, Trace

from .intervals import Int64s, sum_groups

TORCH_RANGE = re.compile(
    r"^(?:ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#|DistributedDataParallel\.forward$)"
)
"""Ranges that torch draws. Releases before 1.12 write them as operators, newer ones as user annotations."""


def match_names(trace: Trace, name: NDArray[np.int32], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Whether the pattern occurs in each name; every distinct name is searched once."""
    used = np.zeros(len(trace.names), dtype=bool)
    used[name] = True
    hit = np.zeros(len(trace.names), dtype=bool)
    for one in np.flatnonzero(used).tolist():
        hit[one] = pattern.search(trace.names[one]) is not None
    return hit[name]


Int32s = NDArray[np.int32]
NONE = -1
"""No range."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """Ranges ordered by (thread, start, longest first); indices below are positions in this order, not rows.

    A range and everything that it encloses are adjacent in this order: position ``i`` up to ``after[i]``.
    """

    rows: Int64s
    """Row of the trace at each position."""
    thread: Int32s
    start_ns: Int64s
    end_ns: Int64s
    parent: Int32s
    """Position of the range that directly encloses this one; NONE at the top."""
    after: Int32s
    """First position that is not inside this range; ends beyond that of the parent are cut for it."""
    bounds: dict[int, tuple[int, int]]
    """Positions of each thread, as [first, last)."""

    def __len__(self) -> int:
        return len(self.rows)

    def find_innermost(self, thread: Int32s, time_ns: Int64s) -> Int64s:
        """Position of the innermost range that is open at each (thread, instant); NONE if there is none."""
        found = np.full(len(time_ns), NONE, dtype=np.int64)
        for one, mine in split_by_thread(thread):
            if one not in self.bounds:
                continue
            low, high = self.bounds[one]
            at = low - 1 + np.searchsorted(self.start_ns[low:high], time_ns[mine], side="right")
            place = np.where(at < low, NONE, at)
            found[mine] = self._climb_while_ended(place, time_ns[mine])
        return found

    def find_innermost_of_all(self, time_ns: Int64s) -> Int64s:
        """Position of the innermost range that is open on any thread at each instant, the latest begun; NONE
        without."""
        best = np.full(len(time_ns), NONE, dtype=np.int64)
        for thread in self.bounds:
            place = self.find_innermost(np.full(len(best), thread, dtype=np.int32), time_ns)
            later = self.start_ns[np.maximum(place, 0)] > self.start_ns[np.maximum(best, 0)]
            best = np.where((place >= 0) & ((best < 0) | later), place, best)
        return best

    def _climb_while_ended(self, place: Int64s, time_ns: Int64s) -> Int64s:
        """From each position up to the first enclosing range that is still open at the instant."""
        place = place.copy()
        open_ = np.flatnonzero(place >= 0)
        while len(open_):
            open_ = open_[self.end_ns[place[open_]] <= time_ns[open_]]
            place[open_] = self.parent[place[open_]]
            open_ = open_[place[open_] >= 0]
        return place

    def find_self_time(self) -> Int64s:
        """Nanoseconds of every range outside of the ranges that it directly encloses."""
        child = np.flatnonzero(self.parent >= 0)
        parent = self.parent[child]
        inside = np.minimum(self.end_ns[child], self.end_ns[parent]) - self.start_ns[child]
        own = self.end_ns - self.start_ns
        np.subtract.at(own, parent, inside)
        # Siblings that overlap by a tick of the clock would count that tick twice.
        result: Int64s = np.maximum(own, 0)
        return result

    def sum_inside(self, value: Int64s) -> Int64s:
        """Sum of ``value`` (one per position) over every range and everything that it encloses."""
        total = np.zeros(len(self) + 1, dtype=np.int64)
        np.cumsum(value, out=total[1:])
        result: Int64s = total[self.after] - total[:-1]
        return result

    def climb_within(self, place: Int64s, wanted: NDArray[np.bool_]) -> Int64s:
        """From each wanted position up as long as the enclosing range is wanted too; NONE from others."""
        held, above_of = np.append(wanted, False), np.append(self.parent, NONE)
        place = np.where(held[place], place, NONE)
        while True:
            above = above_of[place]
            climbing = held[above]
            if not climbing.any():
                return place
            place = np.where(climbing, above, place)

    def find_nearest(self, wanted: NDArray[np.bool_]) -> Int32s:
        """For every position, itself if wanted, else the nearest enclosing wanted position; NONE if there is none."""
        nearest = np.where(wanted, np.arange(len(self), dtype=np.int32), self.parent)
        while True:
            climbing = np.flatnonzero((nearest >= 0) & ~wanted[np.maximum(nearest, 0)])
            if len(climbing) == 0:
                return nearest
            # Every pass also follows what the passed-over range has found: the distance doubles.
            nearest[climbing] = nearest[nearest[climbing]]


def find_outermost(nesting: Nesting, key: NDArray[np.integer]) -> NDArray[np.bool_]:
    """True for every position that no range of the same key encloses."""
    result = np.zeros(len(nesting), dtype=bool)
    order = np.lexsort((nesting.thread, key))
    new = (np.diff(key[order]) != 0) | (np.diff(nesting.thread[order]) != 0)
    for at in np.split(order, np.flatnonzero(new) + 1) if len(order) else ():
        reach = np.maximum.accumulate(nesting.end_ns[at])
        result[at] = np.append(True, reach[:-1] <= nesting.start_ns[at[1:]])
    return result


@dataclass(frozen=True, slots=True)
class Totals:
    """Ranges by key; of nested ones of one key, the time of the outermost counts."""

    key: Int64s
    """Ascending; the other columns are parallel to it."""
    count: Int64s
    host_ns: Int64s
    device_ns: Int64s


def sum_outermost(nesting: Nesting, key: NDArray[np.integer], launched_ns: Int64s) -> Totals:
    """``key`` of each position, below 0 for those that count nowhere; ``launched_ns`` is what each launched itself."""
    at = np.flatnonzero(key >= 0)
    keys, group = np.unique(key[at], return_inverse=True)
    is_outermost = find_outermost(nesting, key)[at]
    outer, size = at[is_outermost], len(keys)
    return Totals(
        key=keys.astype(np.int64),
        count=np.bincount(group, minlength=size),
        host_ns=sum_groups(group[is_outermost], (nesting.end_ns - nesting.start_ns)[outer], size),
        device_ns=sum_groups(group[is_outermost], nesting.sum_inside(launched_ns)[outer], size),
    )


def nest(rows: Int64s, thread: Int32s, start_ns: Int64s, end_ns: Int64s) -> Nesting:
    """The nesting of some rows of a trace, with the thread, start and end of each of them.

    ``rows`` must be ascending, which in a trace means by start and then longest first.
    """
    if len(thread) and bool(np.any(thread[1:] < thread[:-1])):
        order = np.argsort(thread, kind="stable")
        rows, thread, start_ns, end_ns = rows[order], thread[order], start_ns[order], end_ns[order]
    parent = np.full(len(rows), NONE, dtype=np.int32)
    after = np.empty(len(rows), dtype=np.int32)
    bounds: dict[int, tuple[int, int]] = {}
    edges = np.flatnonzero(thread[1:] != thread[:-1]) + 1
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(rows)], strict=True):
        if low == high:
            continue
        bounds[int(thread[low])] = (low, high)
        start, end = start_ns[low:high], end_ns[low:high]
        found = _find_parents(start, end)
        within = _clip_to_parents(end, found)
        place = np.arange(len(start), dtype=np.int64)
        after[low:high] = low + np.maximum(np.searchsorted(start, within, side="left"), place + 1)
        parent[low:high] = np.where(found >= 0, found + low, NONE)
    return Nesting(rows, thread, start_ns, end_ns, parent, after, bounds)


@dataclass(frozen=True, slots=True)
class Flat:
    """Nested events as n stretches of time: stretch i is [edge i, edge i + 1)."""

    edge_ns: Int64s
    """(n + 1) Ascending."""
    innermost: Int64s
    """(n) The innermost event of each stretch, by its number; NONE if none is open."""


def flatten(start_ns: Int64s, end_ns: Int64s) -> Flat:
    """The innermost of some events of one thread at every instant."""
    order = np.lexsort((-end_ns, start_ns))
    nesting = nest(order, np.zeros(len(order), dtype=np.int32), start_ns[order], end_ns[order])
    edge = np.unique(np.concatenate([start_ns, end_ns]))
    begins = edge[:-1]
    return Flat(edge, np.append(order, NONE)[nesting.find_innermost(np.zeros(len(begins), dtype=np.int32), begins)])


def split_by_thread(thread: Int32s) -> Iterator[tuple[int, Int64s]]:
    """(thread, indices) of every thread that occurs, indices ascending."""
    if len(thread) == 0:
        return
    order = np.argsort(thread, kind="stable")
    edges = np.flatnonzero(np.diff(thread[order])) + 1
    for indices in np.split(order, edges):
        yield int(thread[indices[0]]), indices


def _clip_to_parents(end: Int64s, parent: Int32s) -> Int64s:
    """The ends, none of them after that of an enclosing range; a parent below 0 means no parent."""
    held = np.flatnonzero(parent >= 0)
    late = held[end[held] > end[parent[held]]]
    if len(late) == 0:
        return end
    end = end.copy()
    while len(late):
        end[late] = end[parent[late]]
        late = held[end[held] > end[parent[held]]]
    return end


def _find_parents(start: Int64s, end: Int64s) -> Int32s:
    """The position of the enclosing range of each range of one thread; NONE if there is none.

    The depth of a range is the number of earlier ranges less the number of ends until its start. The parent is then the
    latest earlier range that is one less deep. If ranges overlap without nesting, that range may have ended already:
    the search goes on from there upwards.
    """
    lasting = end > start
    ended = np.searchsorted(np.sort(end[lasting]), start, side="right")
    depth = (np.cumsum(lasting) - lasting - ended).astype(np.int32)
    del ended
    parent = np.full(len(start), NONE, dtype=np.int32)
    by_depth = np.argsort(depth, kind="stable").astype(np.int32)
    edge = np.concatenate([[0], np.cumsum(np.bincount(depth))])
    holders = by_depth[:0]
    for low, high in zip(edge[:-1].tolist(), edge[1:].tolist(), strict=True):
        level = by_depth[low:high]
        if len(holders):
            at = np.searchsorted(holders, level) - 1
            parent[level] = np.where(at >= 0, holders[np.maximum(at, 0)], NONE)
        holders = level[lasting[level]]
    late = np.flatnonzero(parent >= 0)
    while len(late):
        late = late[end[parent[late]] <= start[late]]
        parent[late] = parent[parent[late]]
        late = late[parent[late] >= 0]
    return parent


Bools = NDArray[np.bool_]

HOST_RANGES = (Category.CPU_OP, Category.ANNOTATION)
"""What may enclose a call of the runtime: operators and ranges of the user."""

GRAPH_LAUNCH = re.compile(r"GraphLaunch", re.IGNORECASE)
"""cudaGraphLaunch, cuGraphLaunch, hipGraphLaunch: one call, many kernels."""


@dataclass(frozen=True, slots=True)
class Links:
    """The joins that all the analyses of a trace share; computed once.

    Device work is numbered by its place in ``device_rows`` (in order of start), called a work number below.
    """

    device_rows: Int64s
    start_ns: Int64s
    end_ns: Int64s
    launch_row: Int64s
    """Row of the launching call of each work; NONE if the trace does not show it."""
    op_place: Int64s
    """Place in ``ranges`` of the innermost operator or user range around the launching call; NONE without."""
    by_graph: Bools
    """True if the launching call launched a whole graph."""
    ranges: Nesting
    """Operators and user ranges of all host threads."""

    @property
    def work_count(self) -> int:
        return len(self.device_rows)


def link_device_work(trace: Trace) -> Links:
    """The links of a trace. Correlation ids of 0 and below link nothing: profilers write 0 for what they lost."""
    rows = find_categories(trace, DEVICE_WORK)
    ranges = nest_rows(trace, find_categories(trace, HOST_RANGES))
    launch = find_launch_rows(trace, rows)
    op_place = np.full(len(rows), NONE, dtype=np.int64)
    known = np.flatnonzero(launch >= 0)
    if len(known):
        calls, inverse = np.unique(launch[known], return_inverse=True)
        op_place[known] = _find_operators(trace, ranges, calls)[inverse]
    by_graph = np.zeros(len(rows), dtype=bool)
    by_graph[known] = match_names(trace, trace.name[launch[known]], GRAPH_LAUNCH)
    start = trace.start_ns[rows]
    return Links(rows, start, start + trace.duration_ns[rows], launch, op_place, by_graph, ranges)


def nest_rows(trace: Trace, rows: Int64s) -> Nesting:
    """The nesting of some rows, ascending."""
    start = trace.start_ns[rows]
    return nest(rows, trace.thread[rows], start, start + trace.duration_ns[rows])


def find_categories(trace: Trace, categories: tuple[Category, ...]) -> Int64s:
    """The rows of some categories, ascending."""
    wanted = np.zeros(max(Category) + 1, dtype=bool)
    wanted[[int(c) for c in categories]] = True
    return np.flatnonzero(wanted[trace.category])


def find_launch_rows(trace: Trace, device_rows: Int64s) -> Int64s:
    """Row of the runtime call with the same correlation as each device row; the earliest if several have it."""
    calls = np.flatnonzero((trace.category == Category.RUNTIME) & (trace.correlation > 0))
    wanted = trace.correlation[device_rows]
    found = np.full(len(device_rows), NONE, dtype=np.int64)
    if len(calls) == 0 or len(device_rows) == 0:
        return found
    order = np.argsort(trace.correlation[calls], kind="stable")
    calls = calls[order]
    ids = trace.correlation[calls]
    at = np.minimum(np.searchsorted(ids, wanted, side="left"), len(ids) - 1)
    hit = (ids[at] == wanted) & (wanted > 0)
    found[hit] = calls[at[hit]]
    return found


def _find_operators(trace: Trace, ranges: Nesting, calls: Int64s) -> Int64s:
    """The innermost range around each call by thread and time; by external id if the threads do not match."""
    place = ranges.find_innermost(trace.thread[calls], trace.start_ns[calls])
    lost = np.flatnonzero(place < 0)
    external = trace.external_id[calls[lost]]
    # Some releases write the correlation as the external id: that joins nothing.
    usable = (external > 0) & (external != trace.correlation[calls[lost]])
    lost, external = lost[usable], external[usable]
    if len(lost) == 0:
        return place
    is_op = np.flatnonzero(trace.category[ranges.rows] == Category.CPU_OP)
    ids = trace.external_id[ranges.rows[is_op]]
    order = np.argsort(ids, kind="stable")
    ids, holder = ids[order], is_op[order]
    if len(ids) == 0:
        return place
    at = np.minimum(np.searchsorted(ids, external, side="left"), len(ids) - 1)
    hit = (ids[at] == external) & (ranges.start_ns[holder[at]] <= trace.start_ns[calls[lost]])
    place[lost[hit]] = holder[at[hit]]
    return place
