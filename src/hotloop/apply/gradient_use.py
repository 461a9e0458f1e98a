"""Loaded modules -> the first line of the user's own code that works on gradients by hand; None when there is none."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from typing import Any

from hotloop.apply.user_code import find_in_user_code


def find_gradient_use() -> str | None:
    """'file:line' of the first ``.grad`` that is read or replaced in code that belongs to no installed package.

    Setting it to None is no use. What cannot be read counts as a use.
    """
    return find_in_user_code((b"grad",), gradient_line)


def find_second_derivative() -> str | None:
    """'file:line' of the first call in the user's own code that asks for a graph of gradients (``create_graph``)."""
    return find_in_user_code((b"create_graph",), second_derivative_line)


def second_derivative_line(source: str | bytes) -> int | None:
    """
    >>> second_derivative_line("loss.backward(create_graph=False)")
    >>> second_derivative_line("grad(loss, x, create_graph=True)")
    1
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "create_graph":
            is_off = isinstance(node.value, ast.Constant) and not node.value.value
            if not is_off:
                return node.value.lineno
    return None


def gradient_line(source: str | bytes) -> int | None:
    """
    >>> gradient_line("for p in ps:\\n    p.grad = None")
    >>> gradient_line("for p in ps:\\n    p.grad.mul_(2)")
    2
    """
    tree = ast.parse(source)
    cleared: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None:
            cleared |= {id(target) for target in node.targets}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", None)
            if name != "autograd" and id(node) not in cleared:
                return node.lineno
        if isinstance(node, ast.Constant) and node.value == "grad":
            return node.lineno
    return None


class GradientReads:
    """While installed, tells of every read of a parameter's ``grad`` by Python code outside torch and hotloop."""

    def __init__(self, parameters: set[int], emit: Callable[[str], None]) -> None:
        self._parameters = parameters
        self._emit = emit
        self._property: Any = None

    def install(self) -> None:
        import torch

        base: Any = torch._C.TensorBase.grad
        inside = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)
        parameters, emit = self._parameters, self._emit

        def read(tensor: Any) -> Any:
            if id(tensor) in parameters:
                frame = sys._getframe(1)
                file = frame.f_code.co_filename
                if not file.startswith(inside) and not file.startswith("<hotloop"):
                    emit(f"{file}:{frame.f_lineno}")
            return base.__get__(tensor)

        if "grad" not in vars(torch.Tensor):
            self._property = property(read, base.__set__, base.__delete__)
            torch.Tensor.grad = self._property

    def remove(self) -> None:
        import torch

        if self._property is not None and vars(torch.Tensor).get("grad") is self._property:
            del torch.Tensor.grad
        self._property = None
