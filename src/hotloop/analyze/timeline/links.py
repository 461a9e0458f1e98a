"""Trace -> Links: which host call launched which device work, and which operator made that call."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.trace import DEVICE_WORK, Category, Trace

from .intervals import Int64s
from .names import match_names
from .nesting import NONE, Nesting, nest

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
    """Row of the launching call of each work; NONE where the trace does not tell."""
    op_place: Int64s
    """Place in ``ranges`` of the innermost operator or user range around the launching call; NONE without."""
    by_graph: Bools
    """True where the launching call launched a whole graph."""
    ranges: Nesting
    """Operators and user ranges of all host threads."""

    @property
    def work_count(self) -> int:
        return len(self.device_rows)


def link_device_work(trace: Trace) -> Links:
    """The links of a trace. Correlation ids of 0 and below link nothing: profilers write 0 for what they lost."""
    rows = find_categories(trace, DEVICE_WORK)
    ranges = nest_categories(trace, HOST_RANGES)
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


def nest_categories(trace: Trace, categories: tuple[Category, ...]) -> Nesting:
    """The nesting of all events of some categories."""
    return nest_rows(trace, find_categories(trace, categories))


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
    """Row of the runtime call with the same correlation as each device row; the earliest where several have it."""
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
    """The innermost range around each call by thread and time; by external id where the threads do not match."""
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
