"""StepGraph: instants of a few steps and what must lie between them; replaying it with any weights.

A node is an instant, an edge says that its target comes at least ``weight_ns`` after its source. How a trace becomes
such a graph stands in dependencies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.graph import BOUND_KINDS, EdgeCounts

from .intervals import Int64s

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
    "forward",
    "anchor",
    "idle",
)
"""What an edge stands for. idle: a thread that waits; the edge only keeps its order."""
ROLE = {name: i for i, name in enumerate(ROLES)}


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
    order: Int64s
    """Nodes in an order in which every edge goes forward."""
    by_target: Int64s
    """Edges by the place of their target in ``order``."""
    work: Int64s
    """Work numbers of Links in the graph."""
    work_begin: Int64s
    work_end: Int64s
    work_step: Int64s
    """Step that launched each work; -1 for work that was launched before the window."""
    host_comm_rows: Int64s
    """Rows of collectives on the host, with their nodes."""
    host_comm_begin: Int64s
    host_comm_end: Int64s
    boundaries: Int64s
    """Node of the end of each step of the window on the main thread."""
    loader_ends: Int64s
    """Nodes where the main thread has got its next batch."""
    loader_ns: Int64s
    """How long each of those took."""
    unexplained: Int64s
    """Per node: the time by which it came later than every edge explains."""
    edges: EdgeCounts
    unlinked_count: int
    """Work that began in the window without a launching call in the trace."""


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


def replay(graph: StepGraph, weight_ns: Int64s, late_ns: Int64s | None = None) -> Int64s:
    """Instants of all nodes when every edge weighs ``weight_ns``; ``late_ns`` is added to each node on top."""
    time = [0] * len(graph.time_ns)
    known = np.full(len(graph.time_ns), False)
    known[graph.target] = True
    far = -(1 << 62)
    for node in np.flatnonzero(known).tolist():
        time[node] = far
    time[0] = graph.low_ns
    late = None if late_ns is None else late_ns.tolist()
    edges = graph.by_target
    previous = -1
    for s, t, w in zip(
        graph.source[edges].tolist(), graph.target[edges].tolist(), weight_ns[edges].tolist(), strict=True
    ):
        if t != previous:
            if late is not None and previous >= 0:
                time[previous] += late[previous]
            previous = t
        ready = time[s] + w
        if ready > time[t]:
            time[t] = ready
    if late is not None and previous >= 0:
        time[previous] += late[previous]
    return np.array(time, dtype=np.int64)
