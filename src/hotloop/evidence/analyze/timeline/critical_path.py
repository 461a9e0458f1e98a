"""StepGraph -> StepPath: what would have to be faster for a step to be shorter.

The path is traced back from the end of the step: from every instant to the one that held it last. Its stretches are
contiguous from the start of the step to its end, so the parts that bound it sum to the step exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.core.graph import BOUND_KINDS
from hotloop.core.trace import Trace
from hotloop.core.trace_analysis import StepPath

from .classes import Classes
from .dependencies import MAX_GRAPH_ROWS, build_graph, count_rows
from .intervals import Int64s, sum_groups
from .links import NONE, Links
from .step_graph import KIND, ROLE, StepGraph, StepWindowGraph
from .steps import StepWindows

NOTHING = "nothing recorded"
MOST_PARTS, NAME_LENGTH = 20, 200


@dataclass(frozen=True, slots=True)
class Stretches:
    """The pieces of a path in time order, none empty; each begins where the one before it ends."""

    begin_ns: Int64s
    end_ns: Int64s
    kind: Int64s
    """Index into BOUND_KINDS."""
    row: Int64s
    """Row of the trace; -1 if no event covers a piece."""


def choose_step(steps: StepWindows) -> int:
    """Position of the step to look at: the complete one of median length; the first if there are several."""
    if len(steps) == 0:
        raise UsageError("the trace contains no events for a critical path")
    length = steps.end_ns - steps.start_ns
    pool = np.flatnonzero(steps.is_complete)
    pool = pool if len(pool) else np.arange(len(steps))
    ordered = pool[np.argsort(length[pool], kind="stable")]
    return int(ordered[(len(ordered) - 1) // 2])


def find_critical_path(
    trace: Trace,
    links: Links,
    classes: Classes,
    steps: StepWindows,
    place: int | None = None,
    window: StepWindowGraph | None = None,
) -> StepPath:
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
        # The work of a step that begins the trace has nothing before it: its own start counts.
        start = int(seen[at - 1]) if at > 0 else graph.low_ns
        if len(mine) and int(seen[at]) > start >= 0:
            end_node = int(graph.work_end[mine[np.argmax(graph.time_ns[graph.work_end[mine]])]])
            return describe_path(trace, graph, steps.index[at], "device", end_node, start)
    shown = open_at(at)
    end_node = int(shown.graph.boundaries[at - shown.first])
    return describe_path(trace, shown.graph, steps.index[at], "host", end_node, int(steps.start_ns[at]))


BEHIND_RATIO = 0.05
"""The device's lag counts as growing if it grows by more than this share of a step at every step."""


def find_device_ends(links: Links, trace: Trace, steps: StepWindows) -> Int64s:
    """Latest end of all device work that was launched in each step or before it; -1 before the first."""
    ends = np.full(len(steps), NONE, dtype=np.int64)
    known = np.flatnonzero(links.launch_row >= 0)
    step = steps.find_step(trace.start_ns[links.launch_row[known]])
    np.maximum.at(ends, step[step >= 0], links.end_ns[known][step >= 0])
    return np.maximum.accumulate(ends)


def falls_behind(trace: Trace, links: Links, steps: StepWindows) -> bool:
    """Whether the host runs ahead of a device that needs longer for a step. For a single step: whether the device needs
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


def describe_path(trace: Trace, graph: StepGraph, step: int, paced_by: str, end_node: int, start_ns: int) -> StepPath:
    """The path from ``start_ns`` to a node of the graph."""
    walk = _walk_back(graph, end_node, start_ns)
    length = walk.end_ns - walk.begin_ns
    name = np.where(walk.row >= 0, trace.name[np.maximum(walk.row, 0)] if len(trace.name) else NONE, NONE)
    keys, group = np.unique(name.astype(np.int64) * len(BOUND_KINDS) + walk.kind, return_inverse=True)
    parts = []
    for key, total_ns in zip(keys.tolist(), sum_groups(group, length, len(keys)).tolist(), strict=True):
        number, kind = divmod(key, len(BOUND_KINDS))
        parts.append((trace.names[number][:NAME_LENGTH] if number >= 0 else NOTHING, BOUND_KINDS[kind], total_ns))
    by_kind = sum_groups(walk.kind, length, len(BOUND_KINDS)).tolist()
    return StepPath(
        step=step,
        paced_by=paced_by,
        bound_ns=dict(zip(BOUND_KINDS, by_kind, strict=True)),
        parts=tuple(sorted(parts, key=lambda part: (-part[2], part[0]))[:MOST_PARTS]),
        has_sync_events=trace.facts.has_sync,
    )


def _find_holders(graph: StepGraph) -> Int64s:
    """The edge that holds each node longest; of several, the first that does more than keep an order. -1 without."""
    reach = graph.time_ns[graph.source] + graph.weight_ns
    latest = np.full(len(graph.time_ns), np.iinfo(np.int64).min, dtype=np.int64)
    np.maximum.at(latest, graph.target, reach)
    holder = np.full(len(graph.time_ns), NONE, dtype=np.int64)
    # Of edges that are assigned to one node, the last one stays, so the first comes last.
    holding = np.flatnonzero(reach == latest[graph.target])[::-1]
    holder[graph.target[holding]] = holding
    holding = holding[graph.role[holding] != ROLE["idle"]]
    holder[graph.target[holding]] = holding
    return holder


def _walk_back(graph: StepGraph, node: int, floor_ns: int) -> Stretches:
    """From ``node`` back along the edges that held each node, to ``floor_ns``."""
    holder = _find_holders(graph)
    time = graph.time_ns.tolist()
    before = np.where(holder >= 0, graph.source[holder] if len(graph.source) else NONE, NONE).tolist()
    visited = []
    at = node
    while at != 0 and time[at] > floor_ns:
        visited.append(at)
        at = before[at]
    nodes = np.array(visited[::-1], dtype=np.int64)
    edges = holder[nodes]
    source = graph.time_ns[graph.source[edges]]
    end = graph.time_ns[nodes]
    begin = np.maximum(source, floor_ns)
    late = np.minimum(end - source - graph.weight_ns[edges], end - begin)
    kind, row = graph.kind[edges].astype(np.int64), graph.row[edges]
    if at == 0 and time[0] > floor_ns:
        # Anything before the graph is not explained by it.
        first, none = np.array([floor_ns]), np.array([NONE])
        begin, end = np.concatenate([first, begin]), np.concatenate([np.array([time[0]]), end])
        late, kind = np.concatenate([end[:1] - first, late]), np.concatenate([np.array([KIND["sync"]]), kind])
        row = np.concatenate([none, row])
    middle = end - late
    starts, ends = np.stack([begin, middle], axis=1).reshape(-1), np.stack([middle, end], axis=1).reshape(-1)
    kinds = np.stack([kind, np.full(len(kind), KIND["sync"])], axis=1).reshape(-1)
    rows = np.stack([row, np.full(len(row), NONE)], axis=1).reshape(-1)
    full = ends > starts
    return Stretches(starts[full], ends[full], kinds[full], rows[full])
