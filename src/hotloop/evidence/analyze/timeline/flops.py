"""An operator's name and shapes -> the work of one call; a device's name -> its published peaks.

Counted: multiplications and additions of matrix products, convolutions, recurrent layers and attention (2 each), as in
torch.utils.flop_counter. Pointwise work is not counted. Operators that only forward to another counted operator
(aten::linear, aten::conv2d, aten::matmul) get figures of their own row but add nothing to the trace's total.

Peaks are dense figures without sparsity, from the makers' data sheets: NVIDIA V100 (2020), A100 (2021),
H100 SXM (2023), H200 (2024), B200 (2024), L40S and L4 (2023), A10 (2021), T4 (2019); AMD MI210 and MI250X (2022),
MI300X (2023).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import prod
from typing import Any

from hotloop.core.operators import PRODUCTS

LEAVES = PRODUCTS - {"aten::convolution"}
"""Those of a trace, which shows convolution and the operators that it calls."""


@dataclass(frozen=True, slots=True)
class Work:
    """One call."""

    flops: int
    again: int = 0
    """Part of ``flops`` that was computed before: the scores in the backward of fused attention."""


def count_work(name: str, shapes: str | None, concrete: str | None = None) -> Work | None:
    """The work of one call from 'Input Dims' and 'Concrete Inputs' as JSON; None if unknown.

    >>> count_work("aten::mm", "[[128,64],[64,32]]")
    Work(flops=524288, again=0)
    """
    if shapes is None:
        return None
    try:
        return count_call(name, json.loads(shapes), json.loads(concrete) if concrete is not None else [])
    except (ValueError, RecursionError):
        return None


def count_call(name: str, dims: Any, values: Any) -> Work | None:
    """The same from lists with one entry per argument: its shape, and its value if it is not a tensor."""
    try:
        flops = _count(name.removeprefix("aten::"), dims, values)
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None  # shapes of another release or another operator of this name: no figure is better than a guess
    if flops is None:
        return None
    again = flops // 5 if name.startswith("aten::_scaled_dot_product_") and name.endswith("backward") else 0
    return Work(flops, again)


def _count(name: str, dims: Any, values: Any) -> int | None:
    """FLOPs of one call."""
    if name in ("mm", "_scaled_mm", "addmm"):
        (m, k), (_, n) = dims[1:3] if name == "addmm" else dims[:2]
        return int(2 * m * k * n)
    if name in ("bmm", "baddbmm"):
        (b, m, k), (_, _, n) = dims[1:3] if name == "baddbmm" else dims[:2]
        return int(2 * b * m * k * n)
    if name == "linear":
        return int(2 * prod(dims[0]) * dims[1][0])
    if name == "_grouped_mm":
        (m, k), (_, _, n) = dims[0], dims[1]  # every row meets the matrix of its own expert; other forms are unknown
        return int(2 * m * k * n)
    if name in ("_cudnn_rnn", "mkldnn_rnn_layer", "_cudnn_rnn_backward", "mkldnn_rnn_layer_backward"):
        # Every time step of every sequence meets every matrix; backward makes the gradients of both factors.
        matrices = [shape for shape in (dims[1] if "cudnn" in name else dims[1:3]) if len(shape) == 2]
        flops = 2 * prod(dims[0][:-1]) * sum(map(prod, matrices))
        return int((2 if name.endswith("backward") else 1) * flops)
    if name in ("conv1d", "conv2d", "conv3d"):
        return _count_convolution(dims, values, transposed=False)
    if name in ("convolution", "_convolution"):
        transposed = _flag(values, 6)
        return None if transposed is None else _count_convolution(dims, values, transposed=transposed)
    if name == "convolution_backward":
        return _count_convolution_backward(dims, values)
    if name.startswith("_scaled_dot_product_"):
        # Backward has five products of the forward's two sizes: dV, dP, dQ, dK and the scores once more.
        is_backward = name.endswith("backward")
        return _count_attention(*dims[1:4]) * 5 // 2 if is_backward else _count_attention(*dims[:3])
    return None


def _count_attention(query: Any, key: Any, value: Any) -> int:
    """Q (b, h, s_q, d) x K (b, h, s_k, d) and scores x V (b, h, s_k, d_v): 2 b h s_q s_k (d + d_v). A causal mask is
    not subtracted: not all releases record it."""
    b, h, s_q, d = query
    return int(2 * b * h * s_q * key[2] * (d + value[3]))


def _count_convolution(dims: Any, values: Any, *, transposed: bool) -> int | None:
    """2 x batch x positions x weights: every weight meets every output position (input position if transposed)."""
    batch, _, *space = dims[0]
    weight = dims[1]
    kernel = weight[2:]
    if len(kernel) != len(space) or not kernel:
        return None
    if transposed:
        return int(2 * batch * prod(space) * prod(weight))
    stride, padding, dilation = (_numbers(values, at, len(kernel)) for at in (3, 4, 5))
    if stride is None or padding is None or dilation is None:
        return None
    out = [
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, p, d, k, t in zip(space, padding, dilation, kernel, stride, strict=True)
    ]
    return int(2 * batch * prod(out) * prod(weight))


def _count_convolution_backward(dims: Any, values: Any) -> int | None:
    """Inputs: grad_output, input, weight, ... : one forward's worth for the input's gradient, one for the weight's."""
    grad, source, weight = dims[0], dims[1], dims[2]
    transposed = _flag(values, 7)
    mask = _parse(values[10]) if len(values) > 10 else None
    if len(grad) != len(source) or len(weight) != len(source) or transposed is None:
        return None
    if not isinstance(mask, list) or len(mask) < 2:
        return None
    positions = prod(source[2:]) if transposed else prod(grad[2:])
    return sum(map(bool, mask[:2])) * int(2 * grad[0] * positions * prod(weight))


def _numbers(values: Any, at: int, count: int) -> list[int] | None:
    found = _parse(values[at]) if len(values) > at else None
    if not isinstance(found, list) or not all(type(v) is int for v in found):
        return None
    if len(found) == 1:
        return found * count
    return found if len(found) == count else None


def _flag(values: Any, at: int) -> bool | None:
    found = _parse(values[at]) if len(values) > at else None
    return bool(found) if isinstance(found, (bool, int)) else None


def _parse(text: Any) -> Any:
    """A concrete input is a Python literal in a string: '[1, 1]', 'False', '2'."""
    if not isinstance(text, str):
        return text
    return json.loads(text.replace("False", "false").replace("True", "true")) if text.strip() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most that an element type can reach."""

    kind: str
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of one device. A type is missing if the device has no matrix unit for it."""

    flops_per_s: dict[str, float]
    """By element type: 'float64', 'float32' (without TF32), 'tf32', 'float16', 'bfloat16'."""

    def of(self, types: str) -> Peak | None:
        """The peak of products whose arguments have these types, as a trace or a recording names them."""
        kind = name_type(types)
        # Whether TF32 was allowed is not recorded: the higher roof is the honest one.
        if kind == "float32" and "tf32" in self.flops_per_s:
            kind = "tf32"
        return Peak(kind=kind, flops_per_s=self.flops_per_s[kind]) if kind in self.flops_per_s else None


def name_type(types: str) -> str | None:
    """The element type that a product computes in; None if it is unknown.

    >>> name_type('["float", "float"]'), name_type("c10::Half"), name_type("long int")
    ('float32', 'float16', None)
    """
    kinds = (("BFloat16", "bfloat16"), ("Half", "float16"), ("float", "float32"), ("double", "float64"))
    return next((kind for word, kind in kinds if word in types), None)


_TABLE: tuple[tuple[str, dict[str, float]], ...] = (
    (r"\bB200\b", {"float64": 37e12, "float32": 80e12, "tf32": 1.125e15, "float16": 2.25e15, "bfloat16": 2.25e15}),
    (r"\bH200\b", {"float64": 67e12, "float32": 67e12, "tf32": 494.5e12, "float16": 989e12, "bfloat16": 989e12}),
    (r"\bH100\b.*PCIe", {"float64": 51e12, "float32": 51e12, "tf32": 378e12, "float16": 756e12, "bfloat16": 756e12}),
    (r"\bH100\b", {"float64": 67e12, "float32": 67e12, "tf32": 494.5e12, "float16": 989e12, "bfloat16": 989e12}),
    (r"\bA100\b", {"float64": 19.5e12, "float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12}),
    (r"\bV100\b", {"float64": 7.8e12, "float32": 15.7e12, "float16": 125e12}),
    (r"\bL40S\b", {"float32": 91.6e12, "tf32": 183e12, "float16": 362e12, "bfloat16": 362e12}),
    (r"\bA10\b", {"float32": 31.2e12, "tf32": 62.5e12, "float16": 125e12, "bfloat16": 125e12}),
    (r"\bL4\b", {"float32": 30.3e12, "tf32": 60e12, "float16": 121e12, "bfloat16": 121e12}),
    (r"\bT4\b", {"float32": 8.1e12, "float16": 65e12}),
    (
        "MI300X",
        {"float64": 163.4e12, "float32": 163.4e12, "tf32": 653.7e12, "float16": 1307.4e12, "bfloat16": 1307.4e12},
    ),
    ("MI210", {"float64": 45.3e12, "float32": 45.3e12, "float16": 181e12, "bfloat16": 181e12}),
)
"""FLOPs per second by a part of the device's name; the first match counts."""


def find_peaks(device_name: str | None) -> Peaks | None:
    """The peaks of a device by the name that the driver gives it."""
    name = device_name or ""
    return next((Peaks(flops_per_s) for pattern, flops_per_s in _TABLE if re.search(pattern, name)), None)
