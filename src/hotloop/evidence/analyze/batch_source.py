"""Sampled lines of the forward and the source -> the statement of the training loop that makes the batch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hotloop.core.analysis import Line
from hotloop.core.findings import Where

from .source import Function, Loop, Module, SourceFiles, dotted, own_parts, path_to, statements_in

MOST_STEPS = 6
"""How many bindings a batch is traced back through (``x = x.to(device)``, ``x, y = batch``)."""

_COUNTERS = ("range", "enumerate", "count", "itertools.count", "trange", "tqdm.trange")


def find_batch_statement(by_field: Mapping[str, tuple[Line, ...]], files: SourceFiles) -> Where | None:
    """The statement that binds the arguments of the most sampled forward, traced back inside its loop.

    None if no forward was sampled, its call cannot be read, or its arguments were bound outside of the loop: a batch
    that stays the same is not made inside the loop.
    """
    stacks = [line.stack or (line.where,) for line in by_field.get("backward_ns", ())]
    loop = {(where.file, where.function) for stack in stacks for where in stack}
    for line in by_field.get("forward_ns", ())[:1]:
        stack = line.stack or (line.where,)
        last = max((i for i, w in enumerate(stack) if (w.file, w.function) in loop), default=None)
        if last is None:
            return None
        for frame in reversed(stack[: last + 1]):
            module = files.module(frame.file)
            line_number = None if module is None else batch_binding(module, frame.line)
            if line_number is not None:
                return Where(file=frame.file, line=line_number, function=frame.function)
    return None


def batch_binding(module: Module, line: int) -> int | None:
    """The line that binds the arguments of the call at ``line``, in the loop or the function around it; else None.

    >>> from hotloop.evidence.analyze.source import parse_source
    >>> module = parse_source("for step in range(9):\n    x, y = get_batch('train')\n    loss = model(x.cuda(), y)")
    >>> batch_binding(module, 3)
    2
    """
    path = path_to(module.tree, line)
    if not path:
        return None
    names = _argument_names(path[-1])
    inside = [found for name in names if (found := _bound_in_loop(path, name)) is not None]
    if inside:
        depth, statement = max(inside, key=lambda one: one[0])
        return _followed_back(path[: depth + 1], statement).lineno
    function = next((one for one in reversed(path) if isinstance(one, Function)), None)
    loops = [one for one in path if isinstance(one, Loop)]
    if function is None or loops or any(name in _parameters(function) for name in names):
        return None
    bound = [one for name in names for one in _bindings_in(function, name)]
    return bound[0].lineno if bound else None


@dataclass(frozen=True, slots=True)
class _Statement:
    """What a statement of the loop binds, reads and calls, by name."""

    node: ast.stmt
    binds: frozenset[str]
    reads: frozenset[str]
    calls: frozenset[str]


def mark_prefetches(by_field: Mapping[str, tuple[Line, ...]], files: SourceFiles) -> Mapping[str, tuple[Line, ...]]:
    """The lines; those between forward and backward say whether they make the next batch."""
    sampled: dict[tuple[str, str], int] = {}
    for line in by_field.get("backward_ns", ()):
        for frame in line.stack or (line.where,):
            sampled.setdefault((frame.file, frame.function), frame.line)
    fates: dict[tuple[str, int], Mapping[int, bool | None]] = {}

    def fate(line: Line) -> bool | None:
        for frame in reversed(line.stack or (line.where,)):
            module = files.module(frame.file)
            if module is None:
                continue
            # A backward too short for a sample is found by its name.
            backward_line = sampled.get((frame.file, frame.function)) or _backward_beside(module, frame.line)
            if backward_line is not None:
                place = (frame.file, backward_line)
                if place not in fates:
                    fates[place] = prefetching_lines(module, backward_line)
                return fates[place].get(frame.line)
        return None

    marked = tuple(replace(line, makes_batch=fate(line)) for line in by_field.get("after_forward_ns", ()))
    return {**by_field, "after_forward_ns": marked} if marked else by_field


def prefetching_lines(module: Module, backward_line: int) -> dict[int, bool | None]:
    """Line of the loop around a backward -> whether it makes the batch of the next forward.

    A statement does if the loss needs what it binds, each reader in the loop comes before it (so the next iteration
    reads it), and it needs nothing that comes from its readers: neither the output, nor the loss, nor the model that
    they call. Lines that, by the source, bind nothing are left out. Lines of two statements that differ are None,
    because nothing is known about them.
    """
    path = path_to(module.tree, backward_line)
    scope = next((one for one in reversed(path) if isinstance(one, Loop)), None)
    if scope is None:
        return {}
    statements = [_describe(one) for one in _simple_statements(scope)]
    last = next((one for one in statements if one.node is path[-1]), None)
    if last is None:
        return {}
    feeding = _feeding(last, statements)
    makers = _add_sources([one for one in feeding if _is_prefetch(one, feeding, statements)], feeding, statements)
    found: dict[int, bool | None] = {}
    for one in statements:
        makes = one in makers
        if makes or one.binds or one in feeding:
            for line in range(one.node.lineno, (one.node.end_lineno or one.node.lineno) + 1):
                found[line] = makes if found.get(line, makes) is makes else None
    return found


def _backward_beside(module: Module, line: int) -> int | None:
    """The line of a call of ``backward`` in the innermost loop around a line; None if there is none."""
    scope = next((one for one in reversed(path_to(module.tree, line)) if isinstance(one, Loop)), None)
    for statement in () if scope is None else _simple_statements(scope):
        for one in ast.walk(statement):
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "backward":
                return statement.lineno
    return None


def _is_prefetch(one: _Statement, feeding: Sequence[_Statement], statements: Sequence[_Statement]) -> bool:
    readers = [other for other in feeding if other is not one and one.binds & other.reads]
    if not readers or any(other.node.lineno > one.node.lineno for other in readers):
        return False
    called = frozenset(name for other in readers for name in other.calls)
    return not one.reads & (_derived(one.binds, one, statements) | called)


def _derived(names: frozenset[str], maker: _Statement, statements: Sequence[_Statement]) -> frozenset[str]:
    """The names, and everything that the loop binds from them outside of their maker."""
    found, size = set(names), 0
    while size < len(found):
        size = len(found)
        for one in statements:
            if one is not maker and one.reads & found:
                found |= one.binds
    return frozenset(found)


def _feeding(last: _Statement, statements: Sequence[_Statement]) -> list[_Statement]:
    """The statements that bind what a statement needs, directly or not, and the statement itself."""
    found, size = [last], 0
    while size < len(found):
        size = len(found)
        needed = frozenset(name for one in found for name in one.reads)
        found += [one for one in statements if one not in found and one.binds & needed]
    return found


def _add_sources(
    makers: Sequence[_Statement], feeding: Sequence[_Statement], statements: Sequence[_Statement]
) -> list[_Statement]:
    """The makers with what only they need, such as the draw of the positions that a batch is read from."""
    found = list(makers)
    for one in reversed(statements):
        readers = [other for other in feeding if other is not one and one.binds & other.reads]
        if one in feeding and readers and all(other in found for other in readers):
            found.append(one)
    return found


def _describe(node: ast.stmt) -> _Statement:
    parts = own_parts(node)
    inside = [one for part in parts for one in ast.walk(part)]
    calls = [one.func for one in inside if isinstance(one, ast.Call)]
    own = frozenset(_names([one.target for one in inside if isinstance(one, ast.comprehension)]))
    return _Statement(
        node=node,
        binds=frozenset(_names(parts, ast.Store)) - own,
        reads=frozenset(_names(parts, ast.Load)) - own,
        calls=frozenset(name for func in calls if (name := dotted(func)) is not None),
    )


def _simple_statements(scope: ast.stmt) -> Iterable[ast.stmt]:
    """The statements of a loop that contain no others, in order, without those of functions and classes inside it."""
    for child in statements_in(scope):
        if isinstance(child, (*Function, ast.ClassDef)):
            continue
        if not any(True for _ in statements_in(child)):
            yield child
        yield from _simple_statements(child)


def _bound_in_loop(path: Sequence[ast.stmt], name: str) -> tuple[int, ast.stmt] | None:
    """The depth of the innermost loop around the last statement of ``path`` that binds a name, and the statement."""
    for depth in range(len(path) - 1, -1, -1):
        scope = path[depth]
        if isinstance(scope, (ast.For, ast.AsyncFor)) and name in _names([scope.target]):
            return None if _counts_only(scope, name) else (depth, scope)
        if isinstance(scope, Loop) and (bindings := list(_bindings_in(scope, name))):
            # A statement that only changes an earlier value of its own (x = x.to(device)) makes no batch.
            made = [one for one in bindings if name not in _names(own_parts(one), ast.Load)]
            return depth, (made or bindings)[0]
        if isinstance(scope, Function) and name in _parameters(scope):
            return None
    return None


def _followed_back(path: Sequence[ast.stmt], statement: ast.stmt) -> ast.stmt:
    """The statement of the loop at the end of ``path`` that the value bound by ``statement`` comes from."""
    scope = path[-1]
    seen = {id(statement)}
    for _ in range(MOST_STEPS):
        sources = [
            found[1]
            for name in _names(own_parts(statement), ast.Load)
            if statement is not scope and (found := _bound_in_loop([scope], name)) is not None
        ]
        earlier = next((one for one in sources if id(one) not in seen), None)
        if earlier is None:
            break
        statement = earlier
        seen.add(id(statement))
    return statement


def _argument_names(statement: ast.stmt) -> list[str]:
    """Names in the arguments of the calls of a statement, in order, without names that are called themselves."""
    names: dict[str, None] = {}
    for part in own_parts(statement):
        for node in ast.walk(part):
            if isinstance(node, ast.Call):
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                names.update(dict.fromkeys(_names(arguments, ast.Load)))
    return list(names)


def _names(nodes: Sequence[ast.AST], context: type[ast.expr_context] | None = None) -> list[str]:
    called = {id(n.func) for node in nodes for n in ast.walk(node) if isinstance(n, ast.Call)}
    found = [n for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in called]
    return list(dict.fromkeys(n.id for n in found if context is None or isinstance(n.ctx, context)))


def _bindings_in(scope: ast.stmt, name: str) -> Iterator[ast.stmt]:
    """Assignments and inner loops of a scope that bind a name, without those in functions inside it."""
    for child in statements_in(scope):
        if isinstance(child, (ast.Assign, ast.AnnAssign)) and name in _names([child], ast.Store):
            yield child
        elif not isinstance(child, (*Function, ast.ClassDef)):
            yield from _bindings_in(child, name)


def _parameters(function: ast.stmt) -> frozenset[str]:
    arguments = getattr(function, "args", None)
    if not isinstance(arguments, ast.arguments):
        return frozenset()
    return frozenset(one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def _counts_only(loop: ast.For | ast.AsyncFor, name: str) -> bool:
    """Whether a loop's target only counts: ``range`` without a stride, or the number that ``enumerate`` gives."""
    call = loop.iter
    if not isinstance(call, ast.Call) or dotted(call.func) not in _COUNTERS:
        return False
    if dotted(call.func) == "enumerate":
        target = loop.target
        return isinstance(target, ast.Tuple) and bool(target.elts) and name in _names(target.elts[:1])
    return len(call.args) < 3
