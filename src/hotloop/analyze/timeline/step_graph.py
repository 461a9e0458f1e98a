"""StepGraph: instants of a few steps and what must lie between them; replaying it with any weights.

A node is an instant, an edge says that its target comes at least ``weight_ns`` after its source. How a trace becomes
such a graph stands in dependencies.

Most nodes have a single edge: on a host thread one instant simply follows the other. The skeleton leaves those out, so
that a replay visits only the instants that several things could hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.graph import BOUND_KINDS, EdgeCounts

from .intervals import Int64s, unite

Bools = NDArray[np.bool_]
Int8s = NDArray[np.int8]

KIND = {name: i for i, name in enumerate(BOUND_KINDS)}
ROLES = (
    "host",
    "input",
    "call",
    "sync_call",
    "latency",
    "work",
    "gap",
    "host_wait",
    "stream_wait",
    "fork",
    "join",
    "anchor",
    "idle",
)
"""What an edge stands for. idle: a thread that waits; the edge only keeps its order."""
ROLE = {name: i for i, name in enumerate(ROLES)}


@dataclass(frozen=True, slots=True)
class Skeleton:
    """How a graph is replayed: the nodes with one edge as offsets, the others in turn.

    A run is a stretch of neighbouring numbers in which each node's only edge comes from the number before it.
    """

    head: Int64s
    """First node of the run that each node is in."""
    single_edge: Int64s
    """The only edge of a node; -1 where it has none or several."""
    is_inner: Bools
    """Inside its run: the only edge comes from the node before it."""
    joins: Int64s
    """Edges of the nodes that have several, by target, in an order in which every edge goes forward."""


@dataclass(frozen=True, slots=True)
class StepGraph:
    """The graph of a window. Node 0 is the window's beginning on the main thread."""

    low_ns: int
    high_ns: int
    time_ns: Int64s
    """Measured instant of each node."""
    source: Int64s
    target: Int64s
    weight_ns: Int64s
    role: Int8s
    kind: Int8s
    """Index into BOUND_KINDS."""
    row: Int64s
    """Row of the trace whose time the edge is; -1 without."""
    skeleton: Skeleton
    work: Int64s
    """Work numbers of Links in the graph."""
    work_begin: Int64s
    work_end: Int64s
    work_step: Int64s
    """Step that launched each work; -1 for work that was launched before the window."""
    boundaries: Int64s
    """Node of the end of each step of the window on the main thread."""
    loader_ns: Int64s
    """How long each call took in which the main thread got its next batch."""
    unexplained: Int64s
    """Per node: the time by which it came later than every edge explains."""
    edges: EdgeCounts


@dataclass(frozen=True, slots=True)
class StepWindowGraph:
    """The graph of the steps at places ``first`` to ``last``, both included."""

    first: int
    last: int
    graph: StepGraph


def order_nodes(count: int, source: Int64s, target: Int64s) -> tuple[Int64s, Bools]:
    """(nodes in an order in which every kept edge goes forward, which edges are kept).

    Edges never go back in time, so only edges between simultaneous nodes can form a ring; such a ring is cut.
    """
    out = np.argsort(source, kind="stable")
    first = np.searchsorted(source[out], np.arange(count + 1)).tolist()
    targets = target[out].tolist()
    waiting = np.bincount(target, minlength=count).tolist()
    ready = [node for node in range(count) if waiting[node] == 0]
    order = []
    is_placed = [False] * count
    rest = 0
    while True:
        while ready:
            node = ready.pop()
            is_placed[node] = True
            order.append(node)
            for at in range(first[node], first[node + 1]):
                t = targets[at]
                waiting[t] -= 1
                if waiting[t] == 0 and not is_placed[t]:
                    ready.append(t)
        while rest < count and is_placed[rest]:
            rest += 1
        if rest == count:
            break
        ready.append(rest)
        waiting[rest] = 0
    placed = np.empty(count, dtype=np.int64)
    numbers = np.array(order, dtype=np.int64)
    placed[numbers] = np.arange(count)
    return numbers, placed[source] < placed[target]


def order_by_time(time_ns: Int64s, source: Int64s, target: Int64s) -> tuple[Int64s, Bools]:
    """(place of every node in an order in which every kept edge goes forward, which edges are kept).

    The order of time is such an order, but for the few edges within one instant or back by a tick of the clock: only
    the nodes around those are put in order one by one.
    """
    order = np.argsort(time_ns, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    begin, end = time_ns[target], time_ns[source]
    tied = np.flatnonzero(end >= begin)
    kept = np.ones(len(source), dtype=bool)
    if len(tied) == 0:
        return place, kept
    spans = unite(begin[tied], end[tied] + 1)
    at = np.searchsorted(spans.start_ns, time_ns, side="right") - 1
    span = np.where((at >= 0) & (time_ns < spans.end_ns[np.maximum(at, 0)]), at, -1)
    # All nodes of a span are neighbours in time: they share their places among each other.
    members = order[span[order] >= 0]
    number = np.full(len(order), -1, dtype=np.int64)
    number[members] = np.arange(len(members))
    inside = np.flatnonzero((span[source] >= 0) & (span[source] == span[target]))
    local, kept[inside] = order_nodes(len(members), number[source[inside]], number[target[inside]])
    placed = members[local[np.argsort(span[members[local]], kind="stable")]]
    place[placed] = np.sort(place[members])
    return place, kept


def make_skeleton(source: Int64s, target: Int64s, role: Int8s, place: Int64s) -> Skeleton:
    """The skeleton of a graph without rings; ``place`` of its nodes as order_by_time gives it."""
    count = len(place)
    degree = np.bincount(target, minlength=count)
    # A change may take a wait away altogether, which no offset can say.
    one = (degree[target] == 1) & (role != ROLE["host_wait"])
    edge = np.full(count, -1, dtype=np.int64)
    edge[target[one]] = np.flatnonzero(one)
    numbers = np.arange(count, dtype=np.int64)
    inner = (edge >= 0) & (source[np.maximum(edge, 0)] == numbers - 1) if len(source) else edge >= 0
    joins = np.flatnonzero(~one)
    return Skeleton(
        head=np.maximum.accumulate(np.where(inner, 0, numbers)),
        single_edge=edge,
        is_inner=inner,
        joins=joins[np.argsort(place[target[joins]], kind="stable")],
    )


def replay(graph: StepGraph, weight_ns: Int64s, late_ns: Int64s | None = None) -> Int64s:
    """Instants of all nodes when every edge weighs ``weight_ns``; ``late_ns`` is added to each node on top."""
    skeleton = graph.skeleton
    anchor, offset = _find_offsets(graph, weight_ns, late_ns)
    count = len(graph.time_ns)
    time = np.zeros(count, dtype=np.int64)
    time[0] = graph.low_ns
    edges = skeleton.joins
    if len(edges):
        target = graph.target[edges]
        # Sources and targets by the order of the targets: few numbers, so lists of them are quick.
        first = np.flatnonzero(np.concatenate([[True], target[1:] != target[:-1]]))
        joined = target[first]
        slot = np.full(count, -1, dtype=np.int64)
        slot[joined] = np.arange(len(joined))
        source = graph.source[edges]
        held = anchor[source]
        # An edge from a node that nothing moves has its instant at once.
        fixed = slot[held] < 0
        ready = weight_ns[edges] + offset[source] + np.where(fixed, time[held], 0)
        late = [0] * len(joined) if late_ns is None else late_ns[joined].tolist()
        time[joined] = _replay_joins(slot[held].tolist(), ready.tolist(), [*first.tolist(), len(edges)], late)
    result: Int64s = time[anchor] + offset
    return result


def _replay_joins(slot: list[int], ready: list[int], bounds: list[int], late: list[int]) -> list[int]:
    """Instants of the nodes with several edges; ``bounds`` are where the edges of each begin, a slot below 0 is a
    source that does not move."""
    time: list[int] = []
    at = 0
    for stop, behind in zip(bounds[1:], late, strict=True):
        latest = -(1 << 62)
        while at < stop:
            source = slot[at]
            reached = ready[at] if source < 0 else ready[at] + time[source]
            if reached > latest:
                latest = reached
            at += 1
        time.append(latest + behind)
    return time


def _find_offsets(graph: StepGraph, weight_ns: Int64s, late_ns: Int64s | None) -> tuple[Int64s, Int64s]:
    """(the node with no or several edges that each node follows, how long after it); (itself, 0) for such a node."""
    skeleton = graph.skeleton
    edge = np.maximum(skeleton.single_edge, 0)
    single = skeleton.single_edge >= 0
    length = np.where(single, weight_ns[edge], 0) if len(weight_ns) else np.zeros(len(edge), dtype=np.int64)
    if late_ns is not None:
        length = length + np.where(single, late_ns, 0)
    within = np.cumsum(np.where(skeleton.is_inner, length, 0))
    within -= within[skeleton.head]
    # Runs hang on nodes of other runs: follow those, twice as far with every turn.
    heads = np.flatnonzero(~skeleton.is_inner)
    run = np.cumsum(~skeleton.is_inner) - 1
    hung = np.flatnonzero(single[heads])
    up = np.arange(len(heads))
    base = np.zeros(len(heads), dtype=np.int64)
    if len(hung):
        parent = graph.source[skeleton.single_edge[heads[hung]]]
        up[hung] = run[parent]
        base[hung] = length[heads[hung]] + within[parent]
        while len(hung):
            above = up[hung]
            base[hung] += base[above]
            up[hung] = up[above]
            hung = hung[up[hung] != above]
    return heads[up[run]], base[run] + within
