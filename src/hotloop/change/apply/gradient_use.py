"""Loaded modules -> the first line of the user's own code that works on gradients by hand; None when there is none."""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MOST_BYTES = 4 << 20


def find_in_user_code(words: Sequence[bytes], find_line: Callable[[bytes], int | None]) -> str | None:
    """'file:line' of what ``find_line(source)`` finds in loaded code that belongs to no installed package.

    Only files that hold one of ``words`` are read further. What cannot be read counts as found.
    """
    installed = tuple(
        os.path.realpath(path) + os.sep for path in {*sysconfig.get_paths().values(), os.path.dirname(__file__)}
    )
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = os.path.realpath(file)
        is_known = name.partition(".")[0] in ("hotloop", "torch")
        if is_known or path.startswith(installed) or f"{os.sep}site-packages{os.sep}" in path:
            continue
        if not os.path.exists(path):  # a name that only looks like a file, such as torch.ops'
            continue
        try:
            data = Path(path).read_bytes()
            if not any(word in data for word in words):
                continue
            line = find_line(data) if len(data) <= MOST_BYTES else 1
        except (OSError, SyntaxError, ValueError):
            return f"{path}:1"
        if line is not None:
            return f"{path}:{line}"
    return None


def find_gradient_use() -> str | None:
    """'file:line' of the first ``.grad`` that is read or replaced in code that belongs to no installed package.

    Setting it to None does not count as a use. What cannot be read does.
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
    """While installed, reports every read of a parameter's ``grad`` by Python code outside torch and hotloop."""

    def __init__(self, parameters: set[int], emit: Callable[[str], None]) -> None:
        self._parameters = parameters
        self._emit = emit
        self._property: Any = None

    def install(self) -> None:
        import torch

        base: Any = torch._C.TensorBase.grad
        inside = (
            os.path.dirname(torch.__file__) + os.sep,
            os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep,
        )
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
