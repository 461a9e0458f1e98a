"""StepGraph -> CriticalPath: what would have to be faster for a step to be shorter; then the same over all ranks.

The path is walked back from the end of the step: from every instant to the one that held it last. Its stretches lie end
to end from the beginning of the step to its end, so what bounds it sums to the step exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.core.graph import BOUND_KINDS, OPS, Clocks, CriticalPath, PathSegment, RankCollectives, RankSegments
from hotloop.core.trace import Trace
from hotloop.core.trace_analysis import RankOnPath, RanksPath, StepPath

from .classes import Classes
from .collective_report import SYNCHRONISING, align_instants, match_collectives
from .dependencies import MAX_GRAPH_ROWS, build_graph, count_rows
from .intervals import Int64s, sum_groups
from .links import NONE, Links
from .step_graph import KIND, ROLE, StepGraph, StepWindowGraph
from .steps import StepWindows

NOTHING = "nothing recorded"


@dataclass(frozen=True, slots=True)
class _Walk:
    """The pieces of a path in time order, none empty; each begins where the one before it ends."""

    begin_ns: Int64s
    end_ns: Int64s
    kind: Int64s
    """Index into BOUND_KINDS."""
    row: Int64s
    unexplained_ns: int
    """Sum of the pieces of sync in which nothing explains the delay."""
    stop: int
    """Node at which the walk ended before its time; -1 without."""

    def sum_kinds(self) -> tuple[int, ...]:
        """Time by BOUND_KINDS."""
        return tuple(sum_groups(self.kind, self.end_ns - self.begin_ns, len(BOUND_KINDS)).tolist())


def choose_step(steps: StepWindows) -> int:
    """Place of the step to look at: the complete one of median length; the first of several."""
    if len(steps) == 0:
        raise UsageError("the trace contains no events for a critical path")
    length = steps.end_ns - steps.start_ns
    pool = np.flatnonzero(steps.is_complete)
    pool = pool if len(pool) else np.arange(len(steps))
    ordered = pool[np.argsort(length[pool], kind="stable")]
    return int(ordered[(len(ordered) - 1) // 2])


def summarize_path(
    trace: Trace,
    links: Links,
    classes: Classes,
    steps: StepWindows,
    window: StepWindowGraph | None = None,
    top: int = 20,
) -> StepPath | None:
    """The critical path of the usual step without its rows; None where there is none or it is too large.

    A graph of several steps around that one saves making another.
    """
    try:
        path = find_critical_path(trace, links, classes, steps, window=window)
    except UsageError:
        return None
    return StepPath(
        step=path.step,
        paced_by=path.paced_by,
        bound_ns=dict(zip(BOUND_KINDS, path.bound_ns, strict=True)),
        parts=tuple((name[:200], kind, total_ns) for name, kind, total_ns in path.parts[:top]),
        has_sync_events=path.has_sync_events,
    )


def find_critical_path(
    trace: Trace,
    links: Links,
    classes: Classes,
    steps: StepWindows,
    place: int | None = None,
    window: StepWindowGraph | None = None,
) -> CriticalPath:
    """The path through the step at ``place`` (of median length by default). Raises UsageError for a step too large."""
    at = choose_step(steps) if place is None else place
    rows = count_rows(trace, steps, at, at)
    if rows > MAX_GRAPH_ROWS:
        raise UsageError(f"the step has {rows} events; the critical path is computed over at most {MAX_GRAPH_ROWS}")

    def open_at(first: int) -> StepWindowGraph:
        if window is not None and window.first <= first and at <= window.last:
            return window
        return StepWindowGraph(first, at, build_graph(trace, links, classes, steps, first, at))

    if falls_behind(trace, links, steps):
        seen = find_device_ends(links, trace, steps)
        shown = open_at(max(0, at - 1))
        graph = shown.graph
        mine = np.flatnonzero(graph.work_step == at - shown.first)
        # The work of a step that begins the trace has nothing before it: its own beginning counts.
        start = int(seen[at - 1]) if at > 0 else graph.low_ns
        if len(mine) and int(seen[at]) > start >= 0:
            end_node = int(graph.work_end[mine[np.argmax(graph.time_ns[graph.work_end[mine]])]])
            return describe_path(trace, graph, steps.index[at], "device", end_node, start)
    shown = open_at(at)
    end_node = int(shown.graph.boundaries[at - shown.first])
    return describe_path(trace, shown.graph, steps.index[at], "host", end_node, int(steps.start_ns[at]))


BEHIND_RATIO = 0.05
"""The device falls behind when its lag grows by more than this share of a step at every step."""


def find_device_ends(links: Links, trace: Trace, steps: StepWindows) -> Int64s:
    """Latest end of all device work that was launched in each step or before it; -1 before the first."""
    ends = np.full(len(steps), NONE, dtype=np.int64)
    known = np.flatnonzero(links.launch_row >= 0)
    step = steps.find_step(trace.start_ns[links.launch_row[known]])
    np.maximum.at(ends, step[step >= 0], links.end_ns[known][step >= 0])
    return np.maximum.accumulate(ends)


def falls_behind(trace: Trace, links: Links, steps: StepWindows) -> bool:
    """Whether the host runs ahead of a device that needs longer for a step. Of a single step: whether the device needs
    longer for its work than the host for the step."""
    ends = find_device_ends(links, trace, steps)
    if len(steps) == 0 or ends[0] < 0:
        return False
    host = int(steps.end_ns[-1] - steps.end_ns[0])
    if len(steps) > 1:
        grown = int(ends[-1] - steps.end_ns[-1]) - max(0, int(ends[0] - steps.end_ns[0]))
        return grown > BEHIND_RATIO * host
    known = np.flatnonzero(links.launch_row >= 0)
    mine = known[steps.find_step(trace.start_ns[links.launch_row[known]]) == 0]
    host = int(steps.end_ns[0] - steps.start_ns[0])
    return int(ends[0] - links.start_ns[mine].min()) - host > BEHIND_RATIO * host


def describe_path(
    trace: Trace, graph: StepGraph, step: int, paced_by: str, end_node: int, start_ns: int
) -> CriticalPath:
    """The path from ``start_ns`` to a node of the graph."""
    walk = _walk_back(graph, _find_holders(graph), end_node, (), start_ns)
    name = np.where(walk.row >= 0, trace.name[np.maximum(walk.row, 0)] if len(trace.name) else NONE, NONE)
    keys, group = np.unique(name.astype(np.int64) * len(BOUND_KINDS) + walk.kind, return_inverse=True)
    parts = []
    for key, total_ns in zip(
        keys.tolist(), sum_groups(group, walk.end_ns - walk.begin_ns, len(keys)).tolist(), strict=True
    ):
        number, kind = divmod(key, len(BOUND_KINDS))
        parts.append((trace.names[number] if number >= 0 else NOTHING, BOUND_KINDS[kind], total_ns))
    parts.sort(key=lambda part: (-part[2], part[0]))
    changed = np.ones(len(walk.row), dtype=bool)
    changed[1:] = (walk.row[1:] != walk.row[:-1]) | (walk.kind[1:] != walk.kind[:-1])
    return CriticalPath(
        step=step,
        paced_by=paced_by,
        start_ns=start_ns,
        end_ns=int(graph.time_ns[end_node]),
        bound_ns=walk.sum_kinds(),
        unexplained_ns=walk.unexplained_ns,
        parts=tuple(parts),
        rows=walk.row[changed],
        from_ns=walk.begin_ns[changed],
        kinds=walk.kind[changed].astype(np.int8),
        edges=graph.edges,
        has_sync_events=trace.facts.has_sync,
    )


@dataclass(frozen=True, slots=True)
class _Holders:
    """What held each node of a graph back."""

    edge: Int64s
    """The edge that holds longest; of several the first that does more than keep an order. -1 without."""
    before: list[int]
    """Its source."""
    time_ns: list[int]
    """Instant of each node."""


def _find_holders(graph: StepGraph) -> _Holders:
    reach = graph.time_ns[graph.source] + graph.weight_ns
    latest = np.full(len(graph.time_ns), np.iinfo(np.int64).min, dtype=np.int64)
    np.maximum.at(latest, graph.target, reach)
    holder = np.full(len(graph.time_ns), NONE, dtype=np.int64)
    # Of edges that are assigned to one node the last one stays, so the first comes last.
    holding = np.flatnonzero(reach == latest[graph.target])[::-1]
    holder[graph.target[holding]] = holding
    holding = holding[graph.role[holding] != ROLE["idle"]]
    holder[graph.target[holding]] = holding
    before = np.where(holder >= 0, graph.source[holder] if len(graph.source) else NONE, NONE)
    return _Holders(holder, before.tolist(), graph.time_ns.tolist())


def _walk_back(graph: StepGraph, holders: _Holders, node: int, stops: Collection[int], floor_ns: int) -> _Walk:
    """From ``node`` back along what held each node, to ``floor_ns`` or to the first node of ``stops``."""
    time, before = holders.time_ns, holders.before
    visited = []
    at = node
    while at != 0 and time[at] > floor_ns and (at == node or at not in stops):
        visited.append(at)
        at = before[at]
    nodes = np.array(visited[::-1], dtype=np.int64)
    edges = holders.edge[nodes]
    source = graph.time_ns[graph.source[edges]]
    end = graph.time_ns[nodes]
    begin = np.maximum(source, floor_ns)
    late = np.minimum(end - source - graph.weight_ns[edges], end - begin)
    kind, row = graph.kind[edges].astype(np.int64), graph.row[edges]
    if at == 0 and time[0] > floor_ns:
        # What lies before the graph is not explained by it.
        first, none = np.array([floor_ns]), np.array([NONE])
        begin, end = np.concatenate([first, begin]), np.concatenate([np.array([time[0]]), end])
        late, kind = np.concatenate([end[:1] - first, late]), np.concatenate([np.array([KIND["sync"]]), kind])
        row = np.concatenate([none, row])
    middle = end - late
    starts, ends = np.stack([begin, middle], axis=1).reshape(-1), np.stack([middle, end], axis=1).reshape(-1)
    kinds = np.stack([kind, np.full(len(kind), KIND["sync"])], axis=1).reshape(-1)
    rows = np.stack([row, np.full(len(row), NONE)], axis=1).reshape(-1)
    full = ends > starts
    return _Walk(
        starts[full],
        ends[full],
        kinds[full],
        rows[full],
        unexplained_ns=int(late.sum()),
        stop=at if at in stops and at != node else NONE,
    )


def split_retimed(graph: StepGraph, end_node: int, start_ns: int) -> tuple[int, ...]:
    """Time by BOUND_KINDS along the path to a node of a graph whose nodes and weights were changed; sums to the time
    from ``start_ns``."""
    return _walk_back(graph, _find_holders(graph), end_node, (), start_ns).sum_kinds()


# ---- across ranks


def cut_at_collectives(
    trace: Trace,
    links: Links,
    classes: Classes,
    steps: StepWindows,
    collectives: RankCollectives,
    place: int,
) -> RankSegments:
    """One rank's step as the segments between its collectives, for join_paths."""
    graph = build_graph(trace, links, classes, steps, place, place)
    by_row = {int(row): i for i, row in enumerate(collectives.first_row.tolist())}
    begin_of: dict[int, int] = {}
    end_of: dict[int, int] = {}
    rows = links.device_rows[graph.work].tolist()
    for row, begin, end in zip(rows, graph.work_begin.tolist(), graph.work_end.tolist(), strict=True):
        if row in by_row:
            begin_of[by_row[row]], end_of[end] = begin, by_row[row]
    comm = zip(graph.host_comm_rows.tolist(), graph.host_comm_begin.tolist(), graph.host_comm_end.tolist(), strict=True)
    for row, begin, end in comm:
        if row in by_row:
            begin_of[by_row[row]], end_of[end] = begin, by_row[row]
    holders = _find_holders(graph)
    arrivals = {
        i: _segment(graph, holders, node, end_of)
        for i, node in begin_of.items()
        if int(graph.time_ns[node]) >= graph.low_ns
    }
    return RankSegments(
        step=steps.index[place],
        start_ns=graph.low_ns,
        end_ns=graph.high_ns,
        arrivals=arrivals,
        final=_segment(graph, holders, int(graph.boundaries[-1]), end_of),
    )


MAX_ARRIVALS = 2000
"""Collectives of a step up to which it is cut: their segments stay far below 2 MB."""


def cut_middle_step(
    trace: Trace, links: Links, classes: Classes, steps: StepWindows, collectives: RankCollectives
) -> RankSegments | None:
    """The segments of the step in the middle, which every rank chooses alike; None where it cannot be cut.

    Ranks know nothing of each other here: the step of median length could be another one on each of them.
    """
    complete = np.flatnonzero(steps.is_complete)
    if len(complete) == 0 or len(collectives) == 0:
        return None
    place = int(complete[(len(complete) - 1) // 2])
    low, high = np.searchsorted(collectives.start_ns, [int(steps.start_ns[place]), int(steps.end_ns[place])])
    if high - low > MAX_ARRIVALS or count_rows(trace, steps, place, place) > MAX_GRAPH_ROWS:
        return None
    return cut_at_collectives(trace, links, classes, steps, collectives, place)


def _segment(graph: StepGraph, holders: _Holders, node: int, end_of: dict[int, int]) -> PathSegment:
    walk = _walk_back(graph, holders, node, end_of.keys(), graph.low_ns)
    bound = walk.sum_kinds()
    end = int(graph.time_ns[node])
    return PathSegment(
        previous=NONE if walk.stop < 0 else end_of[walk.stop],
        start_ns=end - sum(bound),
        end_ns=end,
        bound_ns=bound,
    )


def join_paths(
    ranks: Sequence[RankCollectives], segments: Sequence[RankSegments | None], clocks: Clocks, has_sync_events: bool
) -> RanksPath | None:
    """The longest path through the middle step of all ranks, on the aligned clock; None unless all cut the same step.

    It begins at the rank that ends last. At a collective it goes back through the transfer to the rank that came last.
    """
    steps = [one for one in segments if one is not None]
    if len(steps) < 2 or len(steps) != len(segments) or len({one.step for one in steps}) != 1:
        return None
    # Drift within one step is left out: what is on the path adds up to its length.
    base = [int(align_instants(clocks, r, np.array([one.end_ns]))[0]) - one.end_ns for r, one in enumerate(steps)]
    matches = match_collectives(ranks)
    entry_of = {
        (r, a): i for r, a, i in zip(matches.rank.tolist(), matches.at.tolist(), matches.of_entry.tolist(), strict=True)
    }
    count = matches.count
    synchronising = {OPS.index(o) for o in SYNCHRONISING}
    rank = max(range(len(steps)), key=lambda r: steps[r].end_ns + base[r])
    segment = steps[rank].final
    bound = np.zeros((len(ranks), len(BOUND_KINDS)), dtype=np.int64)
    visited: list[int] = []
    """Ranks that the path spends time on, from its end back."""
    seen: set[tuple[int, int]] = set()
    stayed = 0
    while True:
        bound[rank] += segment.bound_ns
        visited += [rank] * (segment.end_ns > segment.start_ns)
        at = segment.previous
        if at < 0 or (rank, at) in seen:
            break
        seen.add((rank, at))
        one = ranks[rank]
        own_end = segment.start_ns + base[rank]
        last, last_at, came = rank, at, int(one.start_ns[at]) + base[rank]
        entry = entry_of.get((rank, at))
        if entry is not None and int(one.op[at]) in synchronising:
            low = int(matches.first[entry])
            for i in range(low, low + int(count[entry])):
                r, a = int(matches.rank[i]), int(matches.at[i])
                start = int(ranks[r].start_ns[a]) + base[r]
                # Who came after this rank had left was not waited for; who is not part of this step cannot be followed.
                if came < start <= own_end and a in steps[r].arrivals:
                    last, last_at, came = r, a, start
        else:
            stayed += 1
        # What is transferred is on the rank that came last.
        bound[last, KIND["comm"]] += own_end - came
        visited += [last] * (own_end > came)
        if last_at not in steps[last].arrivals:
            break
        rank, segment = last, steps[last].arrivals[last_at]
    return RanksPath(
        step=steps[0].step,
        total_ns=int(bound.sum()),
        ranks=tuple(
            RankOnPath(
                rank=one.rank,
                total_ns=int(own.sum()),
                bound_ns=dict(zip(BOUND_KINDS, own.tolist(), strict=True)),
            )
            for one, own in zip(ranks, bound, strict=True)
        ),
        changes_count=max(0, len(list(groupby(visited))) - 1),
        stayed_count=stayed,
        has_sync_events=has_sync_events,
    )
