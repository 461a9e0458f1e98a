"""A recorded operator -> the torch.ops overload to call, with random inputs in the recorded or other shapes."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::BFloat16": torch.bfloat16,
    "c10::Half": torch.float16,
    "long int": torch.int64,
    "long": torch.int64,
    "int": torch.int32,
    "short int": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
}
LOWERED = frozenset(f"aten::{name}" for name in (
    "linear", "addmm", "mm", "bmm", "baddbmm", "addbmm", "matmul", "conv1d", "conv2d", "conv3d", "convolution",
    "_convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention",
))  # fmt: skip
"""Operators that autocast runs in the lower precision."""
WEIGHTS_FROM = {f"aten::{name}": 1 for name in (
    "linear", "conv1d", "conv2d", "conv3d", "convolution", "_convolution", "layer_norm", "group_norm", "rms_norm",
    "batch_norm", "prelu",
)}  # fmt: skip
"""Position of the first parameter among an operator's tensors: what follows does not grow with the batch."""
NOT_REPLAYED = frozenset(f"aten::{name}" for name in (
    "view", "reshape", "transpose", "t", "permute", "expand", "expand_as", "unsqueeze", "squeeze", "select", "slice",
    "detach", "detach_", "chunk", "split", "unbind", "as_strided", "flatten", "unflatten", "size", "contiguous", "item",
    "_local_scalar_dense", "is_nonzero", "view_as", "numpy_T", "alias", "empty", "empty_like", "broadcast_tensors",
    "result_type",
))  # fmt: skip
"""Views cost their call only, and copies of views need strides that were not recorded."""
STATISTICS = {"aten::batch_norm": (3, 4), "aten::instance_norm": (3, 4)}
"""Positions of running statistics, which have no gradient."""
PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::linear": 0}
"""Position of the activation among the inputs of a matrix product; the weight follows it."""

Arguments: TypeAlias = tuple[list[Any], dict[str, Any]]
"""Positional and keyword arguments of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator of one recorded step. ``shapes``, ``dtypes`` and ``inputs`` have one entry per argument."""

    name: str
    shapes: Sequence[Any]
    dtypes: Sequence[str]
    inputs: Sequence[Any]
    """A value that is not a tensor; "" for a tensor."""
    count: float = 1
    """Calls per step."""
    cpu_ns: float = 0
    """Time per step, in ns."""
    backward: bool = False
    first: int = 0
    """Place of the first call among those of the step."""

    @classmethod
    def from_dict(cls, recorded: Mapping[str, Any]) -> Operator:
        """An operator as an ``ops`` fact holds it; keys that no probe needs are left out."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in recorded.items() if key in names})

    @property
    def functional(self) -> Operator:
        """The operator that does not change its input, when it has one: ``aten::relu`` for ``aten::relu_``."""
        changes = self.name.endswith("_") and not self.name.endswith("__")
        return dataclasses.replace(self, name=self.name[:-1]) if changes else self

    @property
    def computes(self) -> bool:
        """False for views and for what the profiler itself calls."""
        return self.name not in NOT_REPLAYED and not self.name.startswith("profiler::")

    @property
    def size_bytes(self) -> int:
        """Bytes of the inputs as float32."""
        total = 0
        for shape in self.shapes:
            if isinstance(shape, list) and shape and isinstance(shape[0], list):
                total += sum(4 * math.prod(one) for one in shape)
            elif isinstance(shape, list) and shape:
                total += 4 * math.prod(shape)
        return total


class NotReplayable(Exception):
    """Inputs for an operator cannot be made from what was recorded; the text says why."""


NOT_TIMED = (NotReplayable, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""Errors of an operator whose recorded inputs were not enough to run it."""


def find_overload(op: Operator) -> Any:
    """The torch.ops overload whose arguments fit what was recorded."""
    space, _, name = op.name.partition("::")
    packet = getattr(getattr(torch.ops, space), name, None)
    if packet is None:
        raise NotReplayable(f"this torch has no {op.name}")
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        arguments = overload._schema.arguments
        if overload_name.endswith("out") or len(arguments) != len(op.dtypes):
            continue
        if all(_fits(argument, dtype) for argument, dtype in zip(arguments, op.dtypes, strict=True)):
            return overload
    raise NotReplayable(f"no overload of {op.name} takes {op.dtypes}")


def _fits(argument: Any, dtype: str) -> bool:
    kind = (
        str(argument.type).removeprefix("Optional[").removesuffix("]")
        if "Optional" in str(argument.type)
        else str(argument.type)
    )
    if dtype in DTYPES:
        return kind == "Tensor"
    if dtype == "TensorList":
        return kind.startswith("List") and "Tensor" in kind
    if dtype == "ScalarList":
        return kind.startswith("List") and "Tensor" not in kind
    if dtype == "Scalar":
        return kind in ("int", "float", "bool", "number", "Scalar", "SymInt", "ScalarType", "Layout", "MemoryFormat")
    return "Optional" in str(argument.type) or argument.has_default_value() or kind == "Generator"


def make_inputs(op: Operator, overload: Any, shapes: Sequence[Any], gradients: bool) -> Arguments:
    """Positional and keyword arguments with random tensors of these shapes."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    bound = _index_bound(op, shapes)
    statistics_at = STATISTICS.get(op.name, ())
    for index, (argument, shape, dtype, value) in enumerate(
        zip(overload._schema.arguments, shapes, op.dtypes, op.inputs, strict=True)
    ):
        if dtype in DTYPES:
            made: Any = _tensor(shape, DTYPES[dtype], bound, gradients and index not in statistics_at)
        elif dtype == "TensorList":
            if not shape or not all(isinstance(one, list) for one in shape):
                raise NotReplayable(f"{op.name} has a list of unknown tensors")
            made = [_tensor(one, torch.float32, bound, gradients) for one in shape]
        elif dtype in ("Scalar", "ScalarList"):
            made = _scalar(value, str(argument.type))
        elif argument.has_default_value():
            made = argument.default_value
        else:
            made = None
        if argument.kwarg_only:
            keywords[argument.name] = made
        else:
            positional.append(made)
    return positional, keywords


def _index_bound(op: Operator, shapes: Sequence[Any]) -> int:
    """Exclusive bound for integer inputs that is valid as an index into the other tensors."""
    first = next((shape for shape in shapes if isinstance(shape, list) and shape), [1])
    if not all(isinstance(size, int) for size in first):
        return 1
    if op.name == "aten::embedding":
        return int(first[0])
    if "loss" in op.name and len(first) > 1:
        return int(first[1])
    sizes = [size for s in shapes if isinstance(s, list) for size in s if isinstance(size, int) and size > 0]
    return max(1, min(sizes, default=1))


def _tensor(shape: Sequence[int], dtype: torch.dtype, bound: int, gradients: bool) -> torch.Tensor:
    if dtype.is_floating_point:
        # Positive and away from zero: no NaN from logarithms or roots, no denormals.
        made = (torch.rand(tuple(shape)) + 0.1).to(dtype)
        return made.requires_grad_(gradients and len(shape) > 0)
    if dtype is torch.bool:
        return torch.rand(tuple(shape)) < 0.5
    return torch.randint(0, min(bound, torch.iinfo(dtype).max), tuple(shape)).to(dtype)


def _scalar(value: Any, kind: str) -> Any:
    if isinstance(value, str):
        if value in ("inf", "-inf", "nan"):
            return float(value)
        return None if value == "" else value
    if "ScalarType" in kind and isinstance(value, int):
        return None if value < 0 else _SCALAR_TYPES.get(value)
    if kind in ("bool", "Optional[bool]"):
        return bool(value)
    return value


_SCALAR_TYPES = {
    4: torch.int64,
    3: torch.int32,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}


def scale_batch(op: Operator, batch: int, factor: int = 2) -> list[Any] | None:
    """The shapes for a larger batch, where a tensor's first dimension holds it; None when none does."""
    tensors = [i for i, dtype in enumerate(op.dtypes) if dtype in DTYPES and op.shapes[i]]
    weights_from = WEIGHTS_FROM.get(op.name, len(op.shapes))
    if op.name in ("aten::embedding", "aten::addmm"):
        movable = [i for i in tensors if i == 1]
    elif op.name == "aten::mm":
        movable = [i for i in tensors if i == 0]
    else:
        movable = [i for i in tensors if i < weights_from]
    if not movable:
        return None
    # Operands of fewer dimensions, or with another first size, are broadcast over the batch.
    rank = max(len(op.shapes[i]) for i in movable)
    leading = max(op.shapes[i][0] for i in movable if len(op.shapes[i]) == rank)
    if op.name.startswith(("aten::cross_entropy_loss", "aten::nll_loss", "aten::index_select")):
        scaled = [i for i in movable if op.shapes[i][0] == leading]
    else:
        scaled = [i for i in movable if len(op.shapes[i]) == rank and op.shapes[i][0] == leading]
    if leading % batch:
        return None
    shapes = [list(shape) if isinstance(shape, list) else shape for shape in op.shapes]
    for i in scaled:
        shapes[i][0] *= factor
    return shapes


def make_call(overload: Any, arguments: Arguments, lower: bool) -> Callable[[], object]:
    """A call that runs the operator and, where its result can be differentiated, its backward."""
    positional, keywords = arguments
    leaves = [t for t in flatten([*positional, *keywords.values()]) if isinstance(t, torch.Tensor) and t.requires_grad]

    def forward() -> list[torch.Tensor]:
        context = (
            torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False) if lower else contextlib.nullcontext()
        )
        with context:
            out = overload(*positional, **keywords)
        return [t for t in flatten([out]) if isinstance(t, torch.Tensor) and t.requires_grad]

    outputs = forward()[:1]
    if not outputs:
        return forward
    seeds = [torch.ones_like(out) for out in outputs]

    def both() -> object:
        return torch.autograd.grad(forward()[:1], leaves, seeds, allow_unused=True)

    return both


def flatten(values: Any) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            flat += flatten(value)
        else:
            flat.append(value)
    return flat


def is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
