"""Trace -> RankCollectives: the collectives of one rank, with group, kind, size and times, as compact columns.

What the file says about a collective counts first (its kernel's own facts, then those of record_param_comms around the
launch), then the range that launched it, then the kernel's name. Collectives of gloo, MPI and UCC are ranges on the
library's threads; they have no device work.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
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
    """The collectives of one rank, from device events if there are any and from ranges of gloo, MPI and UCC."""
    table = np.concatenate([_from_device(trace, links, classes), _from_host(trace, links)], axis=1)
    left_out_count = max(0, table.shape[1] - limit)
    start, end, launch, *sources = table[:, np.argsort(table[0], kind="stable")[:limit]]
    groups = _name_groups(trace, sources)
    step = np.full(len(start), NONE, dtype=np.int32)
    if steps.source == "ProfilerStep":
        at = steps.find_step(launch)
        step[at >= 0] = np.array(steps.index, dtype=np.int64)[at[at >= 0]]
    return RankCollectives(
        rank=trace.facts.rank,
        host=trace.facts.host,
        base_ns=trace.facts.epoch_ns + (trace.facts.unix_base_ns or 0),
        time_unit_ns=trace.facts.time_unit_ns,
        groups=tuple(name for name, _ in groups.members),
        group_ranks=tuple(ranks for _, ranks in groups.members),
        start_ns=start,
        end_ns=end,
        op=_name_kinds(trace, sources),
        group=groups.of_collective,
        step=step,
        sequence=_first_integer(trace, "collective_sequence", sources),
        in_elements=_count_sent(trace, sources),
        out_elements=_first_integer(trace, "out_elements", sources),
        group_size=_first_integer(trace, "group_size", sources).astype(np.int32),
        left_out_count=left_out_count,
    )


def _from_device(trace: Trace, links: Links, classes: Classes) -> Int64s:
    """One collective for each range that launched communication; a kernel without such a range counts separately.

    Six rows, a column for each collective: its start, end and launch in ns, and three rows of the trace that may
    describe it, the nearest first: its own, that of record_param_comms, and the range of its library; NONE if there is
    none.
    """
    ranges = links.ranges
    work = np.flatnonzero(classes.kind == COMM)
    place = links.op_place[work]
    name = trace.name[ranges.rows]
    # A position of -1 takes the entry after the last range.
    inner = np.append(ranges.find_nearest(match_names(trace, name, COLLECTIVE_RANGE)), NONE)[place]
    outer = np.append(ranges.find_nearest(match_names(trace, name, _PARAM_COMMS)), NONE)[place]
    owner = np.where(outer >= 0, outer, inner).astype(np.int64)
    key = np.where(owner >= 0, owner, -1 - np.arange(len(work), dtype=np.int64))
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    start = np.full(len(first), np.iinfo(np.int64).max, dtype=np.int64)
    end = np.full(len(first), np.iinfo(np.int64).min, dtype=np.int64)
    np.minimum.at(start, group, links.start_ns[work])
    np.maximum.at(end, group, links.end_ns[work])
    launch = links.launch_row[work[first]]
    launch_ns = np.where(launch >= 0, trace.start_ns[np.maximum(launch, 0)], start)
    rows = np.append(ranges.rows, NONE)
    return np.stack([start, end, launch_ns, links.device_rows[work[first]], rows[outer[first]], rows[inner[first]]])


def _from_host(trace: Trace, links: Links) -> Int64s:
    """The same of collectives that run on the host: the outermost range of its library on each thread."""
    ranges = links.ranges
    is_library = match_names(trace, trace.name[ranges.rows], _HOST_COLLECTIVE)
    at = np.flatnonzero(is_library & ~np.append(is_library, False)[ranges.parent])
    start, rows = ranges.start_ns[at], ranges.rows[at]
    return np.stack([start, ranges.end_ns[at], start, rows, rows, rows])


def _name_kinds(trace: Trace, sources: Sequence[Int64s]) -> NDArray[np.int8]:
    """Index into OPS of each collective: by its facts, by its range, by its kernel."""
    named = _first_text(trace, "collective", sources)
    by_range, by_kernel = (
        [trace.names[trace.name[row]] if row >= 0 else "" for row in source.tolist()]
        for source in (sources[-1], sources[0])
    )
    kinds = []
    for texts in zip(named, by_range, by_kernel, strict=True):
        kinds.append(next((OP[kind] for kind in map(name_op, texts) if kind != "unknown"), OP["unknown"]))
    return np.array(kinds, dtype=np.int8)


def _count_sent(trace: Trace, sources: Sequence[Int64s]) -> Int64s:
    """Elements that each collective takes in, else those of its operator's arguments; NONE where unknown."""
    sent = _first_integer(trace, "in_elements", sources)
    shapes = _first_text(trace, "shapes", sources[::-1])
    for i in np.flatnonzero(sent < 0).tolist():
        sent[i] = count_elements(shapes[i]) if shapes[i] else NONE
    return sent


def _first_integer(trace: Trace, fact: str, sources: Sequence[Int64s]) -> Int64s:
    return _first_of(*trace.integers(fact), sources)


def _first_text(trace: Trace, fact: str, sources: Sequence[Int64s]) -> list[str]:
    rows, indices, table = trace.texts(fact)
    return ["" if i < 0 else table[i] for i in _first_of(rows, indices, sources).tolist()]


def _first_of(rows: Int64s, values: NDArray[Any], sources: Sequence[Int64s]) -> Int64s:
    """The fact nearest to each collective; NONE if there is none. ``rows`` have it, ascending."""
    nearest = np.full(len(sources[0]), NONE, dtype=np.int64)
    for source in sources if len(rows) else ():
        at = np.minimum(np.searchsorted(rows, source), len(rows) - 1)
        missing = (rows[at] == source) & (nearest < 0)
        nearest[missing] = values[at[missing]]
    return nearest


def count_elements(shapes: str) -> int:
    """Elements of all tensors of an 'Input Dims' text; -1 if it has none."""
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


def _parse_ranks(text: str) -> tuple[int, ...] | None:
    """Members as a file writes them; None for an empty or shortened list."""
    if not re.fullmatch(r"\s*\[\s*\d+(?:\s*,\s*\d+)*\s*\]\s*", text):
        return None
    return tuple(int(t) for t in re.findall(r"\d+", text))


@dataclass(frozen=True, slots=True)
class _Groups:
    """The process groups: name and members of each, and the group of each collective."""

    members: tuple[tuple[str, tuple[int, ...] | None], ...]
    of_collective: NDArray[np.int32]


def _name_groups(trace: Trace, sources: Sequence[Int64s]) -> _Groups:
    listed = trace.facts.process_groups
    only = next(iter(listed)) if len(listed) == 1 else ""
    numbers: dict[tuple[str, tuple[int, ...] | None], int] = {}
    column = []
    texts = (_first_text(trace, fact, sources) for fact in ("process_group", "process_group_ranks"))
    for name, ranks in zip(*texts, strict=True):
        key = (name or only, _parse_ranks(ranks) or listed.get(name or only))
        column.append(numbers.setdefault(key, len(numbers)))
    return _Groups(tuple(numbers), np.array(column, dtype=np.int32))
