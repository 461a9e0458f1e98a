"""StepGraph: instants of a few steps and the constraints between them; it can be replayed with any weights.

A node is an instant, an edge says that its target comes at least ``weight_ns`` after its source. dependencies.py says
how a trace becomes such a graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.graph import BOUND_KINDS

from .intervals import Int64s

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
"""What an edge represents. idle: a thread that waits; the edge only keeps its order."""
ROLE = {name: i for i, name in enumerate(ROLES)}
FAR_BACK_NS = -(1 << 62)
"""Earlier than anything."""


@dataclass(frozen=True, slots=True)
class StepGraph:
    """The graph of a window: n nodes, e edges, w pieces of device work. Node 0 is the window's start on the main
    thread."""

    low_ns: int
    time_ns: Int64s
    """(n) Measured instant of each node."""
    source: Int64s
    """(e) Edges are in an order in which each comes after all that lead to its source (order_edges)."""
    target: Int64s
    weight_ns: Int64s
    role: Int8s
    kind: Int8s
    """Index into BOUND_KINDS."""
    row: Int64s
    """Row of the trace whose time the edge is; -1 if there is none."""
    work: Int64s
    """(w) Work numbers of Links in the graph."""
    work_begin: Int64s
    work_end: Int64s
    work_step: Int64s
    """Step that launched each work; -1 for work that was launched before the window."""
    boundaries: Int64s
    """Node of the end of each step of the window on the main thread."""
    unexplained: Int64s
    """(n) Time by which each node came later than every edge explains, ns."""
    inferred_count: int
    """Edges that are guessed from times; all others are recorded facts."""


@dataclass(frozen=True, slots=True)
class StepWindowGraph:
    """The graph of the steps at positions ``first`` to ``last``, both included."""

    first: int
    last: int
    graph: StepGraph


def order_edges(time_ns: Int64s, source: Int64s, target: Int64s) -> Int64s:
    """Edges (by their numbers) in an order in which each comes after all that lead to its source.

    The order of time is such an order, except for edges within one instant or back by a tick of the clock. Only these
    can form a ring; the edge that closes a ring is left out.
    """
    count = len(time_ns)
    by_target = np.argsort(target, kind="stable")
    first = np.searchsorted(target[by_target], np.arange(count + 1)).tolist()
    sources = source[by_target].tolist()
    place, placed_count, is_begun = np.full(count, -1, dtype=np.int64), 0, [False] * count
    for earliest in np.argsort(time_ns, kind="stable").tolist():
        waiting = [earliest]
        while waiting:
            node = waiting[-1]
            if not is_begun[node]:
                is_begun[node] = True
                waiting += [s for s in sources[first[node] : first[node + 1]] if not is_begun[s]]
                continue
            waiting.pop()
            if place[node] < 0:
                place[node] = placed_count
                placed_count += 1
    forward = np.flatnonzero(place[source] < place[target])
    return forward[np.argsort(place[target[forward]], kind="stable")]


def replay(graph: StepGraph, weight_ns: Int64s, late_ns: Int64s | None = None) -> Int64s:
    """(n) Instants of all nodes if every edge weighs ``weight_ns`` (e); ``late_ns`` (n) is added to each node on
    top."""
    weights = weight_ns if late_ns is None else weight_ns + late_ns[graph.target]
    time = [FAR_BACK_NS] * len(graph.time_ns)
    time[0] = graph.low_ns
    for source, target, weight in zip(graph.source.tolist(), graph.target.tolist(), weights.tolist(), strict=True):
        reached = time[source] + weight
        if reached > time[target]:
            time[target] = reached
    return np.array(time, dtype=np.int64)
