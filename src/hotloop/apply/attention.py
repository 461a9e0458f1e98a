"""A model -> how its modules compute attention: torch's own operator, by hand, or flash_attn; read from their code."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

PRODUCTS = frozenset(("matmul", "bmm", "einsum", "baddbmm"))
FLASH = ("flash_attn", "flash_attention_")
MOST_DEPTH = 2
"""Functions that a forward calls by name are read too, to this depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """``kind`` is 'sdpa', 'by-hand' or 'flash-attn'; the place is that of the forward which computes it."""

    kind: str
    module: str
    file: str
    line: int


def find_attention(model: Any) -> tuple[Attention, ...]:
    """One entry for each class of module in the model whose forward computes attention."""
    from torch import nn

    found: dict[type, Attention] = {}
    for module in model.modules():
        cls = type(module)
        if cls in found:
            continue
        if isinstance(module, nn.MultiheadAttention):
            found[cls] = Attention(kind="sdpa", module=cls.__name__, file="", line=0)
        elif cls.__module__.split(".")[0] != "torch":
            forward = getattr(cls, "forward", None)
            kind = _kind(forward, cls)
            chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
            if kind is not None and isinstance(chosen, str):  # Transformers looks the function up by this name
                kind = "sdpa" if chosen == "sdpa" else "flash-attn" if chosen.startswith("flash") else kind
            if kind is not None and forward is not None:
                code = inspect.unwrap(forward).__code__
                found[cls] = Attention(kind=kind, module=cls.__name__, file=code.co_filename, line=code.co_firstlineno)
    return tuple(found.values())


def _kind(forward: Any, cls: type) -> str | None:
    functions = list(_reached(forward, cls, 0, set()))
    names = {name for one in functions for code in _codes(one.__code__) for name in code.co_names}
    if any(name.startswith(FLASH) for name in names):
        return "flash-attn"
    if "scaled_dot_product_attention" in names:
        return "sdpa"
    for one in functions:
        if _is_by_hand(one.__code__):
            return "by-hand"
    return None


def _is_by_hand(code: CodeType) -> bool:
    """A softmax and at least two matrix products in one function. Bytecode names a function before its arguments, so
    the order of the three tells nothing."""
    products = softmaxes = 0
    for instruction in dis.get_instructions(code):
        name = instruction.argval if isinstance(instruction.argval, str) else ""
        is_operator = instruction.opname == "BINARY_MATRIX_MULTIPLY" or instruction.argrepr in ("@", "@=")
        if name in PRODUCTS or is_operator:
            products += 1
        elif name.lower() == "softmax":
            softmaxes += 1
    return softmaxes >= 1 and products >= 2


def _reached(function: Any, cls: type, depth: int, seen: set[Any]) -> Iterator[FunctionType]:
    """A Python function, and the functions and methods of the user's code that it names."""
    function = inspect.unwrap(function) if callable(function) else function
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType) or function in seen:
        return
    seen.add(function)
    yield function
    if depth >= MOST_DEPTH:
        return
    for code in _codes(function.__code__):
        for name in code.co_names:
            other = function.__globals__.get(name)
            if other is None:
                other = inspect.getattr_static(cls, name, None)
            other = getattr(other, "__func__", other)
            if isinstance(other, FunctionType) and other.__module__.split(".")[0] != "torch":
                yield from _reached(other, cls, depth + 1, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)
