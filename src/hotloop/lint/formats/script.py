"""A Python file -> Script: what its names are bound to, its calls by their full names, and its training steps."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintEdit, LintFinding
from hotloop.lint.files import MOST_BYTES, LintFormat, NotRead, SourceFile, Start, Surroundings

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.Module
Loop = ast.For | ast.AsyncFor | ast.While
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.Module)
FORS = (ast.For, ast.AsyncFor)
LOOPS = (*FORS, ast.While)
MOST_DEPTH = 24
"""Of definitions and expressions that are followed: beyond that a value is unknown."""
MOST_EVENTS = 3000
MOST_MODULES = 12
_MARKS = frozenset(
    kind
    for base in (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
    for kind in base.__subclasses__()
)
"""Nodes that all trees share, such as the plus of ``a + b``."""
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
_WRAPPERS = (
    "enumerate",
    "tqdm",
    "trange",
    "zip",
    "islice",
    "iter",
    "cycle",
    "track",
    "prange",
    "chain",
    "list",
    "log_every",
)
_OPTIMIZER_NAME = re.compile(r"(?i)optim|(^|_)opt(_|$|[a-z]?\d*$)")
_NOT_OPTIMIZER = re.compile(r"(?i)sched|scaler|env|prof|warmup|meter|bar|logger|engine|ema")
ROLES = {
    "optimizer": re.compile(
        r"^torch\.optim\.(?!lr_scheduler|swa_utils)\w+$|(^|\.)(Adam\w*|SGD|RMSprop|Lion\w*|Lamb|LAMB|Muon)$"
    ),
    "scheduler": re.compile(
        r"lr_scheduler\.\w+$|(^|\.)(get_\w*schedule\w*|\w+(LR|LRScheduler|LROnPlateau|WarmRestarts))$"
    ),
    "wrapped": re.compile(r"(^|\.)(DistributedDataParallel|DDP|FullyShardedDataParallel|FSDP|DataParallel)$"),
    "loader": re.compile(r"(^|\.)(\w*DataLoader)$"),
    "scaler": re.compile(r"(^|\.)(GradScaler|ShardedGradScaler)$"),
    "compiled": re.compile(r"^torch\.compile$"),
}
"""What an object is, by the full name of what made it."""
_SAME = frozenset(
    (
        "to",
        "cuda",
        "cpu",
        "half",
        "float",
        "bfloat16",
        "double",
        "train",
        "eval",
        "requires_grad_",
        "unwrap",
        "apply",
        "contiguous",
        "share_memory",
        "prepare",
        "prepare_model",
        "wrap",
        "setup",
        "setup_module",
        "device_put",
        "compile",
    )
)
"""Calls that give back the object, or one in its place."""
_DETACHES = frozenset(
    (
        "detach",
        "detach_",
        "item",
        "tolist",
        "numpy",
        "argmax",
        "argsort",
        "nonzero",
        "eq",
        "ne",
        "ge",
        "gt",
        "le",
        "lt",
        "bool",
        "int",
        "long",
        "size",
        "numel",
        "dim",
        "sign",
        "round",
        "byte",
        "isnan",
        "isinf",
    )
)
"""Methods and functions whose result has no gradient."""
_PLAIN = frozenset(("float", "int", "len", "str", "bool", "round", "range", "torch.tensor", "isinstance", "getattr"))
_LOSS = re.compile(r"(?i)loss|criterion|objective")
_MODEL = re.compile(
    r"(?i)(^|_)(model|net|network|module|generator|discriminator|student|classifier|unet|policy|actor|critic)(_|\d|$)"
)
_FIELDS = frozenset(("loss", "logits", "last_hidden_state", "hidden_states", "T", "mT", "real", "values"))
_SHAPES = ("squeeze", "view", "flatten", "reshape", "float", "contiguous")
NO_GRAD = (".no_grad", ".inference_mode")


@dataclass(frozen=True, slots=True)
class Binding:
    """A value that a name takes: ``at`` is the element of it where it is unpacked, -1 for each element of a loop."""

    value: ast.AST
    statement: ast.AST
    at: int | None = None


@dataclass(frozen=True, slots=True)
class LoopCall:
    """A call that a piece of code makes, itself or in a function that it calls. ``site`` is the call in that piece,
    ``tests`` decide whether it is made; ``is_certain``: each time."""

    call: ast.Call
    name: str
    site: ast.Call
    tests: tuple[ast.AST, ...]
    is_certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStep:
    """What runs once per step: a loop, or a function that a loop calls.

    ``events`` are its calls in the order in which they run; ``backwards`` and ``steps`` those of backward and of an
    optimizer's step.
    """

    container: Loop | Function
    scope: Scope
    """The function or module around the loop; the function itself where it is the container."""
    loop: Loop
    """The loop whose iterations are the steps: the container, or the one that calls it."""
    events: tuple[LoopCall, ...]
    backwards: tuple[LoopCall, ...]
    steps: tuple[LoopCall, ...]

    def find(self, *endings: str) -> list[LoopCall]:
        """Events by the last part of their names."""
        return [event for event in self.events if event.name.rpartition(".")[2] in endings]


class ModuleIndex:
    """A module's tree with what leads from node to node; made once, for all scripts that lead to it."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path, self.tree = path, tree
        self.nodes: list[ast.AST] = [tree]
        self.parents: dict[ast.AST, ast.AST] = {}
        self.owners: dict[ast.AST, ast.AST] = {}
        self.of: dict[type, list[Any]] = defaultdict(list)
        self.definitions: dict[tuple[ast.AST, str], Function | ast.ClassDef] = {}
        self.bindings: dict[tuple[ast.AST, str], list[Binding]] = {}
        self.scope_calls: dict[ast.AST, list[ast.Call]] = defaultdict(list)
        self.calls_by_name: dict[str, list[ast.Call]] = defaultdict(list)
        self.leaves: dict[ast.AST, list[ast.stmt]] = defaultdict(list)
        nodes, parents, owners, of = self.nodes, self.parents, self.owners, self.of
        for node in nodes:  # grows while it is read: breadth first, without recursion
            kind = type(node)
            owner = node if kind in _OWNERS else owners[node]
            of[kind].append(node)
            for value in vars(node).values():
                if type(value) is list:
                    children = value
                elif isinstance(value, ast.AST) and type(value) not in _MARKS:
                    children = [value]
                else:
                    continue
                for child in children:
                    if isinstance(child, ast.AST):
                        parents[child], owners[child] = node, owner
                        nodes.append(child)
        self.aliases = dict(_list_aliases([*self.of[ast.Import], *self.of[ast.ImportFrom]]))
        self.names = {one: self.aliases[one.id] for one in self.of[ast.Name] if one.id in self.aliases}
        for node in self.of[ast.Call]:
            self.scope_calls[self.scope(node)].append(node)
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            self.calls_by_name[name].append(node)
        for node in (*self.of[ast.Continue], *self.of[ast.Break], *self.of[ast.Return]):
            self.leaves[self.scope(node)].append(node)
        for node in (*self.of[ast.FunctionDef], *self.of[ast.AsyncFunctionDef], *self.of[ast.ClassDef]):
            self.definitions.setdefault((self.owners[node], node.name), node)
        pairs = [(pair, node) for kind in _BINDS for node in self.of[kind] for pair in _bind(node)]
        for (target, binding), node in sorted(pairs, key=lambda pair: _start(pair[0][0])):
            if target not in self.parents:
                self.parents[target], self.owners[target] = node, self.owners[node]
            self.bindings.setdefault((self.home(target), dotted(target)), []).append(binding)
        for calls in self.scope_calls.values():
            calls.sort(key=_end)

    def scope(self, node: ast.AST) -> ast.AST:
        """The function or module around a node."""
        owner = self.owners.get(node, self.tree)
        while isinstance(owner, ast.ClassDef):
            owner = self.owners[owner]
        return owner

    def home(self, target: ast.AST) -> ast.AST:
        """What a name belongs to: its function, the class of ``self.x``, else the module."""
        owner = self.owners.get(target, self.tree)
        if isinstance(target, ast.Name):
            return owner
        while dotted(target).startswith(("self.", "cls.")) and owner is not self.tree:
            if isinstance(owner, ast.ClassDef):
                return owner
            owner = self.owners[owner]
        return self.tree


@lru_cache(maxsize=64)
def index_module(path: str, text: str) -> ModuleIndex:
    """The index of a module's text. Raises what ``ast.parse`` raises."""
    return ModuleIndex(path, ast.parse(text))


def dotted(node: ast.AST, names: Mapping[ast.AST, str] = MappingProxyType({})) -> str:
    """``a.b.c`` of an expression; a part that is no name is ``?``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(names.get(node, node.id) if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


class LintedScript:
    """A parsed file, with indexes that rules share. Modules beside it are read where a name leads there.

    ``start`` is the job that warns it by a signal which nothing handles, if a file beside it is one.
    """

    def __init__(self, path: str, text: str, index: ModuleIndex, start: Start | None = None) -> None:
        self.start = start
        self.path = path
        self.text = text
        self.tree = index.tree
        self.lines = re.split(r"\r\n|\r|\n", text)
        self.nodes = index.nodes
        self.of = index.of
        self._own = index
        self._indexes: dict[ast.AST, ModuleIndex] = {}
        self._parents: dict[ast.AST, ast.AST] = {}
        self._owners: dict[ast.AST, ast.AST] = {}
        self._modules: dict[str, ModuleIndex | None] = {}
        self._definitions: dict[tuple[ast.AST, str], Function | ast.ClassDef] = {}
        self._bindings: dict[tuple[ast.AST, str], list[Binding]] = {}
        self._scope_calls: dict[ast.AST, list[ast.Call]] = {}
        self._calls_by_name: dict[str, list[ast.Call]] = {}
        self._leaves: dict[ast.AST, list[ast.stmt]] = {}
        self._names: dict[ast.AST, str] = {}
        self._defined: dict[ast.AST, Function | ast.ClassDef | None] = {}
        self._events: dict[ast.AST, tuple[LoopCall, ...]] = {}
        self._gradients: dict[ast.AST, str] = {}
        self._texts: dict[str, bool] = {}
        self._depth = 0
        self._add(index)

    def _add(self, index: ModuleIndex) -> None:
        """What a module holds becomes known."""
        self._indexes[index.tree] = index
        self._parents.update(index.parents)
        self._owners.update(index.owners)
        self._definitions.update(index.definitions)
        self._bindings.update(index.bindings)
        self._scope_calls.update(index.scope_calls)
        self._leaves.update(index.leaves)
        self._names.update(index.names)
        for name, calls in index.calls_by_name.items():
            self._calls_by_name[name] = self._calls_by_name.get(name, []) + calls

    def has(self, pattern: str) -> bool:
        """Whether the file's text has a pattern; the answer is kept."""
        if pattern not in self._texts:
            self._texts[pattern] = re.search(pattern, self.text) is not None
        return self._texts[pattern]

    def _owner(self, node: ast.AST) -> ast.AST:
        return self._owners.get(node, self.tree)

    def _home(self, target: ast.AST) -> ast.AST:
        return self._index_of(target).home(target)

    def _index_of(self, node: ast.AST) -> ModuleIndex:
        """The module that a node stands in."""
        if node in self._own.parents or len(self._indexes) == 1:
            return self._own
        return next((one for one in self._indexes.values() if node in one.parents), self._own)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class around a node."""
        owner: ast.AST | None = self._owners.get(node)
        while owner is not None and not isinstance(owner, ast.ClassDef):
            owner = self._owners.get(owner)
        return owner

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """What encloses a node, from the inside out."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """The function or module that a node's code belongs to."""
        owner = self._owners.get(node, self.tree)
        while not isinstance(owner, SCOPES):
            owner = self._owners[owner]
        return owner

    def is_own(self, node: ast.AST) -> bool:
        """Whether a node stands in this file, and not in a module beside it."""
        return node is self.tree or node in self._own.parents

    def name(self, node: ast.AST) -> str:
        """Dotted name of what an expression refers to, imports resolved: ``optim.Adam`` is ``torch.optim.Adam``.

        A part that is no name is ``?``, so that ``scaler.scale(loss).backward`` ends in ``.backward``.
        """
        return dotted(node, self._names)

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """Every call of the file with the full name of what is called, by line."""
        found = [(node, self.name(node.func)) for node in self.of[ast.Call]]
        return sorted(found, key=lambda one: (one[0].lineno, one[0].col_offset))

    @cached_property
    def _calls_by_end(self) -> dict[str, list[tuple[ast.Call, str]]]:
        found: dict[str, list[tuple[ast.Call, str]]] = {}
        for call, name in self.calls:
            found.setdefault(name.rpartition(".")[2], []).append((call, name))
        return found

    def calls_of(self, *names: str) -> list[ast.Call]:
        """Calls by full name, or by its last part for a name that begins with a dot, by line."""
        found = [
            call
            for one in names
            for call, name in self._calls_by_end.get(one.rpartition(".")[2], ())
            if (f".{name}".endswith(one) if one.startswith(".") else name == one)
        ]
        return sorted(found, key=_start) if len(names) > 1 else found

    def receiver(self, call: ast.Call) -> str:
        """Name of the object whose method a call calls; empty where it calls no method."""
        return self.name(call.func.value) if isinstance(call.func, ast.Attribute) else ""

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What encloses a node directly."""
        return self._parents.get(node)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that an expression belongs to."""
        return next(one for one in (node, *self.parents(node)) if isinstance(one, ast.stmt))

    def block(self, node: ast.AST) -> ast.AST:
        """What holds the statement that an expression belongs to."""
        return self._parents[self.statement(node)]

    def within(self, node: ast.AST, container: ast.AST) -> bool:
        """Whether a node's code runs as part of the container, and not in a function that is defined there."""
        inner = node
        for one in self.parents(node):
            if one is container:
                is_source = isinstance(one, FORS) and inner is one.iter
                return not is_source and not _is_after(inner, one)
            if isinstance(one, (*SCOPES, ast.Lambda, ast.ClassDef)):
                return False
            inner = one
        return False

    def conditions(self, node: ast.AST, container: ast.AST) -> list[ast.AST]:
        """What decides whether a node runs each time the container's body does: tests, handlers, inner loops."""
        found: list[ast.AST] = []
        inner = node
        for one in self.parents(node):
            if one is container:
                return found
            if isinstance(one, (ast.If, ast.IfExp)):
                if inner is not one.test:
                    found.append(one.test)
            elif isinstance(one, (ast.ExceptHandler, ast.Match)) or (
                isinstance(one, LOOPS) and not (isinstance(one, FORS) and inner is one.iter)
            ):
                found.append(one)
            elif isinstance(one, ast.BoolOp) and inner is not one.values[0]:
                found += one.values[:-1]
            inner = one
        return found

    def exclude_each_other(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether two nodes are in different branches of one ``if``."""
        mine, its = {one, *self.parents(one)}, {other, *self.parents(other)}
        tests = [each for each in mine & its if isinstance(each, ast.If)]
        return any(
            not mine.isdisjoint(first) and not its.isdisjoint(second)
            for each in tests
            for first, second in ((each.body, each.orelse), (each.orelse, each.body))
        )

    def runs_each_time(self, node: ast.AST, container: Loop | Function) -> bool:
        """Whether nothing decides that, and no ``continue`` or ``return`` before it may pass over it."""
        if not self.within(node, container) or self.conditions(node, container):
            return False
        scope, line = self.scope(node), getattr(node, "lineno", 0)
        return not any(one.lineno < line and self.within(one, container) for one in self._leaves.get(scope, ()))

    def reaching(self, node: ast.AST) -> list[Binding]:
        """What a name (``x``, ``self.x``) may hold where it is read: the last binding before it, those that a test may
        pass over, and those that an iteration leaves to the next."""
        name = dotted(node)
        home: ast.AST | None = self._home(node)
        while home is not None and (home, name) not in self._bindings:
            home = next((one for one in self.parents(home) if isinstance(one, SCOPES)), None)
        if home is None:
            return []
        bindings = self._bindings[home, name]
        if home is not self._home(node) or not isinstance(home, SCOPES) or len(bindings) == 1:
            return bindings[-8:]
        around, start, found = {node, *self.parents(node)}, _start(node), []
        before = [one for one in bindings if isinstance(one.value, ast.arg) or _end(one.statement) <= start]
        before += [one for one in bindings if one.at == -1 and one.statement in around and one not in before]
        for one in reversed(before):
            found.append(one)
            if self._covers(one.statement, around):
                break
        loop = next((one for one in self.parents(node) if isinstance(one, LOOPS)), None)
        if not found or (loop is not None and _start(found[-1].statement) < _start(loop)):
            found += [
                one for one in bindings if one not in found and (loop is None or self.within(one.statement, loop))
            ]
        return found or bindings[:8]

    def _covers(self, statement: ast.AST, around: set[ast.AST]) -> bool:
        """Whether a statement has run whenever something below these has."""
        block = statement if statement in around else self._parents.get(statement, statement)
        while isinstance(block, (ast.With, ast.AsyncWith, ast.Try)) and block not in around:
            block = self._parents[block]
        return block in around or isinstance(statement, ast.arguments)

    def origins(
        self, node: ast.AST, *, inside: bool = False, through: Sequence[str] = (), at: int | None = None
    ) -> list[ast.AST]:
        """Where a value may come from: names followed to what they were bound to, parameters to the arguments of their
        callers, functions to what they return. ``inside``: a wrapped model counts as the model; ``through``: calls
        that count as their first argument; ``at``: the element of it."""
        found: list[ast.AST] = []
        todo: list[tuple[ast.AST, int | None]] = [(node, at)]
        seen: set[tuple[ast.AST, int | None]] = set()
        while todo and len(seen) < 60:
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
        """What a call gives back, where that is an object that it was given or a function's result."""
        last = self.name(call.func).rpartition(".")[2]
        if (
            last in _SAME
            and call.args
            and (last.startswith(("prepare", "setup", "wrap")) or (inside and last == "compile"))
        ):
            return [(call.args[at or 0], None)] if (at or 0) < len(call.args) else []
        if last in _SAME and last != "compile" and isinstance(call.func, ast.Attribute):
            return [(call.func.value, at)]
        if inside and call.args and (ROLES["wrapped"].search(last) or "convert_sync" in last):
            return [(call.args[0], at)]
        definition = self.definition(call.func)
        if not isinstance(definition, FUNCTIONS):
            return []
        return [(one, at) for one in self.results(definition)]

    def results(self, function: Function) -> list[ast.expr]:
        """What a function returns."""
        returns = (one for one in self._leaves.get(function, ()) if isinstance(one, ast.Return))
        return [one.value for one in returns if one.value is not None]

    def given(self, parameter: ast.arg) -> list[ast.expr]:
        """What the callers pass for a parameter."""
        function = next((one for one in self.parents(parameter) if isinstance(one, (*FUNCTIONS, ast.Lambda))), None)
        if not isinstance(function, FUNCTIONS):
            return []
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        is_method = self._parents[function] in self._definitions.values() and names[:1] in (["self"], ["cls"])
        found: list[ast.expr] = []
        for call in self.callers(function)[:8]:
            at = names.index(parameter.arg) - is_method if parameter.arg in names else len(call.args)
            value = call.args[at] if 0 <= at < len(call.args) else keyword(call, parameter.arg)
            found += [value] if value is not None else []
        return found

    def callers(self, function: Function) -> list[ast.Call]:
        """Calls of a function or method; for ``__init__`` those of its class."""
        owner = self._owner(function)
        is_init = function.name == "__init__" and isinstance(owner, ast.ClassDef)
        name, sought = (owner.name, owner) if is_init and isinstance(owner, ast.ClassDef) else (function.name, function)
        return [one for one in self._calls_by_name.get(name, ()) if self.definition(one.func) is sought]

    def callers_of(self, node: ast.AST) -> list[ast.Call]:
        """Calls of the function around a node."""
        scope = self.scope(node)
        return self.callers(scope) if isinstance(scope, FUNCTIONS) else []

    def definition(self, node: ast.expr) -> Function | ast.ClassDef | None:
        """The function or class, of this file or of a module beside it, that an expression names."""
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
                if (scope, node.id) in self._definitions:
                    return self._definitions[scope, node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            return self.method(self.class_of(node), node.attr)
        name = self.name(node)
        if "." in name and "?" not in name:
            found = self._find_imported(name, self._index_of(node).path)
            if found is not None:
                return found
        if isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Constant):
            for origin in self.origins(node.value):
                made = self.definition(origin.func) if isinstance(origin, ast.Call) else None
                if isinstance(made, ast.ClassDef):
                    return self.method(made, node.attr)
        return None

    def method(self, owner: ast.ClassDef | None, name: str, depth: int = 0) -> Function | None:
        """A method of a class or of its bases."""
        if owner is None or depth > 4:
            return None
        found = self._definitions.get((owner, name))
        if isinstance(found, FUNCTIONS):
            return found
        bases = (self.definition(base) for base in owner.bases[:4])
        inherited = (self.method(base, name, depth + 1) for base in bases if isinstance(base, ast.ClassDef))
        return next((one for one in inherited if one is not None), None)

    def derives(self, owner: ast.ClassDef | None, pattern: str, depth: int = 0) -> bool:
        """Whether a base of the class bears a name of this pattern."""
        if owner is None or depth > 4:
            return False
        for base in owner.bases[:4]:
            above = self.definition(base)
            if re.search(pattern, self.name(base)) or (
                isinstance(above, ast.ClassDef) and self.derives(above, pattern, depth + 1)
            ):
                return True
        return False

    def _find_imported(self, name: str, path: str, hops: int = 0) -> Function | ast.ClassDef | None:
        """What a full name means in the modules beside a file; through modules that only import it, too."""
        parts = name.lstrip(".").split(".")
        for at in range(len(parts) - 1, 0, -1):
            file = find_module(os.path.dirname(path), tuple(parts[:at])) if at >= len(parts) - 2 else None
            if file is None:
                continue
            if file not in self._modules:
                self._modules[file] = read_module(file) if len(self._modules) < MOST_MODULES else None
                if (module := self._modules[file]) is not None:
                    self._add(module)
            module = self._modules[file]
            if module is None:
                return None
            found = module.definitions.get((module.tree, parts[at]))
            if at == len(parts) - 2 and isinstance(found, ast.ClassDef):
                return self.method(found, parts[-1])
            if found is None and hops < 3 and parts[at] in module.aliases:
                return self._find_imported(module.aliases[parts[at]], file, hops + 1)
            return found if at == len(parts) - 1 else None
        return None

    def role(self, node: ast.AST) -> str:
        """What an object is, of ROLES; empty where it is none of them or nobody knows."""
        for origin in self.origins(node):
            name = self.name(origin.func) if isinstance(origin, ast.Call) else ""
            for role, pattern in ROLES.items():
                if name and pattern.search(name):
                    return role
        return ""

    def events(self, container: Loop | Scope) -> tuple[LoopCall, ...]:
        """The calls that a loop's body or a function makes, in the order in which they run; functions that are known
        are followed."""
        if container in self._events:
            return self._events[container]
        self._events[container] = ()  # for a function that calls itself
        found: list[LoopCall] = []
        scope = container if isinstance(container, SCOPES) else self.scope(container)
        self._depth += 1
        for call in list(self._scope_calls.get(scope, ())):
            if len(found) > MOST_EVENTS or (container is not self.tree and not self.within(call, container)):
                continue
            tests = tuple(self.conditions(call, container))
            sure = isinstance(container, (*LOOPS, *FUNCTIONS)) and self.runs_each_time(call, container)
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

    def line(self, event: LoopCall) -> int:
        """Where an event is in this file."""
        return event.call.lineno if self.is_own(event.call) else event.site.lineno

    def report(
        self,
        place: LoopCall | ast.AST | bool | None,
        severity: Severity,
        message: str,
        advice: str,
        *,
        is_sure: bool = True,
        edits: tuple[LintEdit, ...] = (),
    ) -> list[LintFinding]:
        """A finding at a place; none where there is no fault, or where it is that of another file."""
        node = place.call if isinstance(place, LoopCall) and self.is_own(place.call) else getattr(place, "site", place)
        if not isinstance(node, ast.AST) or not self.is_own(node):
            return []
        confidence = Confidence.CERTAIN if is_sure else Confidence.LIKELY
        line = getattr(node, "lineno", 1)
        return [
            LintFinding(
                severity=severity, line=line, message=message, advice=advice, edits=edits, confidence=confidence
            )
        ]

    @cached_property
    def made(self) -> dict[ast.AST, set[str]]:
        """The optimizers, schedulers and scalers that are built, each with the last parts of its names."""
        found: dict[ast.AST, set[str]] = defaultdict(set)
        pattern = re.compile("|".join(ROLES[one].pattern for one in ("optimizer", "scheduler", "scaler")))
        built = {call for call, name in self.calls if pattern.search(name)}
        for (_, name), bindings in self._own.bindings.items() if built else ():
            for one in (one for one in bindings if one.at != -1 and not isinstance(one.value, ast.arg)):
                for origin in built.intersection(self.origins(one.value, at=one.at)):
                    found[origin].add(name.rpartition(".")[2])
        return found

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """What is assigned to each name (``x``, ``self.x``), anywhere in the file."""
        found: dict[str, list[ast.expr]] = {}
        for (home, name), bindings in self._bindings.items():
            if self.is_own(home):
                found.setdefault(name, []).extend(
                    one.value
                    for one in bindings
                    if isinstance(one.value, ast.expr)
                    and isinstance(one.statement, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
                )
        return found

    def values(self, node: ast.AST) -> list[ast.expr]:
        """What the file assigns to that which an expression names; empty where it names nothing that is assigned."""
        return self.assigned.get(dotted(node), [])

    def said(self, value: ast.AST) -> list[ast.AST]:
        """The nodes of an expression, and of what its names are bound to."""
        found = list(ast.walk(value))[:200]
        for one in tuple(found):
            if isinstance(one, (ast.Name, ast.Attribute)):
                found += [part for binding in self.reaching(one)[:3] for part in list(ast.walk(binding.value))[:60]]
        return found

    def mentions(self, value: ast.AST, pattern: re.Pattern[str]) -> bool:
        """Whether an expression, or what its names are bound to, has a name or text of this pattern."""
        return any(pattern.search(word) for one in self.said(value) for word in _words(one))

    @cached_property
    def loaders(self) -> list[ast.Call]:
        """Where DataLoaders are built."""
        return [call for call, name in self.calls if ROLES["loader"].search(name)]

    def stepped(self, call: ast.Call) -> str:
        """Name of the optimizer that a ``.step`` call steps; empty where it is none."""
        receiver = self.receiver(call)
        last = receiver.split(".")[-1]
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
            return ""
        if call.args and re.search(r"(?i)scaler|fabric", last):
            return self.name(call.args[0])
        role = self.role(call.func.value)
        if role:
            return receiver if role == "optimizer" else ""
        return receiver if _OPTIMIZER_NAME.search(last) and not _NOT_OPTIMIZER.search(last) else ""

    def loops_around(self, node: ast.AST) -> list[Loop]:
        """The loops of the same function around a node, from the inside out."""
        found: list[Loop] = []
        inner = node
        for one in self.parents(node):
            if isinstance(one, (*SCOPES, ast.Lambda, ast.ClassDef)):
                break
            is_source = isinstance(one, FORS) and inner is one.iter
            if isinstance(one, LOOPS) and not is_source and not _is_after(inner, one):
                found.append(one)
            inner = one
        return found

    @cached_property
    def training(self) -> list[LoopStep]:
        """The steps of the file's trainings, each once."""
        found: dict[ast.AST, LoopStep] = {}
        for call in self.calls_of(".backward", ".manual_backward"):
            function = self.scope(call)
            if isinstance(function, FUNCTIONS) and function.name in ("backward", "closure"):
                continue
            for container, loop in self._find_steps(call)[:1]:
                if container in found:
                    continue
                events = self.events(container)
                found[container] = LoopStep(
                    container=container,
                    scope=container if isinstance(container, FUNCTIONS) else self.scope(container),
                    loop=loop,
                    events=events,
                    backwards=tuple(one for one in events if one.name.endswith(("backward", ".manual_backward"))),
                    steps=tuple(one for one in events if one.name.endswith(".step") and self.stepped(one.call)),
                )
        return [step for step in found.values() if step.backwards]

    def _find_steps(self, backward: ast.Call) -> list[tuple[Loop | Function, Loop]]:
        """The innermost loop with this backward and a step, else the innermost loop; for a function without a loop,
        itself where it steps, else the loop that calls it."""
        found: list[tuple[Loop | Function, Loop]] = []
        node: ast.AST = backward
        function: Function | None = None
        for _ in range(4):
            loops = self.loops_around(node)
            for loop in loops:
                found.append((loop, loop))
            if function is not None and loops and self._steps(function):
                found.insert(0, (function, loops[0]))
            scope = self.scope(node)
            callers = self.callers(scope) if isinstance(scope, FUNCTIONS) and not loops else []
            callers = [one for one in callers if self.is_own(one)]
            if not callers or not isinstance(scope, FUNCTIONS):
                break
            function = scope if function is None or not self._steps(function) else function
            node = next((one for one in callers if self.loops_around(one)), callers[0])
        return [one for one in found if self._steps(one[0])][:1] or found[:1]

    def _steps(self, container: Loop | Function) -> bool:
        return any(one.name.endswith(".step") and self.stepped(one.call) for one in self.events(container))

    @cached_property
    def epochs(self) -> list[tuple[Loop, LoopStep]]:
        """Each loop around a training's steps, from the inside out, with those steps."""
        found: list[tuple[Loop, LoopStep]] = []
        for step in self.training:
            node: ast.AST = step.loop
            found.append((step.loop, step))
            for _ in range(3):
                found += [(loop, step) for loop in self.loops_around(node)]
                scope = self.scope(node)
                callers = (
                    [one for one in self.callers(scope) if self.is_own(one)] if isinstance(scope, FUNCTIONS) else []
                )
                if not callers:
                    break
                node = callers[0]
        return found

    @cached_property
    def models(self) -> dict[ast.AST, ast.Call]:
        """Where the models come from whose parameters an optimizer takes, with the optimizer."""
        found: dict[ast.AST, ast.Call] = {}
        for call, name in self.calls:
            if ROLES["optimizer"].search(name):
                said = [
                    part for one in (*call.args, *(each.value for each in call.keywords)) for part in self.said(one)
                ]
                for part in said:
                    if isinstance(part, ast.Attribute) and part.attr in (
                        "parameters",
                        "named_parameters",
                        "params_groups",
                    ):
                        found.update(dict.fromkeys(self.origins(part.value, inside=True), call))
        return found

    def is_model(self, node: ast.AST) -> bool:
        """Whether an object is a model that is trained here, as far as anything says."""
        origins = self.origins(node, inside=True)
        if any(one in self.models for one in origins):
            return True
        unknown = all(isinstance(one, (ast.arg, ast.Name, ast.Attribute)) for one in origins)
        return unknown and bool(_MODEL.search(self.name(node).rpartition(".")[2]))

    def is_trained(self, node: ast.AST) -> bool:
        """Whether an optimizer has the parameters of an object."""
        return any(one in self.models for one in self.origins(node, inside=True))

    def ends(self, value: ast.AST) -> list[ast.AST]:
        """What computes a value in the end: functions and layers, through names and the models of this file."""
        found: list[ast.AST] = []
        todo = [(one, False) for one in self.origins(value)]
        seen: set[tuple[ast.AST, bool]] = set()
        while todo and len(seen) < 60:
            node, is_layer = todo.pop()
            if (node, is_layer) in seen:
                continue
            seen.add((node, is_layer))
            if not isinstance(node, ast.Call):
                found.append(node)
                continue
            name = self.name(node.func)
            if is_layer:
                built = self.definition(node.func)
                forward = self.method(built, "forward") if isinstance(built, ast.ClassDef) else None
                if forward is not None:
                    todo += [(one, False) for result in self.results(forward) for one in self.origins(result)]
                elif name.endswith("Sequential") and node.args:
                    todo += [(one, True) for one in self.origins(node.args[-1])]
                else:
                    found.append(node)
            elif name.rpartition(".")[2] in _SHAPES and isinstance(node.func, ast.Attribute):
                todo += [(one, False) for one in self.origins(node.func.value)]
            else:
                layers = self.origins(node.func, inside=True)
                known = [(one, True) for one in layers if isinstance(one, ast.Call)]
                todo += known
                found += [] if known else [node]
        return found

    def has_modes(self, model: ast.AST) -> bool:
        """Whether a model behaves otherwise in eval mode, by its classes; that of a library counts as one that does."""
        for origin in self.origins(model, inside=True):
            made = self.definition(origin.func) if isinstance(origin, ast.Call) else None
            name = self.name(origin.func) if isinstance(origin, ast.Call) else ""
            parts = [word for node in ast.walk(made) for word in _words(node)] if made is not None else []
            parts += [self.name(node) for node in ast.walk(origin)] if name.endswith("Sequential") else []
            if re.search(r"torchvision|timm|from_pretrained|transformers|\w_models?\b|smp", name) or any(
                re.search(r"(?i)drop|batch_?norm|resnet|Transformer|backbone", word) for word in parts
            ):
                return True
        return False

    def without_gradients(self, node: ast.AST) -> ast.AST | None:
        """The ``with`` or the decorated function around a node that turns gradients off."""
        for one in self.parents(node):
            items = [each.context_expr for each in one.items] if isinstance(one, (ast.With, ast.AsyncWith)) else []
            items += one.decorator_list if isinstance(one, FUNCTIONS) else []
            for item in items:
                name = self.name(item.func if isinstance(item, ast.Call) else item)
                is_off = isinstance(item, ast.Call) and item.args and constant(item.args[0]) is False
                is_on = isinstance(item, ast.Call) and item.args and constant(item.args[0]) is not True
                if f".{name}".endswith(".enable_grad"):
                    return None
                if (f".{name}".endswith(NO_GRAD) and not is_on) or (name.endswith("set_grad_enabled") and is_off):
                    return one
            if isinstance(one, (*SCOPES, ast.Lambda)):
                break
        return None

    def gradient(self, node: ast.AST, assumed: dict[ast.AST, str] | None = None) -> str:
        """Whether a value has a history: ``graph``, ``cut`` where it lost it here, ``plain``, or empty if unknown."""
        if node in self._gradients and not assumed:
            return self._gradients[node]
        if not assumed:
            self._gradients[node] = ""
        self._depth += 1
        found = self._judge(node, assumed or {}) if self._depth < MOST_DEPTH else ""
        self._depth -= 1
        if not assumed:
            self._gradients[node] = found
        return found

    def _judge(self, node: ast.AST, assumed: dict[ast.AST, str]) -> str:
        def all_of(nodes: Sequence[ast.AST]) -> str:
            return _join([self.gradient(one, assumed) for one in nodes[:30]])

        if isinstance(node, ast.arg):
            given = self.given(node)
            return assumed[node] if node in assumed else all_of(given) if given else ""
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            return "plain"
        if isinstance(node, ast.Compare):
            return "cut" if all_of([node.left, *node.comparators]) in ("graph", "cut") else "plain"
        if isinstance(node, (ast.Name, ast.Attribute)):
            bound = self.reaching(node)
            states = [self._bound(one, assumed) for one in bound]
            if any(one.value in self.losses for one in bound) and "cut" not in states:
                return "graph"
            if bound:
                return "graph" if "graph" in states else states[0] if len(set(states)) == 1 else ""
            if isinstance(node, ast.Attribute):
                inner = self.gradient(node.value, assumed) if node.attr in (*_FIELDS, "data") else ""
                return "cut" if node.attr == "data" and inner == "graph" else inner
            return ""
        if isinstance(node, ast.Call):
            return self._judge_call(node, assumed, all_of)
        if isinstance(
            node, (ast.BinOp, ast.BoolOp, ast.IfExp, ast.Subscript, ast.UnaryOp, ast.Starred, ast.Tuple, ast.List)
        ):
            parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
            parts = (
                parts[:1] if isinstance(node, ast.Subscript) else parts[1:] if isinstance(node, ast.IfExp) else parts
            )
            return all_of(parts)
        if isinstance(node, ast.Dict):
            return all_of(node.values)
        return self.gradient(node.elt, assumed) if isinstance(node, (ast.ListComp, ast.GeneratorExp)) else ""

    def _bound(self, binding: Binding, assumed: dict[ast.AST, str]) -> str:
        value = binding.value
        if binding.at == -1:
            return "plain" if self.iterates_loader(binding.statement) else self.gradient(value, assumed)
        if isinstance(value, (ast.Tuple, ast.List)) and binding.at is not None and binding.at < len(value.elts):
            value = value.elts[binding.at]
        return self.gradient(value, assumed)

    def _judge_call(
        self, call: ast.Call, assumed: dict[ast.AST, str], all_of: Callable[[Sequence[ast.AST]], str]
    ) -> str:
        name = self.name(call.func)
        last = name.rpartition(".")[2]
        values = [*call.args, *(one.value for one in call.keywords)]
        method = call.func.value if isinstance(call.func, ast.Attribute) else None
        is_off = self.without_gradients(call) is not None
        inside = all_of(values if method is None or name.startswith("torch.") else [method, *values[:4]])
        if last in _DETACHES or name in _PLAIN or name.startswith(("numpy.", "np.")):
            return "cut" if inside in ("graph", "cut") else "plain"
        if is_off:
            return "cut"
        if self.is_model(call.func) or (method is not None and last in ("forward", "module") and self.is_model(method)):
            return "graph"
        if _LOSS.search(last) and values:
            return all_of(values)
        if name.startswith("torch.") or name in ("sum", "max", "min"):
            return inside
        definition = self.definition(call.func)
        if isinstance(definition, FUNCTIONS):
            return all_of(self.results(definition))
        return self.gradient(method, assumed) if method is not None else ""

    @cached_property
    def losses(self) -> frozenset[ast.AST]:
        """What was computed and then goes backward under a name."""
        names = [self.loss(one) for one in self.calls_of(".backward", ".manual_backward")]
        return frozenset(
            binding.value
            for one in names
            if isinstance(one, (ast.Name, ast.Attribute))
            for binding in self.reaching(one)
            if binding.at != -1 and not isinstance(binding.value, ast.arg)
        )

    def loss(self, backward: ast.Call) -> ast.expr:
        """What a call of backward starts from: the loss, without a scaler around it."""
        value: ast.expr = backward.func.value if isinstance(backward.func, ast.Attribute) else backward
        if backward.args and re.search(
            r"(?i)accelerator|fabric|engine|manual|self$|^\?$", f"{self.receiver(backward)}"
        ):
            value = backward.args[0]
        while isinstance(value, ast.Call) and self.name(value.func).endswith((".scale", ".scale_loss")) and value.args:
            value = value.args[0]
        return value

    def source(self, node: ast.AST) -> str:
        """Text of an expression on one line, shortened."""
        if not isinstance(node, ast.expr) or not self.is_own(node) or node.end_lineno is None:
            return ""
        lines = [line.encode() for line in self.lines[node.lineno - 1 : node.end_lineno]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        flat = " ".join(b" ".join(lines).decode("utf-8", "replace").split())
        return flat if len(flat) <= 60 else f"{flat[:57]}..."

    def loop_source(self, loop: ast.AST) -> ast.expr | None:
        """What a for loop iterates over, without enumerate, tqdm and the like."""
        return self.unwrap(loop.iter) if isinstance(loop, (*FORS, ast.comprehension)) else None

    def unwrap(self, value: ast.expr) -> ast.expr:
        """What enumerate, tqdm and the like were given."""
        for _ in range(MOST_DEPTH):
            bound = self.reaching(value)[:1] if isinstance(value, ast.Name) else []
            inner = bound[0].value if bound else value
            last = self.name(inner.func).rpartition(".")[2] if isinstance(inner, ast.Call) else ""
            if not (isinstance(inner, ast.Call) and inner.args and last in _WRAPPERS):
                break
            value = inner.args[0]
        return value

    def iterates_loader(self, loop: ast.AST) -> bool:
        """Whether a for loop takes its values from a DataLoader, by what the file builds or by its name."""
        value = self.loop_source(loop)
        if value is None:
            return False
        return self.role(value) == "loader" or bool(re.search(r"(?i)loader", self.name(value).rpartition(".")[2]))


def parse_script(file: SourceFile, around: Surroundings) -> LintedScript | None:
    """None for a file that has nothing to do with torch. Raises NotRead where Python itself could not read it."""
    if not any(word in file.text for word in ("torch", "signal", "lightning", "transformers", "accelerate")):
        return None
    try:
        index = index_module(os.path.abspath(file.path), file.text)
    except SyntaxError as error:
        raise NotRead(f"not Python 3 (line {error.lineno}: {error.msg})") from None
    except ValueError as error:
        raise NotRead(f"not Python ({error})") from None
    except (RecursionError, MemoryError):
        raise NotRead("nested too deeply to be read") from None
    return LintedScript(file.path, file.text, index, around.starts.get(file.path))


@lru_cache(maxsize=4096)
def find_module(folder: str, parts: tuple[str, ...]) -> str | None:
    """The file of a module that is imported from a folder: beside it, or up to three folders above."""
    for up in range(4):
        base = os.path.normpath(os.path.join(folder, *[os.pardir] * up, *parts))
        found = next((one for one in (f"{base}.py", os.path.join(base, "__init__.py")) if os.path.isfile(one)), None)
        if found is not None:
            return found
    return None


def read_module(path: str) -> ModuleIndex | None:
    """The index of a module beside a script; None where it cannot be read, or is too large."""
    try:
        if os.stat(path).st_size > MOST_BYTES >> 2:
            return None
        return index_module(path, Path(path).read_bytes().decode("utf-8-sig", "replace"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _start(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _end(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)


def _join(states: Sequence[str]) -> str:
    """Of a computation with several values: it has the history of any of them."""
    return next((state for state in ("graph", "", "cut", "plain") if state in states), "plain")


def _words(node: ast.AST) -> Iterator[str]:
    for field in ("id", "attr", "arg", "value"):
        word = getattr(node, field, None)
        if isinstance(word, str):
            yield word


def _is_after(statement: ast.AST, loop: ast.AST) -> bool:
    """Whether it stands in the ``else`` of the loop, which runs once, after it."""
    return isinstance(loop, LOOPS) and statement in loop.orelse


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword of a call; None without it."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def has_unpacked(call: ast.Call) -> bool:
    """Whether a call takes arguments that its text does not show (``*x``, ``**x``)."""
    return any(one.arg is None for one in call.keywords) or any(isinstance(one, ast.Starred) for one in call.args)


def constant(node: ast.AST | None) -> object:
    """The value of a literal; Ellipsis for anything else."""
    return node.value if isinstance(node, ast.Constant) else ...


def _bind(node: ast.AST) -> Iterator[tuple[ast.expr, Binding]]:
    """The names that a node binds, each with its value."""
    pairs: list[tuple[ast.expr, ast.AST | None, int | None]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value, None) for target in node.targets]
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr, ast.AugAssign)):
        pairs = [(node.target, node.value, None)]
    elif isinstance(node, (*FORS, ast.comprehension)):
        pairs = [(node.target, node.iter, -1)]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        pairs = [(node.optional_vars, node.context_expr, None)]
    elif isinstance(node, ast.arg):
        name = ast.Name(id=node.arg, ctx=ast.Store(), lineno=node.lineno, col_offset=node.col_offset)
        pairs = [(name, node, None)]
    for target, value, at in pairs:
        if isinstance(target, (ast.Name, ast.Attribute)) and value is not None:
            yield target, Binding(value, node, at)
        elif isinstance(target, (ast.Tuple, ast.List)) and value is not None:
            same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts) and at is None
            for place, one in enumerate(ast.walk(target) if at == -1 else target.elts):
                if isinstance(one, (ast.Name, ast.Attribute)):
                    part = value.elts[place] if same and isinstance(value, (ast.Tuple, ast.List)) else value
                    yield one, Binding(part, node, None if same else place if at is None else at)


def _list_aliases(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.asname:
                    yield one.asname, one.name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (f"{node.module}." if node.module else "")
            for one in node.names:
                yield one.asname or one.name, f"{module}{one.name}"


PYTHON = LintFormat(
    id="python", title="training script", may_name=lambda name: name.endswith(".py"), parse=parse_script, is_sure=True
)
