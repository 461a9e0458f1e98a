"""Python modules -> CodeLinks: the parents of a node, the values bound to a name, and the calls of a function."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .files import MOST_BYTES

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.Module
Loop = ast.For | ast.AsyncFor | ast.While
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.Module)
FORS = (ast.For, ast.AsyncFor)
LOOPS = (*FORS, ast.While)
_OWNERS = frozenset((ast.FunctionDef, ast.AsyncFunctionDef, ast.Module, ast.ClassDef))
_BINDS = (
    ast.Assign,
    ast.AnnAssign,
    ast.NamedExpr,
    ast.AugAssign,
    ast.For,
    ast.AsyncFor,
    ast.comprehension,
    ast.withitem,
    ast.arg,
)
_NO_NODES = frozenset(("ctx", "op", "ops", "id", "attr", "kind", "type_comment", "level", "is_async", "conversion"))
_FIELDS = {
    kind: tuple(name for name in kind._fields if name not in _NO_NODES and kind is not ast.Constant)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
"""Kinds of node -> the fields whose nodes no other tree shares."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A value that a name takes: ``at`` is its element if it is unpacked, -1 for each element of a loop."""

    value: ast.AST
    statement: ast.AST
    at: int | None = None


@dataclass(slots=True)
class CodeLinks:
    """The links from node to node, in one module or several. ``owners`` are the enclosing function, class or module."""

    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    owners: dict[ast.AST, ast.AST] = field(default_factory=dict)
    names: dict[ast.AST, str] = field(default_factory=dict)
    definitions: dict[tuple[ast.AST, str], Function | ast.ClassDef] = field(default_factory=dict)
    bindings: dict[tuple[ast.AST, str], list[Binding]] = field(default_factory=dict)
    calls: dict[ast.AST, list[ast.Call]] = field(default_factory=dict)
    leaves: dict[ast.AST, list[ast.stmt]] = field(default_factory=dict)
    called: dict[str, list[ast.Call]] = field(default_factory=dict)

    def join(self, other: CodeLinks) -> CodeLinks:
        """The links of both."""
        joined = CodeLinks(*({**getattr(self, name), **getattr(other, name)} for name in self.__slots__))
        for name in self.called.keys() & other.called.keys():
            joined.called[name] = self.called[name] + other.called[name]
        return joined

    def enclose(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that enclose a node, from the innermost outward."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def home(self, target: ast.AST, tree: ast.AST) -> ast.AST:
        """The owner of a name: its function, the class of ``self.x``, else the module."""
        owner = self.owners.get(target, tree)
        if isinstance(target, ast.Name):
            return owner
        is_own = dotted(target).startswith(("self.", "cls."))
        while owner in self.owners and not (is_own and isinstance(owner, ast.ClassDef)):
            owner = self.owners[owner]
        return owner


class PythonModule:
    """A parsed module; its links are computed on first use."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path, self.tree = path, tree

    @cached_property
    def aliases(self) -> dict[str, str]:
        return dict(_list_aliases([*self.of[ast.Import], *self.of[ast.ImportFrom]]))

    @cached_property
    def of(self) -> dict[type, list[Any]]:
        """The nodes of each kind."""
        found: dict[type, list[Any]] = defaultdict(list)
        nodes: list[ast.AST] = [self.tree]
        self._parents: dict[ast.AST, ast.AST] = {}
        self._owners: dict[ast.AST, ast.AST] = {}
        parents, owners = self._parents, self._owners
        for node in nodes:  # grows while it is read: breadth first, without recursion
            kind = type(node)
            found[kind].append(node)
            fields = _FIELDS[kind]
            if not fields:
                continue
            owner = node if kind in _OWNERS else owners[node]
            for name in fields:
                value = getattr(node, name)
                for child in value if type(value) is list else (value,):
                    if isinstance(child, ast.AST):
                        parents[child], owners[child] = node, owner
                        nodes.append(child)
        return found

    @cached_property
    def links(self) -> CodeLinks:
        of, aliases = self.of, self.aliases
        links = CodeLinks(self._parents, self._owners)
        links.names = {node: aliases[node.id] for node in of[ast.Name] if node.id in aliases}
        owners, calls, called = (
            links.owners,
            defaultdict[ast.AST, list[ast.Call]](list),
            defaultdict[str, list[ast.Call]](list),
        )

        def scope(node: ast.AST) -> ast.AST:
            owner = owners[node]
            while isinstance(owner, ast.ClassDef):
                owner = owners[owner]
            return owner

        for node in of[ast.Call]:
            calls[scope(node)].append(node)
            called[node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")].append(
                node
            )
        for made in calls.values():
            made.sort(key=end_of)
        links.calls, links.called = calls, called
        for node in (*of[ast.Continue], *of[ast.Break], *of[ast.Return]):
            links.leaves.setdefault(scope(node), []).append(node)
        for node in (*of[ast.FunctionDef], *of[ast.AsyncFunctionDef], *of[ast.ClassDef]):
            links.definitions.setdefault((owners[node], node.name), node)
        pairs = [(pair, node) for kind in _BINDS for node in of[kind] for pair in _bind(node)]
        for (target, binding), node in sorted(pairs, key=lambda pair: start_of(pair[0][0])):
            if target not in owners:
                links.parents[target], owners[target] = node, owners[node]
            links.bindings.setdefault((links.home(target, self.tree), dotted(target)), []).append(binding)
        return links


@lru_cache(maxsize=64)
def parse_module(path: str, text: str) -> PythonModule:
    """Raises what ``ast.parse`` raises."""
    return PythonModule(path, ast.parse(text))


@lru_cache(maxsize=4096)
def find_module(folder: str, parts: tuple[str, ...]) -> str | None:
    """The file of a module imported from a folder: in that folder, or up to three folders above."""
    for up in range(4):
        base = os.path.normpath(os.path.join(folder, *[os.pardir] * up, *parts))
        found = next((path for path in (f"{base}.py", os.path.join(base, "__init__.py")) if os.path.isfile(path)), None)
        if found is not None:
            return found
    return None


def read_module(path: str) -> PythonModule | None:
    """A module near a script; None if it cannot be read, or is too large."""
    try:
        if os.stat(path).st_size > MOST_BYTES >> 2:
            return None
        return parse_module(path, Path(path).read_bytes().decode("utf-8-sig", "replace"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def dotted(node: ast.AST, names: Mapping[ast.AST, str] = MappingProxyType({})) -> str:
    """``a.b.c`` of an expression; a part that is not a name is ``?``."""
    if isinstance(node, ast.Name):
        return names.get(node, node.id)
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(names.get(node, node.id) if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword of a call; None without it."""
    return next((part.value for part in call.keywords if part.arg == name), None)


def has_unpacked(call: ast.Call) -> bool:
    """Whether a call takes arguments that its text does not show (``*x``, ``**x``)."""
    return any(part.arg is None for part in call.keywords) or any(isinstance(arg, ast.Starred) for arg in call.args)


def constant(node: ast.AST | None) -> object:
    """The value of a literal; Ellipsis for anything else."""
    return node.value if isinstance(node, ast.Constant) else ...


def start_of(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def end_of(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)


def _bind(node: ast.AST) -> Iterator[tuple[ast.expr, Binding]]:
    """The names that a node binds, each with its value."""
    at: int | None = None
    targets: Sequence[ast.expr | None]
    value: ast.AST | None
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, (*FORS, ast.comprehension)):
        targets, value, at = [node.target], node.iter, -1
    elif isinstance(node, ast.withitem):
        targets, value = [node.optional_vars], node.context_expr
    elif isinstance(node, ast.arg):
        targets, value = [ast.copy_location(ast.Name(id=node.arg, ctx=ast.Store()), node)], node
    else:
        targets, value = [getattr(node, "target", None)], getattr(node, "value", None)
    for target in targets if value is not None else ():
        if isinstance(target, (ast.Name, ast.Attribute)) and value is not None:
            yield target, Binding(value, node, at)
        elif isinstance(target, (ast.Tuple, ast.List)) and value is not None:
            same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts) and at is None
            for place, part in enumerate(ast.walk(target) if at == -1 else target.elts):
                if isinstance(part, (ast.Name, ast.Attribute)):
                    given = value.elts[place] if same and isinstance(value, (ast.Tuple, ast.List)) else value
                    yield part, Binding(given, node, None if same else place if at is None else at)


def _list_aliases(nodes: Sequence[ast.Import | ast.ImportFrom]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        module = ""
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (f"{node.module}." if node.module else "")
        for alias in node.names:
            if alias.asname or isinstance(node, ast.ImportFrom):
                yield alias.asname or alias.name, f"{module}{alias.name}"
