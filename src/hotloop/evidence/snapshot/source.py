"""The user's source, as a process sees it -> the text of a line, and the kind of loop or branch around it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Sequence

from hotloop.evidence.analyze.source import (
    Function,
    Loop,
    Module,
    SourceFiles,
    dotted,
    path_to,
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
NO_GRADIENTS = re.compile(r"no_grad|inference_mode|\.eval\(\)")
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


class ProcessSource:
    """Files of a process; for a process in a container, as the process sees them."""

    def __init__(self, pid: int) -> None:
        self._files = SourceFiles(base=f"/proc/{pid}/root")
        self._before: dict[tuple[str, int], bool] = {}

    def _module(self, file: str) -> Module | None:
        return self._files.module(file.lstrip(os.sep))

    def line(self, file: str, line: int) -> str | None:
        """The line as it is on the disk now; None if it cannot be read."""
        module = self._module(file)
        if module is None or not 0 < line <= len(module.lines):
            return None
        return module.lines[line - 1].strip() or None

    def is_before_training(self, file: str, line: int) -> bool:
        """Whether gradients are computed only later in the function that the line is in, as far as its file shows."""
        if (file, line) not in self._before:
            self._before[file, line] = self._find_training(file, line)
        return self._before[file, line]

    def _find_training(self, file: str, line: int) -> bool:
        module, scope, path = self._around(file, line)
        trainers = [node.name for node in ast.walk(module.tree) if isinstance(node, Function) and _lines_of(node.body)]
        lines = _lines_of(scope.body, trainers)
        end = max([line, *(node.end_lineno or line for node in path if isinstance(node, Loop))])
        return min(lines, default=0) > end

    def validates_at(self, file: str, line: int, function: str) -> bool:
        """Whether the line is in a function, or a loop over data, that is named as validation; without gradients."""
        _, scope, path = self._around(file, line)
        is_named = VALIDATING_FUNCTION.search(function) is not None or any(
            VALIDATION_DATA.search(name)
            for node in path
            if isinstance(node, ast.For)
            for name in re.findall(r"\w+", ast.unparse(node.iter))
        )
        return is_named and NO_GRADIENTS.search(ast.unparse(scope)) is not None

    def _around(self, file: str, line: int) -> tuple[Module, Scope, list[ast.stmt]]:
        """The file, its innermost function around the line, or all of it, and the statements around the line in that;
        nothing of a file that cannot be read."""
        module = self._module(file) or Module(lines=(), tree=ast.Module(body=[], type_ignores=[]))
        scope: Scope = module.tree
        path = path_to(module.tree, line)
        for at, node in enumerate(path):
            if isinstance(node, Function):
                scope, path = node, path[at + 1 :]
        return module, scope, path

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


def _lines_of(body: Sequence[ast.stmt], trainers: Sequence[str] = ()) -> list[int]:
    """Lines that compute gradients or call one of ``trainers``, but for those in functions that are defined there."""
    return [
        node.lineno
        for statement in body
        if not isinstance(statement, (*Function, ast.ClassDef))
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and (name := dotted(node.func) or "")
        if name.endswith(MAKES_GRADIENTS) or name.rpartition(".")[2] in trainers
    ]


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
