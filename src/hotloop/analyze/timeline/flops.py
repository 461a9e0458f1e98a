"""An operator's name and shapes -> the work of one call; a device's name -> its published peaks.

Counted: multiplications and additions of matrix products, convolutions, recurrent layers and attention (2 each), as in
torch.utils.flop_counter. Pointwise work is not counted. Operators that only pass on to another counted one
(aten::linear, aten::conv2d, aten::matmul) get figures of their own row but none of the trace's total.

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

ELEMENT_BYTES = {
    "float": 4,
    "float32": 4,
    "double": 8,
    "float64": 8,
    "c10::Half": 2,
    "float16": 2,
    "c10::BFloat16": 2,
    "bfloat16": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1,
    "int": 4,
    "long": 8,
    "long int": 8,
    "short": 2,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}
"""Bytes of one element by the name that 'Input type' uses."""

LEAVES = PRODUCTS - {"aten::convolution"}
"""Those of a trace, which shows convolution and what it calls."""


@dataclass(frozen=True, slots=True)
class Work:
    """One call. ``bytes`` is every input read once and the output written once; None where a type is unknown."""

    flops: int
    bytes: int | None
    again: int = 0
    """Part of ``flops`` that was computed before: the scores in the backward of fused attention."""


def count_work(name: str, shapes: str | None, dtypes: str | None, concrete: str | None = None) -> Work | None:
    """The work of one call from 'Input Dims', 'Input type' and 'Concrete Inputs' as JSON; None where unknown.

    >>> count_work("aten::mm", "[[128,64],[64,32]]", '["float","float"]')
    Work(flops=524288, bytes=57344, again=0)
    """
    if shapes is None:
        return None
    try:
        dims: Any = json.loads(shapes)
        types: Any = json.loads(dtypes) if dtypes is not None else []
        values: Any = json.loads(concrete) if concrete is not None else []
    except (ValueError, RecursionError):
        return None
    return count_call(name, dims, types, values)


def count_call(name: str, dims: Any, types: Any, values: Any) -> Work | None:
    """The same from lists with one entry per argument: shape, type name, and value where it is no tensor."""
    try:
        counted = _count(name.removeprefix("aten::"), dims, values)
        if counted is None:
            return None
        flops, inputs, output_elements = counted
        again = flops // 5 if name.startswith("aten::_scaled_dot_product_") and name.endswith("backward") else 0
        return Work(flops, _count_bytes(dims, types, inputs, output_elements), again)
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None  # shapes of another release or another operator of this name: no figure is better than a guess


def _count(name: str, dims: Any, values: Any) -> tuple[int, tuple[int, ...], int] | None:
    """(flops, indices of the tensors read, elements written)."""
    if name in ("mm", "_scaled_mm"):
        (m, k), (_, n) = dims[0], dims[1]
        return 2 * m * k * n, (0, 1), m * n
    if name == "addmm":
        (m, k), (_, n) = dims[1], dims[2]
        return 2 * m * k * n, (0, 1, 2), m * n
    if name == "bmm":
        (b, m, k), (_, _, n) = dims[0], dims[1]
        return 2 * b * m * k * n, (0, 1), b * m * n
    if name == "baddbmm":
        (b, m, k), (_, _, n) = dims[1], dims[2]
        return 2 * b * m * k * n, (0, 1, 2), b * m * n
    if name == "linear":
        *batch, k = dims[0]
        n = dims[1][0]
        return 2 * prod(batch) * k * n, (0, 1), prod(batch) * n
    if name == "_grouped_mm":
        (m, k), (_, _, n) = dims[0], dims[1]  # every row meets the matrix of its own expert; other forms are not told
        return 2 * m * k * n, (0, 1), m * n
    if name in ("_cudnn_rnn", "mkldnn_rnn_layer", "_cudnn_rnn_backward", "mkldnn_rnn_layer_backward"):
        # Every time step of every sequence meets every matrix; backward makes the gradients of both factors.
        matrices = [shape for shape in (dims[1] if "cudnn" in name else dims[1:3]) if len(shape) == 2]
        flops = 2 * prod(dims[0][:-1]) * sum(map(prod, matrices))
        return (2 if name.endswith("backward") else 1) * flops, (0,), 0
    if name in ("conv1d", "conv2d", "conv3d"):
        return _count_convolution(dims, values, transposed=False, at=3)
    if name in ("convolution", "_convolution"):
        transposed = _flag(values, 6)
        return None if transposed is None else _count_convolution(dims, values, transposed=transposed, at=3)
    if name == "convolution_backward":
        return _count_convolution_backward(dims, values)
    if name.startswith("_scaled_dot_product_") and not name.endswith("backward"):
        return _count_attention(dims[0], dims[1], dims[2])
    if name.startswith("_scaled_dot_product_") and name.endswith("backward"):
        flops, _, _ = _count_attention(dims[1], dims[2], dims[3])
        # Backward has five products of the forward's two sizes: dV, dP, dQ, dK and the scores once more.
        return flops * 5 // 2, (0, 1, 2, 3), sum(prod(dims[i]) for i in (1, 2, 3))
    return None


def _count_attention(query: Any, key: Any, value: Any) -> tuple[int, tuple[int, ...], int]:
    """Q (b, h, s_q, d) x K (b, h, s_k, d) and scores x V (b, h, s_k, d_v): 2 b h s_q s_k (d + d_v). A causal mask
    is not taken off: the file does not tell it in all releases."""
    b, h, s_q, d = query
    s_k, d_v = key[2], value[3]
    return 2 * b * h * s_q * s_k * (d + d_v), (0, 1, 2), b * h * s_q * d_v


def _count_convolution(dims: Any, values: Any, *, transposed: bool, at: int) -> tuple[int, tuple[int, ...], int] | None:
    """2 x batch x positions x weights: every weight meets every output position (input position if transposed).

    ``at`` is the index of the stride among the inputs; padding and dilation follow it.
    """
    batch, _, *space = dims[0]
    weight = dims[1]
    kernel = weight[2:]
    if len(kernel) != len(space) or not kernel:
        return None
    if transposed:
        return 2 * batch * prod(space) * prod(weight), (0, 1), 0
    stride, padding, dilation = (_numbers(values, at + i, len(kernel)) for i in range(3))
    if stride is None or padding is None or dilation is None:
        return None
    out = [
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, p, d, k, t in zip(space, padding, dilation, kernel, stride, strict=True)
    ]
    return 2 * batch * prod(out) * prod(weight), (0, 1), batch * weight[0] * prod(out)


def _count_convolution_backward(dims: Any, values: Any) -> tuple[int, tuple[int, ...], int] | None:
    """Inputs: grad_output, input, weight, ... : one forward's worth for the input's gradient, one for the weight's."""
    grad, source, weight = dims[0], dims[1], dims[2]
    if len(grad) != len(source) or len(weight) != len(source):
        return None
    transposed = _flag(values, 7)
    if transposed is None:
        return None
    positions = prod(source[2:]) if transposed else prod(grad[2:])
    one = 2 * grad[0] * positions * prod(weight)
    wanted = values[10] if len(values) > 10 else None
    mask = _parse(wanted)
    if not isinstance(mask, list) or len(mask) < 2:
        return None
    passes = sum(1 for wants in mask[:2] if wants)
    written = (prod(source) if mask[0] else 0) + (prod(weight) if mask[1] else 0)
    return passes * one, (0, 1, 2), written


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


def _count_bytes(dims: Any, types: Any, inputs: tuple[int, ...], written: int) -> int | None:
    if len(types) <= max(inputs) or written == 0:
        return None
    sizes = [ELEMENT_BYTES.get(types[i]) if isinstance(types[i], str) else None for i in inputs]
    total = 0
    for index, size in zip(inputs, sizes, strict=True):
        if size is None:
            return None
        total += prod(dims[index]) * size
    first = sizes[-1]
    return None if first is None else total + written * first


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What an element type can reach at most."""

    kind: str
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peaks of one device. A type that the device has no matrix unit for is absent."""

    flops_per_s: dict[str, float]
    """By element type: 'float64', 'float32' (without TF32), 'tf32', 'float16', 'bfloat16'."""
    bytes_per_s: float

    def of(self, types: str) -> Peak | None:
        """The peak of products whose arguments have these types, as a trace or a recording names them."""
        kind = name_type(types)
        # It is not told whether TF32 was allowed: the higher roof is the honest one.
        if kind == "float32" and "tf32" in self.flops_per_s:
            kind = "tf32"
        return Peak(kind=kind, flops_per_s=self.flops_per_s[kind]) if kind in self.flops_per_s else None


def name_type(types: str) -> str | None:
    """The element type that a product computes in; None for none that is known.

    >>> name_type('["float", "float"]'), name_type("c10::Half"), name_type("long int")
    ('float32', 'float16', None)
    """
    kinds = (("BFloat16", "bfloat16"), ("Half", "float16"), ("float", "float32"), ("double", "float64"))
    return next((kind for word, kind in kinds if word in types), None)


_TABLE: tuple[tuple[re.Pattern[str], Peaks], ...] = (
    (
        re.compile(r"\bB200\b"),
        Peaks(
            flops_per_s={"float64": 37e12, "float32": 80e12, "tf32": 1.125e15, "float16": 2.25e15, "bfloat16": 2.25e15},
            bytes_per_s=8.0e12,
        ),
    ),
    (
        re.compile(r"\bH200\b"),
        Peaks(
            flops_per_s={"float64": 67e12, "float32": 67e12, "tf32": 494.5e12, "float16": 989e12, "bfloat16": 989e12},
            bytes_per_s=4.8e12,
        ),
    ),
    (
        re.compile(r"\bH100\b.*PCIe"),
        Peaks(
            flops_per_s={"float64": 51e12, "float32": 51e12, "tf32": 378e12, "float16": 756e12, "bfloat16": 756e12},
            bytes_per_s=2.0e12,
        ),
    ),
    (
        re.compile(r"\bH100\b"),
        Peaks(
            flops_per_s={"float64": 67e12, "float32": 67e12, "tf32": 494.5e12, "float16": 989e12, "bfloat16": 989e12},
            bytes_per_s=3.35e12,
        ),
    ),
    (
        re.compile(r"\bA100\b.*80GB"),
        Peaks(
            flops_per_s={"float64": 19.5e12, "float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12},
            bytes_per_s=2.0e12,
        ),
    ),
    (
        re.compile(r"\bA100\b"),
        Peaks(
            flops_per_s={"float64": 19.5e12, "float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12},
            bytes_per_s=1.555e12,
        ),
    ),
    (
        re.compile(r"\bV100\b"),
        Peaks(flops_per_s={"float64": 7.8e12, "float32": 15.7e12, "float16": 125e12}, bytes_per_s=0.9e12),
    ),
    (
        re.compile(r"\bL40S\b"),
        Peaks(
            flops_per_s={"float32": 91.6e12, "tf32": 183e12, "float16": 362e12, "bfloat16": 362e12},
            bytes_per_s=0.864e12,
        ),
    ),
    (
        re.compile(r"\bA10\b"),
        Peaks(
            flops_per_s={"float32": 31.2e12, "tf32": 62.5e12, "float16": 125e12, "bfloat16": 125e12},
            bytes_per_s=0.6e12,
        ),
    ),
    (
        re.compile(r"\bL4\b"),
        Peaks(
            flops_per_s={"float32": 30.3e12, "tf32": 60e12, "float16": 121e12, "bfloat16": 121e12},
            bytes_per_s=0.3e12,
        ),
    ),
    (re.compile(r"\bT4\b"), Peaks(flops_per_s={"float32": 8.1e12, "float16": 65e12}, bytes_per_s=0.32e12)),
    (
        re.compile(r"MI300X"),
        Peaks(
            flops_per_s={
                "float64": 163.4e12,
                "float32": 163.4e12,
                "tf32": 653.7e12,
                "float16": 1307.4e12,
                "bfloat16": 1307.4e12,
            },
            bytes_per_s=5.3e12,
        ),
    ),
    (
        re.compile(r"MI210"),
        Peaks(
            flops_per_s={"float64": 45.3e12, "float32": 45.3e12, "float16": 181e12, "bfloat16": 181e12},
            bytes_per_s=1.6e12,
        ),
    ),
)


def find_peaks(device_name: str | None) -> Peaks | None:
    """The peaks of a device by the name that the driver gives it."""
    if device_name is None:
        return None
    for pattern, peaks in _TABLE:
        if pattern.search(device_name):
            return peaks
    return None
