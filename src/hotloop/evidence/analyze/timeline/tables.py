"""Device work, operators and modules -> tables: where the time went by name, with shapes, flops and occupancy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import UsageError
from hotloop.core.timeline import (
    KernelRow,
    LaunchStats,
    ModuleRow,
    OpRow,
)
from hotloop.core.trace import Category, Trace

from .classes import CLASS_NAMES, SOURCE_NAMES, Classes, DeviceCover
from .flops import LEAVES, count_work
from .intervals import Int64s, sum_groups
from .links import NONE, TORCH_RANGE, Links, match_names, nest_rows, sum_outermost

OP_SORTS = ("device_time", "host_self", "flops", "count")

MATRIX_KERNEL = re.compile(
    r"gemm|gemv|cutlass|cublas|conv(?!ert)|attn|wgrad|dgrad|fprop|winograd|xmma|scudnn|hcudnn|implicit_|flash|fmha|attention"
    r"|Cijk_|\bmma|matmul|nvjet|MIOpen|miopen",
    re.IGNORECASE,
)
"""Kernels that multiply matrices or convolve."""
NO_MATRIX_KERNEL = re.compile(
    r"elementwise|reduce_kernel|CatArray|nchwToNhwc|nhwcToNchw|batch_?norm|\bbn_|computeOffsets|softmax", re.IGNORECASE
)

Int32s = NDArray[np.int32]

MODULE_FRAME = re.compile(r"^nn\.Module: (.+)$")


@dataclass(frozen=True, slots=True)
class OpTable:
    """The operator rows of a trace, what was cut, and the flops of all of it."""

    rows: tuple[OpRow, ...]
    left_out_count: int
    flops: int | None
    calls: LeafCalls | None
    """The calls that ``flops`` sums up."""


@dataclass(frozen=True, slots=True)
class LeafCalls:
    """Every call that multiplies matrices."""

    rows: Int64s
    """Of the trace."""
    flops: Int64s
    """Of the call."""
    again: Int64s
    """Part of them that was computed before, if the operator itself recomputes."""
    types: tuple[str, ...]
    """Of its arguments, as the file has them."""


def tabulate_kernels(
    trace: Trace, links: Links, classes: Classes, *, top: int | None = None
) -> tuple[tuple[KernelRow, ...], int]:
    """(rows, count of names left out) of all device events by name and class, the longest in total first.

    ``top`` rows at most.
    """
    rows = links.device_rows
    if len(rows) == 0:
        return (), 0
    duration = links.end_ns - links.start_ns
    key = (trace.name[rows].astype(np.int64) * 4 + classes.kind) * 4 + classes.source
    groups, inverse = np.unique(key, return_inverse=True)
    count = np.bincount(inverse, minlength=len(groups))
    total = sum_groups(inverse, duration, len(groups))
    order = np.lexsort((_rank_names(trace, groups // 16), -total))
    kept = order[:top]
    occupancy = _weigh_numbers(trace, "occupancy_ratio", rows, inverse, duration, len(groups))
    blocks = _weigh_numbers(trace, "blocks_per_sm", rows, inverse, duration, len(groups))
    table = []
    for g in kept.tolist():
        code = int(groups[g])
        name, kind = trace.names[code // 16], CLASS_NAMES[code // 4 % 4]
        table.append(
            KernelRow(
                name=name,
                kind=kind,
                comm_source=SOURCE_NAMES[code % 4],
                count=int(count[g]),
                total_ns=int(total[g]),
                mean_ns=int((2 * total[g] + count[g]) // (2 * count[g])),
                occupancy_ratio=occupancy[g],
                blocks_per_sm=blocks[g],
            )
        )
    return tuple(table), len(order) - len(kept)


def tabulate_ops(trace: Trace, links: Links, *, top: int | None = None, sort: str = "device_time") -> OpTable:
    """The operators by name and shapes. ``sort`` is one of OP_SORTS."""
    if sort not in OP_SORTS:
        raise UsageError(f"--sort {sort}: unknown; operators can be sorted by {', '.join(OP_SORTS)}")
    ranges = links.ranges
    name = trace.name[ranges.rows]
    is_op = trace.category[ranges.rows] == Category.CPU_OP
    is_op &= ~match_names(trace, name, TORCH_RANGE)
    at = np.flatnonzero(is_op).astype(np.int32)
    if len(at) == 0:
        return OpTable((), 0, None, None)
    rows_at = ranges.rows[at]
    groups, inverse, texts = _group_operators(trace, rows_at)
    shape_table, dtype_table, _ = texts
    size = len(groups)
    # Within a row: an operator that calls itself with other shapes counts in the rows of both.
    of_row = np.full(len(name), NONE, dtype=np.int64)
    of_row[at] = inverse
    launched_ns = _sum_launched(links, is_op)
    totals = sum_outermost(ranges, of_row, launched_ns)
    count, host, total = totals.count, totals.host_ns, totals.device_ns
    own = sum_groups(inverse, ranges.find_self_time()[at], size)
    dev_self = sum_groups(inverse, launched_ns[at], size)
    flops, calls = _count_flops(trace, rows_at, inverse, groups, count, texts)
    keys = {
        # What an operator launched itself: otherwise, each of nested operators would be listed with the same kernels
        # again.
        "device_time": dev_self,
        "host_self": own,
        "flops": np.array([f or 0 for f in flops], dtype=np.float64),
        "count": count,
    }
    order = np.lexsort((_rank_names(trace, groups[:, 0]), -host, -keys[sort]))
    kept = order[:top]
    table = []
    for g in kept.tolist():
        name_id, shape_id, dtype_id, _ = groups[g].tolist()
        table.append(
            OpRow(
                name=trace.names[name_id],
                shapes=shape_table[shape_id] if shape_id >= 0 else None,
                dtypes=dtype_table[dtype_id] if dtype_id >= 0 else None,
                count=int(count[g]),
                host_total_ns=int(host[g]),
                host_self_ns=int(own[g]),
                device_total_ns=int(total[g]),
                device_self_ns=int(dev_self[g]),
                flops=flops[g],
            )
        )
    return OpTable(tuple(table), size - len(kept), None if calls is None else int(calls.flops.sum()), calls)


def _group_operators(trace: Trace, rows: Int64s) -> tuple[Int64s, Int32s, tuple[Sequence[str], ...]]:
    """(name, shapes, dtypes, concrete inputs as ids of each group; group of each row; the three tables of texts)."""
    name = trace.name[rows]
    shape, shape_table = _read_texts(trace, "shapes", rows)
    dtype, dtype_table = _read_texts(trace, "dtypes", rows)
    value, value_table = _read_texts(trace, "concrete_inputs", rows)
    counted = np.array([_may_count(trace.names[i]) for i in range(int(name.max()) + 1)])
    # Other inputs matter only if the flops depend on them: a learning rate must not split a row.
    value[~counted[name]] = NONE
    groups, inverse = _group((name, shape, dtype, value))
    return groups, inverse, (shape_table, dtype_table, value_table)


def _sum_launched(links: Links, is_op: NDArray[np.bool_]) -> Int64s:
    """Device time that every operator launched itself, ns by place."""
    launched = np.flatnonzero(links.op_place >= 0)
    place = links.ranges.find_nearest(is_op)[links.op_place[launched]]
    return sum_groups(place, links.end_ns[launched] - links.start_ns[launched], len(links.ranges))


def tabulate_modules(trace: Trace, links: Links, *, top: int | None = None) -> tuple[ModuleRow, ...]:
    """Time of nn.Modules by name, from their Python frames."""
    rows = np.flatnonzero(trace.category == Category.PYTHON)
    nesting = nest_rows(trace, rows[match_names(trace, trace.name[rows], MODULE_FRAME)])
    linked = np.flatnonzero(links.launch_row >= 0)
    calls = links.launch_row[linked]
    place = nesting.find_innermost(trace.thread[calls], trace.start_ns[calls])
    launched_ns = sum_groups(place, links.end_ns[linked] - links.start_ns[linked], len(nesting))
    totals = sum_outermost(nesting, trace.name[nesting.rows], launched_ns)
    modules = [
        ModuleRow(
            name=trace.names[name].removeprefix("nn.Module: "),
            count=int(totals.count[i]),
            host_total_ns=int(totals.host_ns[i]),
            device_total_ns=int(totals.device_ns[i]),
        )
        for i, name in enumerate(totals.key.tolist())
    ]
    return tuple(sorted(modules, key=lambda r: (-r.device_total_ns, -r.host_total_ns, r.name))[:top])


def _count_flops(
    trace: Trace,
    rows: Int64s,
    inverse: Int32s,
    groups: Int64s,
    count: Int64s,
    texts: tuple[Sequence[str], ...],
) -> tuple[list[int | None], LeafCalls | None]:
    """FLOPs of every group, and the calls whose FLOPs add up to the trace's."""
    size = len(groups)
    known_rows, known = trace.integers("flops")
    group_of_row = np.full(len(trace.start_ns), NONE, dtype=np.int32)
    group_of_row[rows] = inverse
    known_group = group_of_row[known_rows]
    from_file = sum_groups(known_group, known, size)
    file_count = np.bincount(known_group[known_group >= 0], minlength=size)
    flops: list[int | None] = [None] * size
    is_leaf, again, whole = np.zeros(size, dtype=bool), np.zeros(size, dtype=np.int64), True
    shape_table, dtype_table, value_table = texts
    for g, (name_id, shape_id, _, value_id) in enumerate(groups.tolist()):
        name = trace.names[name_id]
        work = None
        if _may_count(name):
            shapes = shape_table[shape_id] if shape_id >= 0 else None
            work = count_work(name, shapes, value_table[value_id] if value_id >= 0 else None)
        if file_count[g]:
            flops[g] = int(from_file[g])
        elif work is not None:
            flops[g] = work.flops * int(count[g])
        if name in LEAVES:
            # One unknown convolution makes the sum a wrong number, not a smaller one.
            whole &= flops[g] is not None
            is_leaf[g] = True
            again[g] = 0 if work is None else work.again
    if not whole or not is_leaf.any():
        return flops, None
    each = np.array([(f or 0) // int(n) for f, n in zip(flops, count, strict=True)], dtype=np.int64)
    chosen = is_leaf[inverse]
    group = inverse[chosen]
    types = tuple(dtype_table[i] if i >= 0 else "" for i in groups[group, 2].tolist())
    return flops, LeafCalls(rows[chosen], each[group], again[group], types)


def _may_count(name: str) -> bool:
    return name in LEAVES or name in ("aten::linear", "aten::convolution", *(f"aten::conv{n}d" for n in (1, 2, 3)))


def _group(columns: tuple[Int32s, ...]) -> tuple[Int64s, Int32s]:
    """(distinct tuples, tuple of each entry) of several columns of small integers, -1 allowed."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    width = 1
    for column in columns:
        more = int(column.max()) + 2
        if width * more >= 2**62:
            distinct, key = np.unique(key, return_inverse=True)
            width = len(distinct)
        key *= more
        key += column
        key += 1
        width *= more
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return np.stack([column[first].astype(np.int64) for column in columns], axis=1), inverse.astype(np.int32)


def _rank_names(trace: Trace, name: Int64s) -> Int64s:
    """The position of each name in the alphabet, so that equal rows are in the same order whatever read the file."""
    distinct, inverse = np.unique(name, return_inverse=True)
    order = sorted(range(len(distinct)), key=lambda i: trace.names[int(distinct[i])])
    rank = np.empty(len(distinct), dtype=np.int64)
    rank[order] = np.arange(len(distinct))
    result: Int64s = rank[inverse]
    return result


def _read_texts(trace: Trace, fact: str, rows: Int64s) -> tuple[Int32s, Sequence[str]]:
    """Index into the table for each row; NONE if there is none."""
    with_fact, indices, table = trace.texts(fact)
    of_row = np.full(len(trace.start_ns), NONE, dtype=np.int32)
    of_row[with_fact] = indices
    return of_row[rows], table


def _weigh_numbers(
    trace: Trace, fact: str, rows: Int64s, group: Int64s, duration: Int64s, size: int
) -> list[float | None]:
    """Mean of a fact in each group, weighted by duration (evenly if all durations are 0)."""
    with_fact, values = trace.numbers(fact)
    at = np.searchsorted(rows, with_fact)
    hit = (at < len(rows)) & (rows[np.minimum(at, len(rows) - 1)] == with_fact) & np.isfinite(values)
    at, values = at[hit], values[hit]
    weight = np.maximum(duration[at], 1).astype(np.float64)
    total = np.bincount(group[at], weights=weight, minlength=size)
    weighted = np.bincount(group[at], weights=weight * values, minlength=size)
    return [float(weighted[g] / total[g]) if total[g] else None for g in range(size)]


SHORT_KERNEL_NS = 10_000
"""The host's approximate cost to launch a kernel: below it, single launches cannot keep a device busy."""


def measure_launches(trace: Trace, links: Links, cover: DeviceCover) -> LaunchStats:
    """How many kernels one device ran, and how short they are."""
    kernel = cover.work[trace.category[links.device_rows[cover.work]] == Category.KERNEL]
    is_short = links.end_ns[kernel] - links.start_ns[kernel] < SHORT_KERNEL_NS
    return LaunchStats(
        kernels_count=len(kernel),
        short_kernels_ratio=int(np.count_nonzero(is_short)) / len(kernel) if len(kernel) else None,
    )
