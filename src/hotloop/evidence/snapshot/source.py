"""The user's source, as a process sees it -> the text of a line, and the kind of loop or branch around it."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence

from hotloop.evidence.analyze.source import Module, SourceFiles, own_parts, path_to, runs_python

COUNTING_CALLS = frozenset({"range", "count", "repeat"})
WAITING_CALLS = frozenset(
    {"sleep", "print", "exists", "isfile", "is_file", "is_set", "debug", "info", "warning", "error", "poll", "time",
     "monotonic", "perf_counter", "is_alive", "empty", "wait"}
)  # fmt: skip
TRIED_CALLS = frozenset(
    {"get", "recv", "connect", "acquire", "create_connection", "get_nowait", "urlopen", "request", "open"}
)
"""What a loop tries again until it does not fail."""


class ProcessSource:
    """Files of a process; for a process in a container, as the process sees them."""

    def __init__(self, pid: int) -> None:
        self._files = SourceFiles(base=f"/proc/{pid}/root")

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
