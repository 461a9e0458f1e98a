"""A Python file -> Script: its calls by their full names, and its training steps, by data flow in the tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from hotloop.lint.files import LintFormat, NotRead, SourceFile, Start, Surroundings

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.Module
Loop = ast.For | ast.AsyncFor | ast.While
MOST_DEPTH = 200
"""Of the syntax tree: deeper expressions are generated, and tools that recurse fail on them."""
_WRAPPERS = ("enumerate", "tqdm", "trange", "zip", "islice", "iter", "cycle", "track", "prange", "chain")
_OPTIMIZER_NAME = re.compile(r"(?i)optim|(^|_)opt(_|$|[a-z]?\d*$)")
_NOT_OPTIMIZER = re.compile(r"(?i)sched|scaler|env|prof|warmup|meter|bar|logger|engine|ema")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStep:
    """What runs once per step: a loop, or a function that a loop calls. ``body`` holds its statements.

    ``backwards`` and ``steps`` are the calls of backward and of an optimizer's step that run inside.
    """

    container: Loop | Function
    scope: Scope
    """The function or module around the loop; the function itself where it is the container."""
    backwards: tuple[ast.Call, ...]
    steps: tuple[ast.Call, ...]
    loop: Loop
    """The loop whose iterations are the steps: the container, or the one that calls it."""

    @property
    def body(self) -> Sequence[ast.stmt]:
        return self.container.body


class LintedScript:
    """A parsed file, with indexes that rules share.

    ``start`` is the job that warns it by a signal which nothing handles, if a file beside it is one.
    """

    def __init__(self, path: str, text: str, tree: ast.Module, start: Start | None = None) -> None:
        self.start = start
        self.path = path
        self.text = text
        self.tree = tree
        self.lines = re.split(r"\r\n|\r|\n", text)
        self._parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = [tree]
        for node in self.nodes:  # grows while it is read: breadth first, without recursion
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node
                self.nodes.append(child)
        self._aliases = dict(_list_aliases(self.nodes))

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """What encloses a node, from the inside out."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """The function or module that a node's code belongs to."""
        return next((one for one in self.parents(node) if isinstance(one, Scope)), self.tree)

    def name(self, node: ast.AST) -> str:
        """Dotted name of what an expression refers to, imports resolved: ``optim.Adam`` is ``torch.optim.Adam``.

        A part that is no name is ``?``, so that ``scaler.scale(loss).backward`` ends in ``.backward``.
        """
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        parts.append(self._aliases.get(node.id, node.id) if isinstance(node, ast.Name) else "?")
        return ".".join(reversed(parts))

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """Every call with the full name of what is called, by line."""
        found = [(node, self.name(node.func)) for node in self.nodes if isinstance(node, ast.Call)]
        return sorted(found, key=lambda one: (one[0].lineno, one[0].col_offset))

    def calls_of(self, *names: str) -> list[ast.Call]:
        """Calls by full name, or by its last part for a name that begins with a dot."""
        return [
            call
            for call, name in self.calls
            if any(name.endswith(one) if one.startswith(".") else name == one for one in names)
        ]

    def receiver(self, call: ast.Call) -> str:
        """Name of the object whose method a call calls; empty where it calls no method."""
        return self.name(call.func.value) if isinstance(call.func, ast.Attribute) else ""

    def block(self, node: ast.AST) -> ast.AST:
        """What holds the statement that an expression belongs to."""
        statement = next(one for one in self.parents(node) if isinstance(one, ast.stmt))
        return self._parents[statement]

    def within(self, node: ast.AST, container: ast.AST) -> bool:
        """Whether a node's code runs as part of the container, and not in a function that is defined there."""
        inner = node
        for one in self.parents(node):
            if one is container:
                return not _is_behind(inner, one)
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
            elif isinstance(one, (ast.ExceptHandler, *LOOPS, ast.Match)) or (
                isinstance(one, ast.BoolOp) and inner is not one.values[0]
            ):
                found.append(one)
            inner = one
        return found

    def exclude_each_other(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether two nodes are in different branches of one ``if``."""

        def branches(node: ast.AST) -> dict[ast.AST, bool]:
            found: dict[ast.AST, bool] = {}
            inner = node
            for each in self.parents(node):
                if isinstance(each, ast.If):
                    found[each] = inner in each.orelse
                inner = each
            return found

        mine, its = branches(one), branches(other)
        return any(mine[each] != its[each] for each in mine.keys() & its.keys())

    def runs_each_time(self, node: ast.AST, container: Loop | Function) -> bool:
        """Whether nothing decides that, and no ``continue`` or ``return`` before it may pass over it."""
        if not self.within(node, container) or self.conditions(node, container):
            return False
        line = getattr(node, "lineno", 0)
        return not any(one.lineno < line and self.within(one, container) for one in self._leaves)

    @cached_property
    def _leaves(self) -> list[ast.stmt]:
        """Statements that may pass over what follows them."""
        return [node for node in self.nodes if isinstance(node, (ast.Continue, ast.Break, ast.Return))]

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """What is assigned to each name (``x``, ``self.x``), anywhere in the file."""
        found: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            pairs: list[tuple[ast.expr, ast.expr | None]] = []
            if isinstance(node, ast.Assign):
                pairs = [pair for target in node.targets for pair in _pair(target, node.value)]
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
                pairs = [(node.target, node.value)]
            for target, value in pairs:
                if isinstance(target, (ast.Name, ast.Attribute)) and value is not None:
                    found.setdefault(self.name(target), []).append(value)
        return found

    def values(self, node: ast.AST) -> list[ast.expr]:
        """What the file assigns to that which an expression names; empty where it names nothing that is assigned."""
        return self.assigned.get(self.name(node), [])

    def mentions(self, value: ast.expr, pattern: re.Pattern[str]) -> bool:
        """Whether the text of an expression has the pattern, or that of what is assigned to one of its names."""
        said = [value]
        for one in ast.walk(value):
            if isinstance(one, (ast.Name, ast.Attribute)):
                said += self.values(one)
        return any(pattern.search(ast.get_source_segment(self.text, one) or "") for one in said)

    def is_built_by(self, name: str, *constructors: str, anywhere: bool = False) -> bool:
        """Whether everything that is assigned to the name is a call of one of these (as calls_of reads names);
        ``anywhere``: at least one of the assignments."""
        built = {id(call) for call in self.calls_of(*constructors)}
        are_built = [id(value) in built for value in self.assigned.get(name, [])]
        return any(are_built) and (anywhere or all(are_built))

    @cached_property
    def loaders(self) -> list[ast.Call]:
        """Where DataLoaders are built."""
        return [call for call, name in self.calls if name.split(".")[-1] in ("DataLoader", "StatefulDataLoader")]

    @cached_property
    def backwards(self) -> list[ast.Call]:
        """Calls of backward that train: a loss', a scaled loss', an engine's."""
        return [call for call, name in self.calls if name.endswith((".backward", ".manual_backward"))]

    @cached_property
    def optimizer_steps(self) -> list[ast.Call]:
        """Calls of an optimizer's step, directly or by a GradScaler."""
        return [call for call, name in self.calls if name.endswith(".step") and self.stepped(call)]

    def stepped(self, call: ast.Call) -> str:
        """Name of the optimizer that a ``.step`` call steps; empty where it is none."""
        receiver = self.receiver(call)
        last = receiver.split(".")[-1]
        if call.args and re.search(r"(?i)scaler|fabric", last):
            return self.name(call.args[0])
        if self.is_built_by(receiver, *TORCH_OPTIMIZERS, anywhere=True):
            return receiver
        return receiver if _OPTIMIZER_NAME.search(last) and not _NOT_OPTIMIZER.search(last) else ""

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """Functions and methods of the file by their bare names."""
        found: dict[str, list[Function]] = {}
        for node in self.nodes:
            if isinstance(node, FUNCTIONS):
                found.setdefault(node.name, []).append(node)
        return found

    def callers(self, function: Function) -> list[ast.Call]:
        """Calls in this file of what bears the function's name and of no other function here."""
        if len(self.functions.get(function.name, ())) != 1:
            return []
        return [call for call, name in self.calls if name.split(".")[-1] == function.name]

    def loops_around(self, node: ast.AST) -> list[Loop]:
        """The loops of the same function around a node, from the inside out."""
        found: list[Loop] = []
        inner = node
        for one in self.parents(node):
            if isinstance(one, (*SCOPES, ast.Lambda, ast.ClassDef)):
                break
            if (
                isinstance(one, LOOPS)
                and not (isinstance(one, FORS) and inner is one.iter)
                and not _is_behind(inner, one)
            ):
                found.append(one)
            inner = one
        return found

    @cached_property
    def training(self) -> list[LoopStep]:
        """The steps of the file's trainings, each once."""
        found: dict[ast.AST, LoopStep] = {}
        for backward in self.backwards:
            for container, loop in self._find_steps(backward):
                if container not in found:
                    found[container] = LoopStep(
                        container=container,
                        scope=container if isinstance(container, FUNCTIONS) else self.scope(container),
                        backwards=tuple(one for one in self.backwards if self.within(one, container)),
                        steps=tuple(one for one in self.optimizer_steps if self.within(one, container)),
                        loop=loop,
                    )
        return list(found.values())

    def _find_steps(self, backward: ast.Call) -> Iterator[tuple[Loop | Function, Loop]]:
        """The innermost loop with this backward and a step, else the innermost loop; else loops that call this."""
        loops = self.loops_around(backward)
        if loops:
            with_step = (one for one in loops if any(self.within(step, one) for step in self.optimizer_steps))
            chosen = next(with_step, loops[0])
            yield chosen, chosen
            return
        function = self.scope(backward)
        if isinstance(function, FUNCTIONS) and function.name != "backward":
            for call in self.callers(function):
                around = self.loops_around(call)
                if around:
                    yield function, around[0]
                    return

    def source(self, node: ast.AST) -> str:
        """Text of an expression on one line, shortened."""
        text = ast.get_source_segment(self.text, node) if isinstance(node, ast.expr) else None
        flat = " ".join((text or "").split())
        return flat if len(flat) <= 60 else f"{flat[:57]}..."

    def loop_source(self, loop: Loop) -> ast.expr | None:
        """What a for loop iterates over, without enumerate, tqdm and the like."""
        if not isinstance(loop, FORS):
            return None
        return self.unwrap(loop.iter)

    def unwrap(self, value: ast.expr) -> ast.expr:
        while isinstance(value, ast.Call) and value.args and self.name(value.func).split(".")[-1] in _WRAPPERS:
            value = value.args[0]
        return value

    def iterates_loader(self, loop: Loop) -> bool:
        """Whether a for loop takes its values from a DataLoader, by what the file builds or by its name."""
        value = self.loop_source(loop)
        if value is None:
            return False
        name = self.name(value)
        return self.is_built_by(name, ".DataLoader", "DataLoader", anywhere=True) or bool(
            re.search(r"(?i)loader", name.split(".")[-1])
        )


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.Module)
FORS = (ast.For, ast.AsyncFor)
LOOPS = (*FORS, ast.While)
TORCH_OPTIMIZERS = tuple(
    f"torch.optim.{one}"
    for one in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam")
)


def parse_script(file: SourceFile, around: Surroundings) -> LintedScript | None:
    """None for a file that has nothing to do with torch. Raises NotRead where Python itself could not read it."""
    if "torch" not in file.text and "signal" not in file.text:
        return None
    try:
        tree = ast.parse(file.text)
    except SyntaxError as error:
        raise NotRead(f"not Python 3 (line {error.lineno}: {error.msg})") from None
    except ValueError as error:
        raise NotRead(f"not Python ({error})") from None
    except (RecursionError, MemoryError):
        raise NotRead("nested too deeply to be read") from None
    return LintedScript(file.path, file.text, tree, around.starts.get(file.path))


def _is_behind(statement: ast.AST, loop: ast.AST) -> bool:
    """Whether it stands in the ``else`` of the loop, which runs once, after it."""
    return isinstance(loop, LOOPS) and statement in loop.orelse


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword of a call; None without it."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def has_unpacked(call: ast.Call) -> bool:
    """Whether a call takes arguments that its text does not show (``*x``, ``**x``)."""
    return any(one.arg is None for one in call.keywords) or any(isinstance(one, ast.Starred) for one in call.args)


def constant(node: ast.expr | None) -> object:
    """The value of a literal; Ellipsis for anything else."""
    return node.value if isinstance(node, ast.Constant) else ...


def _pair(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets with their values; each name of an unpacked call is bound to the whole call."""
    if isinstance(target, (ast.Tuple, ast.List)):
        same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        for at, one in enumerate(target.elts):
            if isinstance(one, (ast.Name, ast.Attribute)):
                yield one, value.elts[at] if same and isinstance(value, (ast.Tuple, ast.List)) else value
    else:
        yield target, value


def _list_aliases(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.asname:
                    yield one.asname, one.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                yield one.asname or one.name, f"{node.module}.{one.name}"


PYTHON = LintFormat(
    id="python", title="training script", may_name=lambda name: name.endswith(".py"), parse=parse_script, is_sure=True
)
