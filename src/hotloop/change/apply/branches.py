"""A model -> the first place in its own forward code where the path may depend on data; None when there is none.

A judgment of source text: what is found may be harmless, and only what is not found counts.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

UNCALLED = ("__init__", "__repr__", "extra_repr", "reset_parameters", "init_weights", "_init_weights", "train")
BRANCHES = (ast.If, ast.IfExp, ast.While, ast.Try, ast.Break, ast.Continue, ast.BoolOp, ast.Lambda)


def find_branch(model: Any) -> str | None:
    """Where a forward may leave a part of the model out, as 'file:line (what)', or why its source cannot be read."""
    from torch import nn

    seen: set[Any] = set()
    for module in model.modules():
        for cls in type(module).__mro__:
            if cls is nn.Module:
                break
            if cls in seen or cls.__module__.startswith("torch."):
                continue
            seen.add(cls)
            for name, function in vars(cls).items():
                if inspect.isfunction(function) and name not in UNCALLED:
                    found = _branch_in(function, seen)
                    if found is not None:
                        return found
        if "forward" in vars(module) and not type(module.forward).__module__.startswith("hotloop."):
            return f"{type(module).__name__} overrides forward"
    return None


def _branch_in(function: Any, seen: set[Any]) -> str | None:
    if function in seen:
        return None
    seen.add(function)
    function = inspect.unwrap(function)
    try:
        lines, first_line = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return f"the source of {function.__qualname__} cannot be read"
    file = inspect.getsourcefile(function) or "?"
    counters = {name for node in ast.walk(tree) if isinstance(node, ast.For) for name in _names(node.target)}
    for node in ast.walk(tree):
        what = None
        if isinstance(node, BRANCHES):
            what = type(node).__name__
        elif isinstance(node, ast.comprehension) and node.ifs:
            what = "a condition in a comprehension"
        elif isinstance(node, ast.Subscript) and _is_of_self(node.value) and not _is_fixed(node.slice, counters):
            what = "a submodule selected by an index"
        if what is not None:
            line = first_line - 1 + int(getattr(node, "lineno", 1))
            return f"{file}:{line} ({what})"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = function.__globals__.get(node.func.id)
            if inspect.isfunction(called) and not called.__module__.startswith("torch"):
                found = _branch_in(called, seen)
                if found is not None:
                    return found
    return None


def _names(target: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _is_of_self(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
        if isinstance(node, ast.Name) and node.id == "self":
            return True
    return False


def _is_fixed(index: ast.AST, counters: set[str]) -> bool:
    """An index made of constants and of the counters of loops."""
    names = [node for node in ast.walk(index) if isinstance(node, ast.Name)]
    return all(node.id in counters for node in names) and not any(
        isinstance(node, ast.Call | ast.Attribute) for node in ast.walk(index)
    )
