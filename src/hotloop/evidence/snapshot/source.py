"""The user's source, as a process sees it -> the text of a line, and the kind of loop or branch around it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from typing import Literal

from hotloop.evidence.analyze.source import (
    Function,
    Loop,
    Module,
    SourceFiles,
    dotted,
    own_parts,
    path_to,
    runs_python,
)

COUNTING_CALLS = frozenset({"range", "count", "repeat"})
WAITING_CALLS = frozenset(
    {"sleep", "print", "exists", "isfile", "is_file", "is_set", "debug", "info", "warning", "error", "poll", "time",
     "monotonic", "perf_counter", "is_alive", "empty", "wait"}
)  # fmt: skip
TRIED_CALLS = frozenset(
    {"get", "recv", "connect", "acquire", "create_connection", "get_nowait", "urlopen", "request", "open"}
)
"""What a loop tries again until it does not fail."""
VALIDATING_FUNCTION = re.compile(
    r"(?:^|_)(?:(?:validat|eval)\w*|(?:test|valid|val)(?:_(?:epoch|one_epoch|loop|step|model|set|pass))?)$", re.I
)
VALIDATION_DATA = re.compile(
    r"(?:^|_)(?:val|valid|validation|eval|test|held_?out|dev)(?:_|$)|(?:val|test)_?loader", re.I
)
MAKES_GRADIENTS = ("backward", "autograd.grad")


class ProcessSource:
    """Files of a process; for a process in a container, as the process sees them."""

    def __init__(self, pid: int) -> None:
        self._files = SourceFiles(base=f"/proc/{pid}/root")
        self._trainers: dict[str, frozenset[str]] = {}
        self._trains_at: dict[tuple[str, int], Literal["before", "inside"] | None] = {}

    def _module(self, file: str) -> Module | None:
        return self._files.module(file.lstrip(os.sep))

    def line(self, file: str, line: int) -> str | None:
        """The line as it is on the disk now; None if it cannot be read."""
        module = self._module(file)
        if module is None or not 0 < line <= len(module.lines):
            return None
        return module.lines[line - 1].strip() or None

    def runs_python(self, file: str, line: int) -> bool:
        """Whether the line certainly runs no operator of torch."""
        module = self._module(file)
        return module is not None and (runs_python(module, line) is True or _reads_elements(module, line))

    def trains_at(self, file: str, line: int) -> Literal["before", "inside"] | None:
        """Whether the line is in a loop that computes gradients, or such a loop follows later in the same function;
        None if neither is so, or the source does not show it."""
        if (file, line) not in self._trains_at:
            self._trains_at[file, line] = self._find_training(file, line)
        return self._trains_at[file, line]

    def _find_training(self, file: str, line: int) -> Literal["before", "inside"] | None:
        module = self._module(file)
        path = path_to(module.tree, line) if module is not None else []
        if module is None or not path:
            return None
        if file not in self._trainers:
            self._trainers[file] = _functions_that_train(module)
        inside = max((at for at, node in enumerate(path) if isinstance(node, Function)), default=-1)
        scope = path[inside] if inside >= 0 else module.tree
        training = [node for node in _walk_own(scope) if _trains(node, self._trainers[file])]
        loops = [node for node in path[inside + 1 :] if isinstance(node, Loop)]
        if any(node in training for loop in loops for node in _walk_own(loop)):
            return "inside"
        ends = max([line, *(loop.end_lineno or line for loop in loops)])
        return "before" if training and min(getattr(node, "lineno", 0) for node in training) > ends else None

    def loops_to_validate(self, file: str, line: int) -> bool:
        """Whether a loop around the line, in its function, goes over data that is named as validation data."""
        module = self._module(file)
        path = path_to(module.tree, line) if module is not None else []
        inside = max((at for at, node in enumerate(path) if isinstance(node, Function)), default=-1)
        return any(
            VALIDATION_DATA.search(part)
            for node in path[inside + 1 :]
            if isinstance(node, ast.For)
            for part in re.findall(r"\w+", ast.unparse(node.iter))
        )

    def is_waiting_loop(self, file: str, line: int) -> bool:
        """Whether the line is in a loop that does nothing but wait: its body only sleeps, passes, prints or tests."""
        module = self._module(file)
        loops = [
            node
            for node in (ast.walk(module.tree) if module is not None else ())
            if isinstance(node, ast.While | ast.For) and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        if not loops:
            return False
        loop = max(loops, key=lambda node: node.lineno)
        return _only_waits(loop.body) and (isinstance(loop, ast.While) or _calls_one_of(loop.iter, COUNTING_CALLS))

    def is_under_rank_test(self, file: str, line: int) -> bool:
        """Whether the line runs only on some ranks: it is in a branch whose test names a rank."""
        module = self._module(file)
        if module is None:
            return False
        named = {
            target.id
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Assign) and "rank" in ast.unparse(node.value).lower()
            for target in ast.walk(node.targets[0])
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(module.tree):
            if isinstance(node, ast.If) and node.lineno < line <= (node.end_lineno or node.lineno):
                names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
                names |= {n.attr for n in ast.walk(node.test) if isinstance(n, ast.Attribute)}
                if names & named or any(_names_rank(name) for name in names):
                    return True
        return False


def _walk_own(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes inside, but for those of functions and classes that are defined there."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (*Function, ast.ClassDef)):
            yield child
            yield from _walk_own(child)


def _trains(node: ast.AST, trainers: frozenset[str]) -> bool:
    name = (dotted(node.func) or "") if isinstance(node, ast.Call) else ""
    return name.endswith(MAKES_GRADIENTS) or name.rpartition(".")[2] in trainers


def _functions_that_train(module: Module) -> frozenset[str]:
    """Names of the file's functions that compute gradients, by themselves or in another one."""
    functions = [node for node in ast.walk(module.tree) if isinstance(node, Function)]
    known: frozenset[str] = frozenset()
    while True:
        more = frozenset(one.name for one in functions if any(_trains(node, known) for node in _walk_own(one)))
        if more == known:
            return known
        known = more


def _reads_elements(module: Module, line: int) -> bool:
    """Whether the line reads a tensor's elements one by one, in a loop inside another."""
    path = path_to(module.tree, line)
    loops = [node for node in path if isinstance(node, ast.For)]
    nodes = [node for part in own_parts(path[-1]) for node in ast.walk(part)] if path else []
    return len(loops) > 1 and any(_calls_one_of(node, frozenset({"item"})) for node in nodes)


def _names_rank(name: str) -> bool:
    return "rank" in name.lower() or "main_process" in name or "master" in name


def _only_waits(body: Sequence[ast.stmt]) -> bool:
    for statement in body:
        if isinstance(statement, ast.Pass | ast.Continue | ast.Break | ast.Return | ast.Raise):
            continue
        if isinstance(statement, ast.AugAssign) and not any(isinstance(n, ast.Call) for n in ast.walk(statement.value)):
            continue  # a count of attempts
        if isinstance(statement, ast.If):
            if not _only_waits((*statement.body, *statement.orelse)):
                return False
        elif isinstance(statement, ast.Try):
            handled = [line for handler in statement.handlers for line in handler.body]
            tried = [line for line in statement.body if not _is_tried(line)]
            if len(tried) == len(statement.body) or not _only_waits((*tried, *handled, *statement.orelse)):
                return False
        elif not (isinstance(statement, ast.Expr) and _calls_one_of(statement.value, WAITING_CALLS)):
            return False
    return True


def _is_tried(statement: ast.stmt) -> bool:
    """Whether it is a call whose result ends the loop, or that is known to fail for a time."""
    return isinstance(statement, ast.Assign | ast.Expr | ast.Return | ast.With) and any(
        isinstance(node, ast.Call) if isinstance(statement, ast.Return) else _calls_one_of(node, TRIED_CALLS)
        for node in ast.walk(statement)
    )


def _calls_one_of(node: ast.AST, names: frozenset[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in names
