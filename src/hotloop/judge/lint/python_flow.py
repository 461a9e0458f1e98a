"""Where a value of a Python module comes from, and what a piece of its code calls, including in nearby modules."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .python_code import (
    FORS,
    FUNCTIONS,
    LOOPS,
    SCOPES,
    Binding,
    CodeLinks,
    Function,
    Loop,
    PythonModule,
    Scope,
    dotted,
    end_of,
    find_module,
    keyword,
    read_module,
    start_of,
)

MOST_DEPTH = 24
"""The limit of definitions and expressions that are followed: beyond it, a value is unknown."""
MOST_EVENTS = 3000
MOST_MODULES = 12
MOST_ORIGINS = 60
WRAPPED = re.compile(r"(^|\.)(DistributedDataParallel|DDP|FullyShardedDataParallel|FSDP|DataParallel)$")
# fmt: off
_SAME = frozenset((
    "to", "cuda", "cpu", "half", "float", "bfloat16", "double", "train", "eval", "requires_grad_", "unwrap", "apply",
    "contiguous", "share_memory", "prepare", "prepare_model", "wrap", "setup", "setup_module", "device_put", "compile",
))
"""Calls that return the object, or another in its place."""
_WRAPPERS = frozenset((
    "enumerate", "tqdm", "trange", "zip", "islice", "iter", "cycle", "track", "prange", "chain", "list", "log_every",
))
# fmt: on
_LEAVES = (*SCOPES, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class LoopCall:
    """A call that a piece of code makes, directly or in a function that it calls. ``site`` is the call in that piece;
    ``tests`` are the conditions under which it runs; ``is_certain``: it runs each time."""

    call: ast.Call
    name: str
    site: ast.Call
    tests: tuple[ast.AST, ...]
    is_certain: bool

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]


class ValueFlow:
    """A module whose names are followed; nearby modules are read if a name leads there."""

    def __init__(self, module: PythonModule) -> None:
        self.module, self.tree = module, module.tree
        self._modules: dict[str, PythonModule | None] = {}
        self._defined: dict[ast.AST, Function | ast.ClassDef | None] = {}
        self._events: dict[ast.AST, tuple[LoopCall, ...]] = {}
        self._depth = 0

    @cached_property
    def links(self) -> CodeLinks:
        return self.module.links

    @property
    def of(self) -> dict[type, list[Any]]:
        """The nodes of the module by their kind."""
        return self.module.of

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that enclose a node, from the innermost outward."""
        return self.links.enclose(node)

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.links.parents.get(node)

    def scope(self, node: ast.AST) -> Scope:
        """The function or module to which a node's code belongs."""
        owner = self.links.owners.get(node, self.tree)
        while not isinstance(owner, SCOPES):
            owner = self.links.owners[owner]
        return owner

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class around a node."""
        return next((around for around in self.parents(node) if isinstance(around, ast.ClassDef)), None)

    def is_own(self, node: ast.AST) -> bool:
        """Whether a node is in this file, and not in a nearby module."""
        return node is self.tree or node in self.module.links.parents

    def name(self, node: ast.AST) -> str:
        """Dotted name of the object to which an expression refers, imports resolved: ``optim.Adam`` is
        ``torch.optim.Adam``.

        A part that is not a name is ``?``, so ``scaler.scale(loss).backward`` ends in ``.backward``.
        """
        return dotted(node, self.links.names)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement to which an expression belongs."""
        return next(around for around in (node, *self.parents(node)) if isinstance(around, ast.stmt))

    def within(self, node: ast.AST, container: ast.AST) -> bool:
        """Whether a node's code runs as part of the container, and not in a function that is defined there."""
        inner = node
        for around in self.parents(node):
            if around is container:
                return not _is_apart(inner, around)
            if isinstance(around, _LEAVES):
                return False
            inner = around
        return False

    def conditions(self, node: ast.AST, container: ast.AST) -> list[ast.AST]:
        """The nodes that decide whether a node runs each time the container's body does: tests, handlers, inner
        loops."""
        found: list[ast.AST] = []
        inner = node
        for around in self.parents(node):
            if around is container:
                return found
            if isinstance(around, (ast.If, ast.IfExp)):
                found += [around.test] if inner is not around.test else []
            elif isinstance(around, (ast.ExceptHandler, ast.Match)) or (
                isinstance(around, LOOPS) and inner is not getattr(around, "iter", None)
            ):
                found.append(around)
            elif isinstance(around, ast.BoolOp) and inner is not around.values[0]:
                found += around.values[:-1]
            inner = around
        return found

    def loops_around(self, node: ast.AST) -> list[Loop]:
        """The loops of the same function around a node, from the innermost outward."""
        found: list[Loop] = []
        inner = node
        for around in self.parents(node):
            if isinstance(around, _LEAVES):
                break
            if isinstance(around, LOOPS) and not _is_apart(inner, around):
                found.append(around)
            inner = around
        return found

    def exclude_each_other(self, first: ast.AST, second: ast.AST) -> bool:
        """Whether two nodes are in different branches of one ``if``."""
        mine, its = {first, *self.parents(first)}, {second, *self.parents(second)}
        branches = [(node.body, node.orelse) for node in mine & its if isinstance(node, ast.If)]
        return any(
            not (mine.isdisjoint(body) or its.isdisjoint(other)) or not (mine.isdisjoint(other) or its.isdisjoint(body))
            for body, other in branches
        )

    def runs_each_time(self, node: ast.AST, container: Loop | Function) -> bool:
        """Whether there are none of these, and no ``continue`` or ``return`` before it may skip it."""
        if not self.within(node, container) or self.conditions(node, container):
            return False
        leaves, line = self.links.leaves.get(self.scope(node), ()), start_of(node)[0]
        return not any(leave.lineno < line and self.within(leave, container) for leave in leaves)

    def reaching(self, node: ast.AST) -> list[Binding]:
        """The possible values of a name (``x``, ``self.x``) where it is read: the last binding before it, those that a
        test may skip, and those that an iteration leaves to the next."""
        name, table = dotted(node), self.links.bindings
        first = self.links.home(node, self.tree)
        homes = (home for home in (first, *self.parents(first)) if home is first or isinstance(home, SCOPES))
        home = next((home for home in homes if (home, name) in table), None)
        if home is None:
            return []
        bindings = table[home, name]
        if home is not first or not isinstance(home, SCOPES) or len(bindings) == 1:
            return bindings[-8:]
        around, start, found = {node, *self.parents(node)}, start_of(node), []
        before = [
            one
            for one in bindings
            if isinstance(one.value, ast.arg)
            or end_of(one.statement) <= start
            or (one.at == -1 and one.statement in around)
        ]
        for binding in reversed(before):
            found.append(binding)
            if self._covers(binding.statement, around):
                break
        loop = next((one for one in self.parents(node) if isinstance(one, LOOPS)), None)
        if not found or (loop is not None and start_of(found[-1].statement) < start_of(loop)):
            found += [
                one for one in bindings if one not in found and (loop is None or self.within(one.statement, loop))
            ]
        return found or bindings[:8]

    def _covers(self, statement: ast.AST, around: set[ast.AST]) -> bool:
        """Whether a statement has run whenever code below these has."""
        block = statement if statement in around else self.links.parents.get(statement, statement)
        while isinstance(block, (ast.With, ast.AsyncWith, ast.Try)) and block not in around:
            block = self.links.parents[block]
        return block in around or isinstance(statement, ast.arguments)

    def origins(
        self, node: ast.AST, *, inside: bool = False, through: Sequence[str] = (), at: int | None = None
    ) -> list[ast.AST]:
        """The possible origins of a value: names are followed to the values bound to them, parameters to the arguments
        of their callers, functions to their results. ``inside``: a wrapped model counts as the model; ``through``:
        calls that count as their first argument; ``at``: its element."""
        found: list[ast.AST] = []
        todo: list[tuple[ast.AST, int | None]] = [(node, at)]
        seen: set[tuple[ast.AST, int | None]] = set()
        while todo and len(seen) < MOST_ORIGINS:
            node, at = todo.pop()
            if (node, at) in seen:
                continue
            seen.add((node, at))
            more: list[tuple[ast.AST, int | None]] = []
            if isinstance(node, (ast.Name, ast.Attribute)):
                more = [(one.value, one.at) for one in self.reaching(node)]
                if not more and isinstance(node, ast.Attribute) and node.attr == "module":
                    more = [(node.value, at)]
            elif isinstance(node, ast.Call):
                more = self._behind(node, at, inside)
                if not more and node.args and self.name(node.func).rpartition(".")[2] in through:
                    more = [(node.args[0], at)]
            elif isinstance(node, (ast.Tuple, ast.List)) and at is not None and 0 <= at < len(node.elts):
                more = [(node.elts[at], None)]
            elif isinstance(node, ast.IfExp):
                more = [(node.body, at), (node.orelse, at)]
            elif isinstance(node, (ast.NamedExpr, ast.Await)):
                more = [(node.value, at)]
            elif isinstance(node, ast.arg):
                more = [(one, None) for one in self.given(node)]
            if more:
                todo += more
            elif node not in found:
                found.append(node)
        return found

    def _behind(self, call: ast.Call, at: int | None, inside: bool) -> list[tuple[ast.AST, int | None]]:
        """The result of a call, if that is one of its arguments or a function's result."""
        last = self.name(call.func).rpartition(".")[2]
        takes = last.startswith(("prepare", "setup", "wrap")) or (inside and last == "compile")
        if last in _SAME and call.args and takes:
            return [(call.args[at or 0], None)] if (at or 0) < len(call.args) else []
        if last in _SAME and last != "compile" and isinstance(call.func, ast.Attribute):
            return [(call.func.value, at)]
        if inside and call.args and (WRAPPED.search(last) or "convert_sync" in last):
            return [(call.args[0], at)]
        definition = self.definition(call.func)
        return [(result, at) for result in self.results(definition)] if isinstance(definition, FUNCTIONS) else []

    def made(self, node: ast.AST, *, inside: bool = False) -> list[ast.Call]:
        """The calls among the origins of a value."""
        return [origin for origin in self.origins(node, inside=inside) if isinstance(origin, ast.Call)]

    def results(self, function: Function) -> list[ast.expr]:
        """The values that a function returns."""
        leaves = self.links.leaves.get(function, ())
        return [leave.value for leave in leaves if isinstance(leave, ast.Return) and leave.value is not None]

    def given(self, parameter: ast.arg) -> list[ast.expr]:
        """The values that callers pass for a parameter."""
        function = next((one for one in self.parents(parameter) if isinstance(one, (*FUNCTIONS, ast.Lambda))), None)
        if not isinstance(function, FUNCTIONS):
            return []
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        is_method = names[:1] in (["self"], ["cls"]) and self.links.parents[function] in self.links.definitions.values()
        found: list[ast.expr] = []
        for call in self.callers(function)[:8]:
            at = names.index(parameter.arg) - is_method if parameter.arg in names else len(call.args)
            value = call.args[at] if 0 <= at < len(call.args) else keyword(call, parameter.arg)
            found += [value] if value is not None else []
        return found

    def numbers(self, value: ast.AST) -> list[object]:
        """The literals that a value may be, including the defaults of parameters and of arguments of a command line."""
        last, found = self.name(value).rpartition(".")[2], list[ast.AST]()
        for origin in self.origins(value):
            scope = self.links.owners.get(origin)
            given = scope.args if isinstance(scope, FUNCTIONS) else None
            names = [*given.posonlyargs, *given.args] if given else []
            pairs = zip(names[::-1], given.defaults[::-1], strict=False) if given else ()
            found += [origin, *(default for one, default in pairs if one is origin)]
            found += (
                [one for name, one in zip(given.kwonlyargs, given.kw_defaults, strict=True) if name is origin and one]
                if given
                else []
            )
        for call in self.links.called.get("add_argument", ()):
            flags = [str(getattr(one, "value", "")).lstrip("-").replace("-", "_") for one in call.args]
            found += [part.value for part in call.keywords if part.arg == "default" and last in flags]
        return [one.value for one in found if isinstance(one, ast.Constant)]

    def callers(self, function: Function) -> list[ast.Call]:
        """Calls of a function or method; for ``__init__``, those of its class."""
        owner = self.links.owners[function]
        sought = owner if function.name == "__init__" and isinstance(owner, ast.ClassDef) else function
        return [call for call in self.links.called.get(sought.name, ()) if self.definition(call.func) is sought]

    def callers_of(self, node: ast.AST) -> list[ast.Call]:
        """Calls of the function around a node."""
        scope = self.scope(node)
        return self.callers(scope) if isinstance(scope, FUNCTIONS) else []

    def definition(self, node: ast.expr) -> Function | ast.ClassDef | None:
        """The function or class, in this file or a nearby module, that an expression names."""
        if node not in self._defined:
            self._defined[node] = None  # for a name that leads to itself
            self._depth += 1
            if self._depth < MOST_DEPTH:
                self._defined[node] = self._define(node)
            self._depth -= 1
        return self._defined[node]

    def _define(self, node: ast.expr) -> Function | ast.ClassDef | None:
        if isinstance(node, ast.Name):
            for scope in (one for one in self.parents(node) if isinstance(one, SCOPES)):
                if (scope, node.id) in self.links.definitions:
                    return self.links.definitions[scope, node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            return self.method(self.class_of(node), node.attr)
        name = self.name(node)
        found = self._find_imported(name, self._path_of(node)) if "." in name and "?" not in name else None
        if found is None and isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Constant):
            classes = (self.definition(origin.func) for origin in self.made(node.value))
            made = next((each for each in classes if isinstance(each, ast.ClassDef)), None)
            return self.method(made, node.attr)
        return found

    def _path_of(self, node: ast.AST) -> str:
        """The file of the module that contains a node."""
        if self.is_own(node):
            return self.module.path
        read = (one for one in self._modules.values() if one is not None)
        return next((one.path for one in read if node in one.links.parents), self.module.path)

    def method(self, owner: ast.AST | None, name: str, depth: int = 0) -> Function | None:
        """A method of a class or of its bases."""
        if not isinstance(owner, ast.ClassDef) or depth > 4:
            return None
        found = self.links.definitions.get((owner, name))
        if isinstance(found, FUNCTIONS):
            return found
        inherited = (self.method(self.definition(base), name, depth + 1) for base in owner.bases[:4])
        return next((one for one in inherited if one is not None), None)

    def derives(self, owner: ast.AST | None, pattern: str, depth: int = 0) -> bool:
        """Whether the name of a base class matches this pattern."""
        bases = owner.bases[:4] if isinstance(owner, ast.ClassDef) and depth <= 4 else []
        return any(
            re.search(pattern, self.name(base)) or self.derives(self.definition(base), pattern, depth + 1)
            for base in bases
        )

    def _find_imported(self, name: str, path: str, hops: int = 0) -> Function | ast.ClassDef | None:
        """The definition of a full name in the modules near a file, also through modules that only import it."""
        parts = name.lstrip(".").split(".")
        for at in range(len(parts) - 1, max(0, len(parts) - 3), -1):
            file = find_module(os.path.dirname(path), tuple(parts[:at]))
            if file is None:
                continue
            module = self._read(file)
            if module is None:
                return None
            found = module.links.definitions.get((module.tree, parts[at]))
            if at == len(parts) - 2 and isinstance(found, ast.ClassDef):
                return self.method(found, parts[-1])
            if found is None and hops < 3 and parts[at] in module.aliases:
                return self._find_imported(module.aliases[parts[at]], file, hops + 1)
            return found if at == len(parts) - 1 else None
        return None

    def _read(self, path: str) -> PythonModule | None:
        if path not in self._modules:
            module = self._modules[path] = read_module(path) if len(self._modules) < MOST_MODULES else None
            if module is not None and module is not self.module:
                self.links = self.links.join(module.links)
        return self._modules[path]

    def events(self, container: Loop | Scope) -> tuple[LoopCall, ...]:
        """The calls that a loop's body or a function makes, in the order in which they run; known functions are
        followed."""
        if container in self._events:
            return self._events[container]
        self._events[container] = ()  # for a function that calls itself
        found: list[LoopCall] = []
        self._depth += 1
        scope = container if isinstance(container, SCOPES) else self.scope(container)
        for call in list(self.links.calls.get(scope, ())):
            if len(found) > MOST_EVENTS or (container is not self.tree and not self.within(call, container)):
                continue
            tests = tuple(self.conditions(call, container))
            sure = not isinstance(container, ast.Module) and self.runs_each_time(call, container)
            definition = self.definition(call.func) if self._depth < MOST_DEPTH else None
            if isinstance(definition, FUNCTIONS):
                found += [
                    replace(one, site=call, tests=(*tests, *one.tests), is_certain=sure and one.is_certain)
                    for one in self.events(definition)
                ]
            found.append(LoopCall(call, self.name(call.func), call, tests, sure))
        self._depth -= 1
        self._events[container] = tuple(found)
        return self._events[container]

    def loop_source(self, loop: ast.AST) -> ast.expr | None:
        """The object that a for loop iterates over, without enumerate, tqdm and the like."""
        return self.unwrap(loop.iter) if isinstance(loop, (*FORS, ast.comprehension)) else None

    def unwrap(self, value: ast.expr) -> ast.expr:
        """The argument of enumerate, tqdm and the like."""
        for _ in range(MOST_DEPTH):
            bound = self.reaching(value)[:1] if isinstance(value, ast.Name) else []
            inner = bound[0].value if bound else value
            last = self.name(inner.func).rpartition(".")[2] if isinstance(inner, ast.Call) else ""
            if not (isinstance(inner, ast.Call) and inner.args and last in _WRAPPERS):
                break
            value = inner.args[0]
        return value

    def said(self, value: ast.AST) -> list[ast.AST]:
        """The nodes of an expression, and those of the values bound to its names."""
        found = list(ast.walk(value))[:200]
        for node in tuple(found):
            if isinstance(node, (ast.Name, ast.Attribute)):
                found += [part for binding in self.reaching(node)[:3] for part in list(ast.walk(binding.value))[:60]]
        return found

    def mentions(self, value: ast.AST, pattern: re.Pattern[str]) -> bool:
        """Whether a name or text in an expression, or in the values bound to its names, matches this pattern."""
        return any(pattern.search(word) for node in self.said(value) for word in list_words(node))


def list_words(node: ast.AST) -> Iterator[str]:
    """The names and text of a node."""
    for name in ("id", "attr", "arg", "value"):
        word = getattr(node, name, None)
        if isinstance(word, str):
            yield word


def _is_apart(inner: ast.AST, loop: ast.AST) -> bool:
    """Whether it is the object that a loop iterates over, or is in its ``else``: both run once."""
    return isinstance(loop, LOOPS) and (inner is getattr(loop, "iter", None) or inner in loop.orelse)
