"""StepGraph -> CriticalPath: what would have to be faster for a step to be shorter; then the same over all ranks.

The path is walked back from the end of the step: from every instant to the one that held it last. Its stretches lie end
to end from the beginning of the step to its end, so what bounds it sums to the step exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.core.graph import (
    BOUND_KINDS,
    OPS,
    Clocks,
    CriticalPath,
    CrossRankPath,
    PathPart,
    PathSegment,
    RankCollectives,
    RankSegments,
    RankStretch,
)
from hotloop.core.timeline import TimelineNote
from hotloop.core.trace import Trace
from hotloop.core.trace_analysis import StepPath

from .classes import Classes
from .dependencies import MAX_GRAPH_ROWS, build_graph, count_rows
from .intervals import Int64s
from .links import Links
from .nesting import NONE
from .ranks import SYNCHRONISING, match_collectives
from .step_graph import KIND, ROLE, StepGraph
from .steps import Steps

PARTS_COUNT = 40
NOTHING = "nothing recorded"


@dataclass(frozen=True, slots=True)
class _Stretch:
    """One edge on a path, and the part of it in which nothing explains the delay (at its end)."""

    from_ns: int
    to_ns: int
    kind: int
    row: int
    unexplained_ns: int


def choose_step(steps: Steps) -> int:
    """Place of the step to look at: the complete one of median length; the first of several."""
    if len(steps) == 0:
        raise UsageError("the trace shows nothing that a path could lead through")
    length = steps.end_ns - steps.start_ns
    pool = np.flatnonzero(steps.is_complete)
    pool = pool if len(pool) else np.arange(len(steps))
    ordered = pool[np.argsort(length[pool], kind="stable")]
    return int(ordered[(len(ordered) - 1) // 2])


def summarize_path(trace: Trace, links: Links, classes: Classes, steps: Steps, top: int = 20) -> StepPath | None:
    """The critical path of the usual step without its rows; None where there is none or it is too large."""
    try:
        path = find_critical_path(trace, links, classes, steps)
    except UsageError:
        return None
    return StepPath(
        step=path.step,
        paced_by=path.paced_by,
        bound_ns=dict(zip(BOUND_KINDS, path.bound_ns, strict=True)),
        parts=tuple((part.name[:200], part.kind, part.total_ns) for part in path.parts[:top]),
        has_sync_events=path.has_sync_events,
    )


def find_critical_path(
    trace: Trace, links: Links, classes: Classes, steps: Steps, place: int | None = None
) -> CriticalPath:
    """The path through the step at ``place`` (of median length by default). Raises UsageError for a step too large."""
    at = choose_step(steps) if place is None else place
    rows = count_rows(trace, steps, at, at)
    if rows > MAX_GRAPH_ROWS:
        raise UsageError(f"the step has {rows} events; a path is searched through at most {MAX_GRAPH_ROWS}")
    if falls_behind(trace, links, steps):
        seen = find_device_ends(links, trace, steps)
        first = max(0, at - 1)
        graph = build_graph(trace, links, classes, steps, first, at)
        mine = np.flatnonzero(graph.work_step == at - first)
        # The work of a step that begins the trace has nothing before it: its own beginning counts.
        start = int(seen[at - 1]) if at > 0 else graph.low_ns
        if len(mine) and int(seen[at]) > start >= 0:
            end_node = int(graph.work_end[mine[np.argmax(graph.time_ns[graph.work_end[mine]])]])
            return describe_path(trace, graph, steps.index[at], "device", end_node, start)
    graph = build_graph(trace, links, classes, steps, at, at)
    return describe_path(trace, graph, steps.index[at], "host", int(graph.boundaries[-1]), graph.low_ns)


BEHIND_RATIO = 0.05
"""The device falls behind when its lag grows by more than this share of a step at every step."""


def find_device_ends(links: Links, trace: Trace, steps: Steps) -> Int64s:
    """Latest end of all device work that was launched in each step or before it; -1 before the first."""
    ends = np.full(len(steps), NONE, dtype=np.int64)
    known = np.flatnonzero(links.launch_row >= 0)
    step = steps.find_step(trace.start_ns[links.launch_row[known]])
    np.maximum.at(ends, step[step >= 0], links.end_ns[known][step >= 0])
    return np.maximum.accumulate(ends)


def falls_behind(trace: Trace, links: Links, steps: Steps) -> bool:
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
    stretches, _ = _walk_back(graph, _index_targets(graph), end_node, (), start_ns)
    bound = [0] * len(BOUND_KINDS)
    unexplained = 0
    names: dict[tuple[str, int], list[int]] = {}
    pieces: list[tuple[int, int, int]] = []
    for one in stretches:
        for begin, end, kind, row in _split(one):
            bound[kind] += end - begin
            name = trace.names[trace.name[row]] if row >= 0 else NOTHING
            total = names.setdefault((name, kind), [0, 0])
            total[0] += end - begin
            total[1] += 1
            if pieces and pieces[-1][1:] == (kind, row):
                continue
            pieces.append((begin, kind, row))
        unexplained += one.unexplained_ns
    parts = [
        PathPart(name=name, kind=BOUND_KINDS[kind], total_ns=total, count=count)
        for (name, kind), (total, count) in names.items()
        if total
    ]
    parts.sort(key=lambda p: (-p.total_ns, p.name))
    return CriticalPath(
        step=step,
        paced_by=paced_by,
        start_ns=start_ns,
        end_ns=int(graph.time_ns[end_node]),
        bound_ns=tuple(bound),
        unexplained_ns=unexplained,
        parts=tuple(parts[:PARTS_COUNT]),
        parts_left_out_ns=sum(p.total_ns for p in parts[PARTS_COUNT:]),
        rows=np.array([p[2] for p in pieces], dtype=np.int64),
        from_ns=np.array([p[0] for p in pieces], dtype=np.int64),
        kinds=np.array([p[1] for p in pieces], dtype=np.int8),
        edges=graph.edges,
        has_sync_events=trace.facts.has_sync,
        notes=_write_notes(trace, graph, unexplained, paced_by),
    )


def _split(one: _Stretch) -> list[tuple[int, int, int, int]]:
    """(begin, end, kind, row) of the explained and the unexplained part, empty ones left out."""
    middle = one.to_ns - one.unexplained_ns
    parts = [(one.from_ns, middle, one.kind, one.row), (middle, one.to_ns, KIND["sync"], NONE)]
    return [p for p in parts if p[1] > p[0]]


def _write_notes(trace: Trace, graph: StepGraph, unexplained: int, paced_by: str) -> tuple[TimelineNote, ...]:
    notes = []
    if paced_by == "device":
        notes.append(
            TimelineNote(
                level="info",
                code="device-behind",
                message="the host runs ahead: the device falls further behind at every step, so the path leads to the"
                " end of the step's device work",
            )
        )
    if len(graph.work) and not trace.facts.has_sync:
        notes.append(
            TimelineNote(
                level="warning",
                code="no-sync-events",
                message="the trace has no cuda_sync events: which work a wait is for was inferred"
                f" ({graph.edges.inferred_syncs} times), so the critical path is a guess where the host or a stream"
                " waits. Record with torch.profiler's experimental_config=_ExperimentalConfig("
                "enable_cuda_sync_events=True)",
                count=graph.edges.inferred_syncs,
            )
        )
    if unexplained * 50 * len(graph.boundaries) > graph.high_ns - graph.low_ns:
        notes.append(
            TimelineNote(
                level="warning",
                code="unexplained-waits",
                message=f"{unexplained} ns of the critical path wait for something that the trace does not show",
            )
        )
    if graph.unlinked_count:
        notes.append(
            TimelineNote(
                level="info",
                code="unlinked-kernels",
                message=f"{graph.unlinked_count} device events of the step have no launching call: they only follow"
                " what ran before them on their stream",
                count=graph.unlinked_count,
            )
        )
    return tuple(notes)


@dataclass(frozen=True, slots=True)
class _Incoming:
    """Edges of a graph by their target."""

    edges: Int64s
    bounds: Int64s

    def of(self, node: int) -> Int64s:
        return self.edges[self.bounds[node] : self.bounds[node + 1]]


def _walk_back(
    graph: StepGraph, incoming: _Incoming, node: int, stops: Collection[int], floor_ns: int
) -> tuple[list[_Stretch], int]:
    """(stretches from ``floor_ns`` or a stop to ``node``, in time order; the stop, -1 without one)."""
    time, source, weight = graph.time_ns, graph.source, graph.weight_ns
    found: list[_Stretch] = []
    at = node
    while at != 0 and int(time[at]) > floor_ns and (at == node or at not in stops):
        mine = incoming.of(at)
        reach = time[source[mine]] + weight[mine]
        # Of several that hold it, one that does more than keep an order.
        edge = int(mine[np.lexsort((graph.role[mine] == ROLE["idle"], -reach))[0]])
        before = int(source[edge])
        late = int(time[at]) - int(time[before]) - int(weight[edge])
        begin = max(int(time[before]), floor_ns)
        late = min(late, int(time[at]) - begin)
        found.append(_Stretch(begin, int(time[at]), int(graph.kind[edge]), int(graph.row[edge]), late))
        at = before
    if at == 0 and int(time[0]) > floor_ns:
        found.append(_Stretch(floor_ns, int(time[0]), KIND["sync"], NONE, int(time[0]) - floor_ns))
    return found[::-1], at if at in stops and at != node else NONE


def split_retimed(graph: StepGraph, end_node: int, start_ns: int) -> tuple[int, ...]:
    """Time by BOUND_KINDS along the path to a node of a graph whose nodes and weights were changed; sums to the time
    from ``start_ns``."""
    stretches, _ = _walk_back(graph, _index_targets(graph), end_node, (), start_ns)
    bound = [0] * len(BOUND_KINDS)
    for one in stretches:
        for begin, end, kind, _ in _split(one):
            bound[kind] += end - begin
    return tuple(bound)


def _index_targets(graph: StepGraph) -> _Incoming:
    edges = np.argsort(graph.target, kind="stable")
    return _Incoming(edges, np.searchsorted(graph.target[edges], np.arange(len(graph.time_ns) + 1)))


# ---- across ranks


def cut_at_collectives(
    trace: Trace,
    links: Links,
    classes: Classes,
    steps: Steps,
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
    incoming = _index_targets(graph)
    arrivals = {
        i: _segment(graph, incoming, node, end_of)
        for i, node in begin_of.items()
        if int(graph.time_ns[node]) >= graph.low_ns
    }
    return RankSegments(
        step=steps.index[place],
        start_ns=graph.low_ns,
        end_ns=graph.high_ns,
        arrivals=arrivals,
        final=_segment(graph, incoming, int(graph.boundaries[-1]), end_of),
    )


def _segment(graph: StepGraph, incoming: _Incoming, node: int, end_of: dict[int, int]) -> PathSegment:
    stretches, stop = _walk_back(graph, incoming, node, end_of.keys(), graph.low_ns)
    bound = [0] * len(BOUND_KINDS)
    for one in stretches:
        for begin, end, kind, _ in _split(one):
            bound[kind] += end - begin
    end = int(graph.time_ns[node])
    return PathSegment(
        previous=NONE if stop < 0 else end_of[stop],
        start_ns=end - sum(bound),
        end_ns=end,
        bound_ns=tuple(bound),
    )


def join_paths(
    ranks: Sequence[RankCollectives], segments: Sequence[RankSegments], clocks: Clocks
) -> CrossRankPath | None:
    """The longest path through one step of all ranks, on the aligned clock; None without a step.

    It begins at the rank that ends last. At a collective it goes back through the transfer to the rank that came last.
    """
    if not segments:
        return None
    base = clocks.base_ns
    matches = match_collectives(ranks)
    entry_of = {
        (r, a): i for r, a, i in zip(matches.rank.tolist(), matches.at.tolist(), matches.of_entry.tolist(), strict=True)
    }
    count = matches.count
    synchronising = {OPS.index(o) for o in SYNCHRONISING}
    rank = max(range(len(segments)), key=lambda r: segments[r].end_ns + base[r])
    end = segments[rank].end_ns + base[rank]
    segment = segments[rank].final
    stretches: list[RankStretch] = []
    seen: set[tuple[int, int]] = set()
    stayed = 0
    while True:
        stretches.append(
            RankStretch(
                rank=rank,
                start_ns=segment.start_ns + base[rank],
                end_ns=segment.end_ns + base[rank],
                bound_ns=segment.bound_ns,
                what="work",
            )
        )
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
                if came < start <= own_end and a in segments[r].arrivals:
                    last, last_at, came = r, a, start
        else:
            stayed += 1
        bound = [0] * len(BOUND_KINDS)
        bound[KIND["comm"]] = own_end - came
        stretches.append(
            RankStretch(rank=last, start_ns=came, end_ns=own_end, bound_ns=tuple(bound), what=OPS[int(one.op[at])])
        )
        if last_at not in segments[last].arrivals:
            break
        rank, segment = last, segments[last].arrivals[last_at]
    stretches.reverse()
    total = [sum(s.bound_ns[k] for s in stretches) for k in range(len(BOUND_KINDS))]
    shares = [0] * len(ranks)
    for stretch in stretches:
        shares[stretch.rank] += stretch.end_ns - stretch.start_ns
    return CrossRankPath(
        step=segments[0].step,
        start_ns=stretches[0].start_ns,
        end_ns=end,
        bound_ns=tuple(total),
        stretches=tuple(s for s in stretches if s.end_ns > s.start_ns),
        rank_ns=tuple(shares),
        stayed_count=stayed,
    )
