"""A place in a source file -> its text, the names called there and around it, and whether it runs only Python."""

from __future__ import annotations

import ast
import builtins
import os
import stat
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from hotloop.core.findings import Where

MAX_SOURCE_BYTES = 2 << 20
MAX_TEXT_LENGTH = 400
MAX_CALLS = 256

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Loop = (ast.For, ast.AsyncFor, ast.While)
GRADIENTS = frozenset({"grad", "grads", "gradients"})
MAKES_GRADIENTS = frozenset({"backward", "grad"})
MAY_DRAW = (
    "rand",
    "rng",
    "shuffle",
    "choice",
    "uniform",
    "normal_",
    "bernoulli",
    "multinomial",
    "permutation",
    "dropout",
    "augment",
    "transform",
    "jitter",
    "noise",
)
"""Parts of the names of calls that draw random numbers, or may."""
READS_SAMPLE = frozenset({"__getitem__", "__getitems__"})
Block = (ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match)


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed source file."""

    lines: tuple[str, ...]
    tree: ast.Module


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """Reads each source file once. ``base`` is the folder that relative names start from."""

    base: str = ""
    _modules: dict[str, Module | None] = field(default_factory=dict)
    _methods: dict[str, dict[str, list[tuple[int, int, str]]]] = field(default_factory=dict)

    def module(self, file: str) -> Module | None:
        """The parsed file; None if it cannot be read, is too large, or is not Python."""
        if file not in self._modules:
            text = read_source(os.path.join(self.base, file))
            self._modules[file] = None if text is None else parse_source(text)
        return self._modules[file]

    def qualify(self, where: Where) -> Where:
        """The place with its function's class, if the file defines several functions of that name: two callbacks in one
        file are two functions."""
        module = self.module(where.file)
        if module is None:
            return where
        if where.file not in self._methods:
            self._methods[where.file] = _methods_of(module)
        spans = self._methods[where.file].get(where.function, ())
        if len(spans) < 2:
            return where
        around = [span for span in spans if span[0] <= where.line <= span[1] and span[2]]
        return replace(where, function=f"{max(around)[2]}.{where.function}") if around else where

    def text(self, where: Where) -> str:
        """The line as it is in the file, stripped; empty if it cannot be read."""
        module = self.module(where.file)
        if module is None or where.line > len(module.lines):
            return ""
        return module.lines[where.line - 1].strip()[:MAX_TEXT_LENGTH]

    def is_before_draws(self, stack: Sequence[Where]) -> bool:
        """Whether a sample reads the same in every epoch up to here, by the names that its code calls.

        That is the case if the function that reads samples draws random numbers, but only below its frame of ``stack``
        (outermost first), and no function that it has called on the way draws any.
        """
        reading = [index for index, where in enumerate(stack) if where.function.rpartition(".")[2] in READS_SAMPLE]
        if not reading:
            return False
        seen_draws = False
        for where in stack[reading[0] :]:
            module = self.module(where.file)
            draws = None if module is None else draws_of(module, where.line)
            if draws is None:
                return False
            if draws.lines and (
                min(draws.lines) <= draws.reached or where.function.rpartition(".")[2] not in READS_SAMPLE
            ):
                return False
            seen_draws |= bool(draws.lines)
        return seen_draws


def block_around(module: Module, line: int) -> range | None:
    """Lines of the outermost ``if``, ``with``, ``try`` or ``match`` around a line within its loop or function."""
    block: ast.stmt | None = None
    for node in path_to(module.tree, line):
        if isinstance(node, (*Loop, *Function, ast.ClassDef)):
            block = None
        elif block is None and isinstance(node, Block):
            block = node
    return None if block is None else range(_first_line(block), (block.end_lineno or block.lineno) + 1)


@dataclass(frozen=True, slots=True)
class Draws:
    """``lines`` of a function that may draw random numbers; ``reached`` is the last line of what runs at the place."""

    lines: tuple[int, ...]
    reached: int


def draws_of(module: Module, line: int) -> Draws | None:
    """The draws of the innermost function around a line, and how far it may have come; None outside of functions."""
    path = path_to(module.tree, line)
    inside = next((index for index in reversed(range(len(path))) if isinstance(path[index], Function)), None)
    if inside is None or inside == len(path) - 1:
        return None
    lines = tuple(
        node.lineno
        for node in ast.walk(path[inside])
        if isinstance(node, ast.Call) and any(part in (dotted(node.func) or "").lower() for part in MAY_DRAW)
    )
    # Code in a loop runs both before and after the rest of it.
    outermost = next((node for node in path[inside + 1 :] if isinstance(node, Loop)), path[-1])
    is_block = any(True for _ in statements_in(outermost)) and not isinstance(outermost, Loop)
    return Draws(lines=lines, reached=line if is_block else outermost.end_lineno or line)


def read_source(path: str) -> str | None:
    """The text of a regular file of at most MAX_SOURCE_BYTES; None for anything else. Bad bytes are replaced."""
    try:
        # Not blocking: a recording may name a pipe, and opening one would wait for its other end.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SOURCE_BYTES:
            return None
        with os.fdopen(os.dup(handle), "rb") as file:
            return file.read(MAX_SOURCE_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(handle)


def parse_source(text: str) -> Module | None:
    """The file's lines and syntax tree; None if it is not Python, so that no other file's lines are ever shown."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return Module(lines=tuple(text.splitlines()), tree=tree)


def calls_around(module: Module, line: int) -> tuple[str, ...]:
    """Dotted names called by the statement at ``line``, then by the innermost loop or function around it."""
    path = path_to(module.tree, line)
    if not path:
        return ()
    statement, scope = path[-1], _scope_of(path)
    names = dict.fromkeys(_called_names(own_parts(statement)))
    if scope is not None:
        names.update(dict.fromkeys(_called_names([scope])))
    return tuple(names)[:MAX_CALLS]


def walks_gradients(module: Module, line: int) -> bool:
    """Whether the innermost loop around a line is over gradients or touches a ``.grad``, and computes none itself."""
    scope = _scope_of(path_to(module.tree, line))
    if not isinstance(scope, Loop) or any(
        name.rsplit(".", 1)[-1] in MAKES_GRADIENTS for name in _called_names([scope])
    ):
        return False
    header = [] if isinstance(scope, ast.While) else list(ast.walk(scope.iter))
    over = any(isinstance(node, ast.Name) and node.id in GRADIENTS for node in header)
    return over or any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in ast.walk(scope))


def path_to(tree: ast.Module, line: int) -> list[ast.stmt]:
    """The statements that contain ``line``, outermost first; the last one is the statement at the line."""
    path: list[ast.stmt] = []
    children: list[ast.stmt] = list(tree.body)
    while True:
        inside = [s for s in children if _first_line(s) <= line <= (s.end_lineno or s.lineno)]
        if not inside:
            return path
        path.append(inside[-1])
        children = list(statements_in(inside[-1]))


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return int(min([statement.lineno, *(d.lineno for d in decorators)]))


def statements_in(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, (ast.excepthandler, ast.match_case)):
            yield from statements_in(child)


def own_parts(statement: ast.stmt) -> list[ast.AST]:
    """A statement without the statements inside it: the header of a loop, a condition, or all of a simple one."""
    return [child for child in ast.iter_child_nodes(statement) if not isinstance(child, (ast.stmt, ast.excepthandler))]


def _scope_of(path: Sequence[ast.stmt]) -> ast.stmt | None:
    """The innermost loop or function around (or at) the last statement of a path."""
    for node in reversed(path):
        if isinstance(node, (*Loop, *Function)):
            return node
    return None


def _called_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for part in nodes:
        for node in ast.walk(part):
            if isinstance(node, ast.Call):
                name = dotted(node.func)
                if name:
                    yield name


def dotted(node: ast.expr) -> str | None:
    """'a.b.c' of an expression; anything before a call, an index or a literal is left out ('x().y' is 'y')."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts)) or None


def _methods_of(module: Module) -> dict[str, list[tuple[int, int, str]]]:
    """By name of each function of a file: its first and last line, and the class that contains it, or nothing."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    waiting: list[tuple[ast.AST, str]] = [(module.tree, "")]
    while waiting:
        node, owner = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.setdefault(child.name, []).append((child.lineno, child.end_lineno or child.lineno, owner))
                waiting.append((child, ""))
            else:
                waiting.append((child, child.name if isinstance(child, ast.ClassDef) else owner))
    return found


_LIBRARIES = frozenset(sys.stdlib_module_names) - {"operator", "copy", "functools", "statistics"}
"""Work of their functions on a tensor is Python's and not an operator's."""
_BUILTINS = frozenset(name for name in dir(builtins) if name.islower()) - {
    "abs", "all", "any", "bool", "divmod", "eval", "exec", "filter", "float", "getattr", "int", "map", "max", "min",
    "pow", "round", "sum", "super",
}  # fmt: skip
"""Without those that compute with a tensor, read it back, or call their arguments."""
_NUMBERS = frozenset({"bool", "float", "int"})
_JOINS = frozenset({"array", "as_tensor", "cat", "concat", "concatenate", "hstack", "stack", "tensor", "vstack"})
_FROM_NUMBERS = frozenset({"torch.tensor", "torch.as_tensor", "np.array", "np.asarray", "numpy.array"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_METHODS = frozenset(
    {name for kind in (str, bytes, list, dict, set) for name in dir(kind) if not name.startswith("_")}
    | {"appendleft", "most_common", "popleft", "group", "groups", "span"}
) - {"add", "copy", "count", "index", "split", "clear", "sort", "expand", "ljust", "difference", "intersection"}
"""Methods of text and of containers that no tensor has, or that do no work on a tensor."""
_AMBIGUOUS = frozenset({"add", "count", "index", "split", "sort", "sum", "max", "min", "abs", "round"})
"""The same next to text that shows what it is."""


def runs_python(module: Module, line: int) -> bool | None:
    """True if the statement at ``line`` runs no operator, False if it calls something that may; None if its calls do
    not show it."""
    path = path_to(module.tree, line)
    if not path:
        return None
    nodes = [node for part in own_parts(path[-1]) for node in ast.walk(part)]
    if _walks_elements(path, nodes) or any(_joins_container(node) for node in nodes):
        return True
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    own = {child.name for child in ast.iter_child_nodes(module.tree) if isinstance(child, _SCOPES[:2])}
    # What a function of the file does has lines of its own.
    names = [name for node in calls if not _converts(node) and (name := dotted(node.func) or "") not in own]
    if calls and not names:
        return True
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
    """Whether the statement belongs to two nested loops over the single elements of an array or tensor: operators
    compute only one number at a time there."""
    inside = max((i for i, node in enumerate(path) if isinstance(node, _SCOPES)), default=0)
    loops = [node for node in path[inside:] if isinstance(node, ast.For)]
    if len(loops) < 2 or any(isinstance(node, ast.MatMult) for node in nodes):
        return False
    calls = {dotted(node.func) or "" for node in nodes if isinstance(node, ast.Call)}
    inner = _names(loops[-1].target)
    outer = {name for loop in loops[:-1] for name in _names(loop.target)}
    rows = {name for loop in loops[:-1] for name in _rows_of(loop, outer)}
    return calls <= _BUILTINS | _AMBIGUOUS | _NUMBERS and any(
        (outer & _names(node.slice) and inner & _names(node.slice) and _is_element(node.slice))
        or (isinstance(node.value, ast.Name) and node.value.id in rows and _names(node.slice) & inner)
        for node in ast.walk(loops[-1])
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice)
    )


def _rows_of(loop: ast.For, counters: set[str]) -> Iterator[str]:
    """Names to which a loop assigns a row: ``row, before = score[t], best[t - 1]``."""
    for statement in loop.body:
        if isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = value.elts if isinstance(value, ast.Tuple) else [value]
            for name, row in zip(names, values, strict=False):
                if isinstance(name, ast.Name) and isinstance(row, ast.Subscript) and _names(row.slice) & counters:
                    yield name.id


def _converts(call: ast.Call) -> bool:
    """Whether a call turns a tensor into Python's numbers, or what a call or a comprehension made of them into one."""
    name = dotted(call.func) or ""
    if name.rpartition(".")[2] == "tolist":
        return True
    made = call.args[0] if call.args else None
    return name in _FROM_NUMBERS and isinstance(made, (ast.Call, ast.ListComp, ast.List))


def _joins_container(node: ast.AST) -> bool:
    """Whether a call joins the single entries of a container (``torch.stack(list(self.items))``): its time grows with
    their number, and the resulting tensor could have been kept."""
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
