"""A statement of the user's -> whether it runs Python alone, read from its source.

In a forward a sample on a user's line may stand for an operator that the line calls. Only what cannot be one counts as
Python: calls of builtins, of methods that tensors do not have, and of the standard library.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Sequence

from .source import Module, dotted, own_parts, path_to

_LIBRARIES = frozenset(sys.stdlib_module_names) - {"operator", "copy", "functools", "statistics"}
"""What their functions do with a tensor is Python's affair and not an operator's."""
_BUILTINS = frozenset(name for name in dir(builtins) if name.islower()) - {
    "abs", "all", "any", "bool", "divmod", "eval", "exec", "filter", "float", "getattr", "int", "map", "max", "min",
    "pow", "round", "sum", "super",
}  # fmt: skip
"""Without those that compute with a tensor, read it back, or call what they are given."""
_NUMBERS = frozenset({"bool", "float", "int"})
_JOINS = frozenset({"array", "as_tensor", "cat", "concat", "concatenate", "hstack", "stack", "tensor", "vstack"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_METHODS = frozenset(
    {name for kind in (str, bytes, list, dict, set) for name in dir(kind) if not name.startswith("_")}
    | {"appendleft", "most_common", "popleft", "group", "groups", "span"}
) - {"add", "copy", "count", "index", "split", "clear", "sort", "expand", "ljust", "difference", "intersection"}
"""Methods of text and of containers that no tensor has, or that do no work on one."""
_AMBIGUOUS = frozenset({"add", "count", "index", "split", "sort", "sum", "max", "min", "abs", "round"})
"""The same beside text that says what it is."""


def runs_python(module: Module, line: int) -> bool | None:
    """True where the statement at ``line`` runs no operator, False where it calls what may; None where it calls nothing
    that tells."""
    path = path_to(module.tree, line)
    if not path:
        return None
    nodes = [node for part in own_parts(path[-1]) for node in ast.walk(part)]
    if _walks_elements(path, nodes) or any(_joins_container(node) for node in nodes):
        return True
    names = [dotted(node.func) or "" for node in nodes if isinstance(node, ast.Call)]
    text = any(
        isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))
        for node in nodes
    )
    libraries = _imported_libraries(module) if names else frozenset()
    plain = [_is_plain(name, libraries, beside_text=text) for name in names]
    if not all(plain):
        return False
    if plain or text:
        return True
    return True if _tests_membership(nodes) else None


def _walks_elements(path: Sequence[ast.AST], nodes: Sequence[ast.AST]) -> bool:
    """Whether the statement belongs to two nested loops over the single elements of an array or tensor: no operator
    computes anything there but one number at a time."""
    inside = max((i for i, node in enumerate(path) if isinstance(node, _SCOPES)), default=0)
    loops = [node for node in path[inside:] if isinstance(node, ast.For)]
    if len(loops) < 2 or any(isinstance(node, ast.MatMult) for node in nodes):
        return False
    calls = {dotted(node.func) or "" for node in nodes if isinstance(node, ast.Call)}
    inner = _names(loops[-1].target)
    outer = {name for loop in loops[:-1] for name in _names(loop.target)}
    return calls <= _BUILTINS | _AMBIGUOUS | _NUMBERS and any(
        outer & _names(node.slice) and inner & _names(node.slice) and _is_element(node.slice)
        for node in ast.walk(loops[-1])
        if isinstance(node, ast.Subscript)
    )


def _joins_container(node: ast.AST) -> bool:
    """Whether a call joins the single entries of a container (``torch.stack(list(self.items))``): what it takes grows
    with their number, and the tensor that it makes could have been kept."""
    return (
        isinstance(node, ast.Call)
        and (dotted(node.func) or "").rpartition(".")[2] in _JOINS
        and bool(node.args)
        and isinstance(node.args[0], ast.Call)
        and dotted(node.args[0].func) in ("list", "tuple", "sorted")
    )


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _is_element(index: ast.expr) -> bool:
    """Of two indices or more, none a slice: one element."""
    return isinstance(index, ast.Tuple) and not any(
        isinstance(node, ast.Slice) or (isinstance(node, ast.Constant) and node.value in (None, ...))
        for node in ast.walk(index)
    )


def _imported_libraries(module: Module) -> frozenset[str]:
    """Names by which the file imports modules of the standard library: ``code`` and ``token`` may be tensors."""
    return frozenset(
        (alias.asname or alias.name).split(".", 1)[0]
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.split(".", 1)[0] in _LIBRARIES
    )


def _is_plain(name: str, libraries: frozenset[str], *, beside_text: bool) -> bool:
    head, _, last = name.rpartition(".")
    if not head:
        return last in _BUILTINS or last in _METHODS or (beside_text and last in _AMBIGUOUS)
    if name.split(".", 1)[0] in libraries:
        return True
    return last in _METHODS or (beside_text and last in _AMBIGUOUS)


def _tests_membership(nodes: Sequence[ast.AST]) -> bool:
    return any(
        isinstance(op, (ast.In, ast.NotIn)) for node in nodes if isinstance(node, ast.Compare) for op in node.ops
    )
