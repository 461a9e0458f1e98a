"""StepGraph of a float32 training -> the weights of its edges under autocast to bfloat16, conversions included.

A trace in float32 cannot tell how fast a machine multiplies in bfloat16: that factor is the user's, measured. What the
trace does tell is which operators are products of float32 and how large, and how fast this host or device moves memory.

    products       take 1/factor
    attention      takes 1/attention factor; a factor below 1 is not rare on CPUs, whose backward of it was seen 2.4
                   to 4.2 times slower in bfloat16 than in float32
    conversions    each product's weight and its input are converted before it and their gradients after its backward:
                   read 4 bytes, write 2, and the way back; one call each
    pointwise      what lies between products and keeps its type (activations, dropout) moves half the bytes
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from hotloop.core.trace import Category, Trace

from .intervals import Int64s
from .links import Links
from .names import match_names
from .nesting import Nesting
from .step_graph import ROLE, StepGraph
from .steps import BACKWARD_NAME

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

PRODUCT = re.compile(
    r"^aten::(?:mm|addmm|bmm|baddbmm|mv|addmv|mkldnn_convolution|convolution_backward|mkldnn_linear|cudnn_convolution"
    r"|cudnn_convolution_backward|miopen_convolution|miopen_convolution_backward|thnn_conv2d|slow_conv\w*|_slow_conv\w*"
    r"|_conv_depthwise2d|conv_depthwise3d)$"
)
"""The innermost operators that multiply."""
ATTENTION = re.compile(r"^aten::_(?:scaled_dot_product_\w*attention\w*|flash_attention\w*|efficient_attention\w*)$")
POINTWISE = re.compile(
    r"^aten::(?:relu_?|clamp_min_?|threshold_backward|gelu|gelu_backward|silu|silu_backward|tanh|tanh_backward|sigmoid"
    r"|sigmoid_backward|native_dropout|native_dropout_backward|max_pool2d_with_indices(?:_backward)?)$"
)
MOVING = re.compile(r"^aten::(?:copy_|add_?|mul_?|sub_?|div_?|relu_?|clamp_min_?|threshold_backward|gelu|clone)$")
"""Operators whose time is that of memory, once they are large."""

CONVERTED_BYTES = 6
"""Of an element that is read in float32 and written in bfloat16, or back."""
LARGE_BYTES = 1 << 16
"""Below, a call's time is that of the call."""
SMALL_BYTES = 1 << 12
CALLS_OF_CONVERSION = 4
"""Operators inside of one conversion: to, _to_copy, empty_strided, copy_."""
HOST_BYTES_PER_NS = 5.0
DEVICE_BYTES_PER_NS = 500.0
"""Assumed where the trace holds nothing large enough to measure."""
CALL_NS = 3_000.0
MAX_DIMS_COUNT = 16


@dataclass(frozen=True, slots=True)
class AutocastCase:
    """One assumption about what the trace does not tell."""

    inputs_ratio: float
    """Share of the products whose input is in float32 and has to be converted; others follow another product."""
    speed_ratio: float
    """Speed of the conversions, of the memory speed in the trace."""
    attention: float
    """Factor of attention where the user gives none."""
    attention_error: float
    """On a host, what a factor that was measured apart from the training is multiplied by: attention there depends on
    the caches and threads that the rest of the step leaves it."""
    keeps_half: bool
    """Pointwise work between products gets faster too."""


BEST = AutocastCase(0.0, 1.0, 1.0, 2.0, True)
MIDDLE = AutocastCase(0.5, 1.0, 1.0, 1.0, True)
WORST = AutocastCase(1.0, 0.5, 0.25, 0.5, False)


@dataclass(frozen=True, slots=True)
class Autocast:
    """The operators of a window that autocast touches, by row of the trace."""

    product_rows: Int64s
    attention_rows: Int64s
    pointwise_rows: Int64s
    forward: Bools
    """Of ``product_rows``."""
    weight_bytes: Floats
    """What converting its weight moves in one direction, by ``product_rows``."""
    input_bytes: Floats
    bytes_per_ns: float
    call_ns: float
    is_measured: bool
    """Whether the memory's speed was seen in the trace."""
    attention_ns: int
    """Time of attention over the window, on the device where there is one."""


def find_autocast(trace: Trace, links: Links, graph: StepGraph) -> Autocast | None:
    """None where no product of float32 with its shapes is in the window."""
    ranges = links.ranges
    if len(ranges) == 0:
        return None
    elements = _read_operands(trace, ranges)
    inside = (ranges.start_ns >= graph.low_ns) & (ranges.start_ns < graph.high_ns)
    name = trace.name[ranges.rows]
    is_op = (trace.category[ranges.rows] == Category.CPU_OP) & inside
    wanted = {
        what: np.flatnonzero(is_op & match_names(trace, name, pattern))
        for what, pattern in (("product", PRODUCT), ("attention", ATTENTION), ("pointwise", POINTWISE))
    }
    single = {
        what: np.array([p for p in places.tolist() if p in elements], dtype=np.int64) for what, places in wanted.items()
    }
    product = single["product"]
    if len(product) == 0:
        return None
    backward = ranges.find_nearest(match_names(trace, name, BACKWARD_NAME)) >= 0
    first = np.array([elements[p][0] for p in product.tolist()], dtype=np.float64)
    last = np.array([elements[p][-1] if len(elements[p]) > 1 else 0 for p in product.tolist()], dtype=np.float64)
    speed, call_ns, measured = _measure_memory(trace, links, ranges, elements)
    attention = ranges.rows[single["attention"]]
    return Autocast(
        product_rows=ranges.rows[product],
        attention_rows=attention,
        pointwise_rows=ranges.rows[single["pointwise"]],
        forward=~backward[product],
        weight_bytes=last * CONVERTED_BYTES,
        input_bytes=first * CONVERTED_BYTES,
        bytes_per_ns=speed,
        call_ns=call_ns,
        is_measured=measured,
        attention_ns=int(_edges_of(trace, links, graph, attention).weight(graph).sum()),
    )


def lower_precision(
    trace: Trace,
    links: Links,
    graph: StepGraph,
    weight: Floats,
    found: Autocast,
    case: AutocastCase,
    factor: float,
    attention: float | None,
) -> None:
    """Change ``weight`` in place."""
    products = _edges_of(trace, links, graph, found.product_rows)
    weight[products.edges] /= factor
    if len(found.attention_rows):
        shortening = case.attention
        if attention is not None:
            shortening = attention if len(graph.work) else attention * case.attention_error
        weight[_edges_of(trace, links, graph, found.attention_rows).edges] /= shortening
    if case.keeps_half and len(found.pointwise_rows):
        weight[_edges_of(trace, links, graph, found.pointwise_rows).edges] /= 2
    # What the forward converts, the backward converts back as gradients: both are charged to the forward's product.
    trains = bool((~found.forward).any())
    ways = 2.0 if trains else 1.0
    moved = np.where(found.forward, found.weight_bytes + case.inputs_ratio * found.input_bytes, 0.0) * ways
    calls = np.where(found.forward, 1.0 + case.inputs_ratio, 0.0) * ways
    moving_ns = moved / (found.bytes_per_ns * case.speed_ratio)
    calling_ns = calls * found.call_ns * CALLS_OF_CONVERSION
    _add(weight, products.edges, products.rows, found.product_rows, moving_ns)
    host = np.flatnonzero(np.isin(graph.role, [ROLE["host"], ROLE["input"]]) & np.isin(graph.row, found.product_rows))
    _add(weight, host, graph.row[host], found.product_rows, calling_ns)


def _add(weight: Floats, edges: Int64s, edge_rows: Int64s, rows: Int64s, extra_ns: Floats) -> None:
    """Add to the first edge of each row what that row takes longer."""
    held, first = np.unique(edge_rows, return_index=True)
    at = np.searchsorted(held, rows)
    known = (at < len(held)) & (held[np.minimum(at, max(0, len(held) - 1))] == rows) if len(held) else at < 0
    np.add.at(weight, edges[first[at[known]]], extra_ns[known])


@dataclass(frozen=True, slots=True)
class _Edges:
    edges: Int64s
    rows: Int64s
    """Of the operator that each edge works for."""

    def weight(self, graph: StepGraph) -> Int64s:
        return graph.weight_ns[self.edges]


def _edges_of(trace: Trace, links: Links, graph: StepGraph, op_rows: Int64s) -> _Edges:
    """Device work that the operators launched, or their own time on the host where they launched none."""
    empty = np.empty(0, dtype=np.int64)
    ranges = links.ranges
    if len(op_rows) == 0:
        return _Edges(empty, empty)
    marked = np.isin(ranges.rows, op_rows)
    nearest = ranges.find_nearest(marked)
    place = links.op_place[graph.work] if len(graph.work) else empty
    mine = np.flatnonzero((place >= 0) & (nearest[np.maximum(place, 0)] >= 0)) if len(place) else empty
    launched = np.unique(ranges.rows[nearest[place[mine]]]) if len(mine) else empty
    owner = dict(
        zip(links.device_rows[graph.work[mine]].tolist(), ranges.rows[nearest[place[mine]]].tolist(), strict=True)
    )
    on_device = np.flatnonzero((graph.role == ROLE["work"]) & np.isin(graph.row, np.array(list(owner), dtype=np.int64)))
    of_device = np.array([owner[row] for row in graph.row[on_device].tolist()], dtype=np.int64)
    held = np.flatnonzero(nearest >= 0)
    owners = ranges.rows[nearest[held]]
    quiet = ~np.isin(owners, launched)
    by_row = dict(zip(ranges.rows[held[quiet]].tolist(), owners[quiet].tolist(), strict=True))
    on_host = np.flatnonzero(
        np.isin(graph.role, [ROLE["host"], ROLE["input"]]) & np.isin(graph.row, np.array(list(by_row), dtype=np.int64))
    )
    of_host = np.array([by_row[row] for row in graph.row[on_host].tolist()], dtype=np.int64)
    return _Edges(np.concatenate([on_device, on_host]), np.concatenate([of_device, of_host]))


def _read_operands(trace: Trace, ranges: Nesting) -> dict[int, list[int]]:
    """Elements of the float32 operands of two and more dimensions, by place in ``ranges``; others are left out.

    Where the file names no types, every operand counts as float32.
    """
    shape_rows, shape_at, shape_table = trace.texts("shapes")
    type_rows, type_at, type_table = trace.texts("dtypes")
    type_of = dict(zip(type_rows.tolist(), type_at.tolist(), strict=True))
    place_of = dict(zip(ranges.rows.tolist(), range(len(ranges)), strict=True))
    known: dict[tuple[int, int], list[int]] = {}
    found: dict[int, list[int]] = {}
    for row, at in zip(shape_rows.tolist(), shape_at.tolist(), strict=True):
        place = place_of.get(row)
        if place is None:
            continue
        key = (at, type_of.get(row, -1))
        if key not in known:
            known[key] = _count_elements(shape_table[at], type_table[key[1]] if key[1] >= 0 else None)
        if known[key]:
            found[place] = known[key]
    return found


def _count_elements(shapes: str, types: str | None) -> list[int]:
    try:
        dims = json.loads(shapes)
        kinds = json.loads(types) if types is not None else None
    except (ValueError, RecursionError):
        return []
    if not isinstance(dims, list) or (kinds is not None and not isinstance(kinds, list)):
        return []
    counts = []
    for at, one in enumerate(dims):
        if not isinstance(one, list) or not all(isinstance(n, int) and 0 <= n < 1 << 40 for n in one):
            if isinstance(one, list) and one and not isinstance(one[0], list):
                return []  # a size that is none: nothing of this call is known
            continue
        kind = "float" if kinds is None else kinds[at] if at < len(kinds) else ""
        if 1 < len(one) <= MAX_DIMS_COUNT and kind == "float":
            counts.append(min(prod(one), 1 << 50))
    return counts


def _measure_memory(
    trace: Trace, links: Links, ranges: Nesting, elements: dict[int, list[int]]
) -> tuple[float, float, bool]:
    """(bytes per ns of large pointwise operators, time of a small one's call in ns, whether the first was seen)."""
    places = np.array(sorted(elements), dtype=np.int64)
    places = places[match_names(trace, trace.name[ranges.rows[places]], MOVING)]
    launches = len(links.op_place) > 0 and bool((links.op_place >= 0).any())
    own = ranges.find_self_time()
    took = own[places].astype(np.float64)
    if launches:
        on_device = np.zeros(len(ranges), dtype=np.int64)
        known = np.flatnonzero(links.op_place >= 0)
        np.add.at(on_device, links.op_place[known], (links.end_ns - links.start_ns)[known])
        took = on_device[places].astype(np.float64)
    # Every operand is read, and as much as the largest is written.
    moved = np.array([4.0 * (sum(elements[p]) + max(elements[p])) for p in places.tolist()], dtype=np.float64)
    large = (moved >= LARGE_BYTES) & (took > 0)
    small = (moved <= SMALL_BYTES) & (own[places] > 0)
    speed = float(np.median(moved[large] / took[large])) if large.any() else 0.0
    call_ns = float(np.median(own[places][small])) if small.any() else CALL_NS
    if speed > 0:
        return speed, call_ns, True
    return (DEVICE_BYTES_PER_NS if launches else HOST_BYTES_PER_NS), call_ns, False
