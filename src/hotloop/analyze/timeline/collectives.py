"""Trace -> RankCollectives: the collectives of one rank, with group, kind, size and times, as compact columns.

What the file says about a collective counts first (its kernel's own facts, then those of record_param_comms around the
launch), then the range that launched it, then the kernel's name. Collectives of gloo, MPI and UCC are ranges on threads
of the library; they have no device work.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.core.graph import OPS, RankCollectives
from hotloop.core.trace import Trace

from .classes import COLLECTIVE_RANGE, COMM, Classes
from .intervals import Int64s
from .links import NONE, Links, match_names
from .steps import StepWindows

MAX_COLLECTIVES = 24_000
"""Kept per rank: below 2 MB."""
OP = {name: i for i, name in enumerate(OPS)}

_OP_WORDS = (
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("allreduce", "all_reduce"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("bcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "point_to_point"),
    ("send", "point_to_point"),
    ("recv", "point_to_point"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
)
_HOST_COLLECTIVE = re.compile(r"^(?:gloo|mpi|ucc):")
_PARAM_COMMS = re.compile(r"^record_param_comms$")
_ELEMENT_BYTES = {
    1: ("byte", "char", "signed char", "unsigned char", "bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"),
    2: ("half", "bfloat16", "short", "float16", "int16", "c10::half", "c10::bfloat16", "short int"),
    4: ("float", "int", "float32", "int32"),
    8: ("double", "long", "long int", "float64", "int64"),
}
_BYTES_OF = {name: size for size, names in _ELEMENT_BYTES.items() for name in names}


def name_op(text: str) -> str:
    """The kind of a collective by what a library calls it.

    >>> name_op("nccl:_all_gather_base"), name_op("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), name_op("wait")
    ('all_gather', 'all_reduce', 'unknown')
    """
    plain = re.sub(r"[^a-z]", "", text.lower())
    return next((op for word, op in _OP_WORDS if word in plain), "unknown")


def collect_collectives(
    trace: Trace, links: Links, classes: Classes, steps: StepWindows, limit: int = MAX_COLLECTIVES
) -> RankCollectives:
    """The collectives of one rank, from device events where there are any and from ranges of gloo, MPI and UCC."""
    found = _join_columns(_from_device(trace, links, classes), _from_host(trace, links))
    order = np.argsort(found.start_ns, kind="stable")
    kept = order[:limit]
    found = found.take(kept)
    groups, group_ranks, group = _name_groups(trace, found)
    step = np.full(len(kept), NONE, dtype=np.int32)
    if steps.source == "ProfilerStep":
        at = steps.find_step(found.launch_ns)
        held = at >= 0
        step[held] = np.array(steps.index, dtype=np.int64)[at[held]]
    return RankCollectives(
        rank=trace.facts.rank,
        host=trace.facts.host,
        base_ns=trace.facts.epoch_ns + (trace.facts.unix_base_ns or 0),
        time_unit_ns=trace.facts.time_unit_ns,
        groups=groups,
        group_ranks=group_ranks,
        start_ns=found.start_ns,
        end_ns=found.end_ns,
        op=found.op,
        group=group,
        step=step,
        sequence=found.sequence,
        in_elements=found.in_elements,
        out_elements=found.out_elements,
        element_bytes=found.element_bytes,
        group_size=found.group_size.astype(np.int32),
        left_out_count=len(order) - len(kept),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    start_ns: Int64s
    end_ns: Int64s
    launch_ns: Int64s
    op: NDArray[np.int8]
    sequence: Int64s
    in_elements: Int64s
    out_elements: Int64s
    group_size: Int64s
    element_bytes: NDArray[np.int8]
    group_name: list[str]
    group_ranks: list[tuple[int, ...] | None]

    @property
    def columns(self) -> list[Any]:
        return [getattr(self, one.name) for one in fields(self)]

    def take(self, at: Int64s) -> _Found:
        rows = at.tolist()
        found: list[Any] = [[one[i] for i in rows] if isinstance(one, list) else one[at] for one in self.columns]
        return _Found(*found)


def _join_columns(a: _Found, b: _Found) -> _Found:
    if len(b.start_ns) == 0:
        return a
    if len(a.start_ns) == 0:
        return b
    pairs = zip(a.columns, b.columns, strict=True)
    found: list[Any] = [x + y if isinstance(x, list) else np.concatenate([x, y]) for x, y in pairs]
    return _Found(*found)


def _from_device(trace: Trace, links: Links, classes: Classes) -> _Found:
    """One collective for each range that launched communication; a kernel without such a range stands alone."""
    ranges = links.ranges
    work = np.flatnonzero(classes.kind == COMM)
    place = links.op_place[work]
    name = trace.name[ranges.rows]
    nearest = np.full(len(ranges), NONE, dtype=np.int32)
    described = nearest
    if len(ranges):
        nearest = ranges.find_nearest(match_names(trace, name, COLLECTIVE_RANGE))
        described = ranges.find_nearest(match_names(trace, name, _PARAM_COMMS))
    held = np.maximum(place, 0)
    inner = np.where(place >= 0, nearest[held] if len(ranges) else NONE, NONE)
    outer = np.where(place >= 0, described[held] if len(ranges) else NONE, NONE)
    owner = np.where(outer >= 0, outer, inner)
    key = np.where(owner >= 0, owner.astype(np.int64), -1 - np.arange(len(work), dtype=np.int64))
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    start = np.full(len(first), np.iinfo(np.int64).max, dtype=np.int64)
    end = np.full(len(first), np.iinfo(np.int64).min, dtype=np.int64)
    np.minimum.at(start, group, links.start_ns[work])
    np.maximum.at(end, group, links.end_ns[work])
    launch = links.launch_row[work[first]]
    launch_ns = np.where(launch >= 0, trace.start_ns[np.maximum(launch, 0)], start)
    # The fact that stands nearest to the work counts; each source is the rows of all collectives, -1 without one.
    sources = [links.device_rows[work[first]]]
    for holder in (outer[first], inner[first]):
        sources.append(np.where(holder >= 0, ranges.rows[np.maximum(holder, 0)] if len(ranges) else NONE, NONE))
    return _describe(trace, sources, start, end, launch_ns)


def _from_host(trace: Trace, links: Links) -> _Found:
    """Collectives that run on the host: the outermost range of its library on each thread."""
    ranges = links.ranges
    marked = match_names(trace, trace.name[ranges.rows], _HOST_COLLECTIVE) if len(ranges) else np.zeros(0, dtype=bool)
    at = np.flatnonzero(marked)
    parent = ranges.parent[at]
    at = at[(parent < 0) | ~marked[np.maximum(parent, 0)]]
    rows = ranges.rows[at]
    start, end = ranges.start_ns[at], ranges.end_ns[at]
    return _describe(trace, [rows], start, end, start)


def _describe(
    trace: Trace,
    sources: Sequence[Int64s],
    start: Int64s,
    end: Int64s,
    launch_ns: Int64s,
) -> _Found:
    """``sources`` are rows of every collective that may describe it, nearest first; the first is its own."""
    size = len(start)
    collective = _first_text(trace, "collective", sources, size)
    names = [trace.names[trace.name[row]] if row >= 0 else "" for row in sources[-1].tolist()]
    own = [trace.names[trace.name[row]] for row in sources[0].tolist()]
    kinds = []
    for named, ranged, kernel in zip(collective, names, own, strict=True):
        kind = next((k for k in (name_op(t) for t in (named, ranged, kernel) if t) if k != "unknown"), "unknown")
        kinds.append(OP[kind])
    in_elements = _first_integer(trace, "in_elements", sources, size)
    dtype = _first_text(trace, "dtype", sources, size)
    shapes = _first_text(trace, "shapes", sources[::-1], size)
    types = _first_text(trace, "dtypes", sources[::-1], size)
    element_bytes = np.zeros(size, dtype=np.int8)
    for i in range(size):
        if in_elements[i] < 0 and shapes[i]:
            in_elements[i] = count_elements(shapes[i])
        element_bytes[i] = _BYTES_OF.get((dtype[i] or _first_type(types[i])).lower(), NONE)
    return _Found(
        start,
        end,
        launch_ns,
        np.array(kinds, dtype=np.int8),
        _first_integer(trace, "collective_sequence", sources, size),
        in_elements,
        _first_integer(trace, "out_elements", sources, size),
        _first_integer(trace, "group_size", sources, size),
        element_bytes,
        _first_text(trace, "process_group", sources, size),
        [_parse_ranks(text) for text in _first_text(trace, "process_group_ranks", sources, size)],
    )


def _first_integer(trace: Trace, fact: str, sources: Sequence[Int64s], size: int) -> Int64s:
    return _first_of(*trace.integers(fact), sources, size)


def _first_text(trace: Trace, fact: str, sources: Sequence[Int64s], size: int) -> list[str]:
    rows, indices, table = trace.texts(fact)
    return ["" if i < 0 else table[i] for i in _first_of(rows, indices, sources, size).tolist()]


def _first_of(rows: Int64s, values: NDArray[Any], sources: Sequence[Int64s], size: int) -> Int64s:
    found = np.full(size, NONE, dtype=np.int64)
    for source in sources:
        at, hit = _find_rows(rows, source)
        missing = hit & (found < 0)
        found[missing] = values[at[missing]]
    return found


def _find_rows(rows: Int64s, wanted: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
    """(place in ``rows``, whether it is there) of each wanted row; ``rows`` are ascending."""
    if len(rows) == 0:
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
    return at, rows[at] == wanted


def count_elements(shapes: str) -> int:
    """Elements of all tensors of an 'Input Dims' text; -1 when it has none."""
    try:
        dims = json.loads(shapes)
    except ValueError:
        return NONE
    counts = [math.prod(d) for d in _tensors(dims)]
    return sum(counts) if counts else NONE


def _tensors(dims: object) -> list[list[int]]:
    if not isinstance(dims, list) or not dims:
        return []
    if all(isinstance(d, int) for d in dims):
        return [dims]
    return [tensor for d in dims for tensor in _tensors(d)]


def _first_type(types: str) -> str:
    try:
        listed = json.loads(types) if types else []
    except ValueError:
        return ""
    return next((t for t in listed if isinstance(t, str) and t), "") if isinstance(listed, list) else ""


def _parse_ranks(text: str) -> tuple[int, ...] | None:
    """Members as a file writes them; None for an empty or shortened list."""
    if not re.fullmatch(r"\s*\[\s*\d+(?:\s*,\s*\d+)*\s*\]\s*", text):
        return None
    return tuple(int(t) for t in re.findall(r"\d+", text))


def _name_groups(
    trace: Trace, found: _Found
) -> tuple[tuple[str, ...], tuple[tuple[int, ...] | None, ...], NDArray[np.int32]]:
    known = trace.facts.process_groups
    only = next(iter(known)) if len(known) == 1 else ""
    keys: dict[tuple[str, tuple[int, ...] | None], int] = {}
    column = np.empty(len(found.group_name), dtype=np.int32)
    for i, (name, ranks) in enumerate(zip(found.group_name, found.group_ranks, strict=True)):
        name = name or only
        column[i] = keys.setdefault((name, ranks or known.get(name)), len(keys))
    return tuple(n for n, _ in keys), tuple(r for _, r in keys), column
