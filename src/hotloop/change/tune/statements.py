"""Lines of a script -> the files of its working copy without the statements that run them, for a bound."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hotloop.core.findings import Where

from .script import Refusal, Script, ScriptEdit, apply_edits, parse_script, stands_alone

OF_TRAINING = frozenset(
    ("backward", "step", "zero_grad", "unscale_", "update", "train", "eval", "barrier", "all_reduce", "all_gather")
)
"""Calls without which there is no training, or that change what others compute."""
MOST_CALLERS = 3
"""Functions to go up from a line, to a statement whose value nobody reads."""


def leave_out_statements(places: Sequence[Where], root: Path) -> dict[str, bytes]:
    """The changed files, by their path below ``root``. Raises Refusal where a value is read elsewhere."""
    if not places:
        raise Refusal("the finding names no line")
    scripts = {place.file: _read_script(place.file, root) for place in places}
    left_out: dict[Script, set[ast.Expr]] = {}
    for place in places:
        for script, statement in _find_discarded(scripts[place.file], place.line, list(scripts.values())):
            left_out.setdefault(script, set()).add(statement)
    return {
        Path(file).resolve().relative_to(root).as_posix(): _without(script, left_out[script])
        for file, script in scripts.items()
        if script in left_out
    }


def _read_script(file: str, root: Path) -> Script:
    path = Path(file).resolve()
    if not path.is_relative_to(root):
        raise Refusal(f"{file} is not in the folder of the command, so no working copy of it can be changed")
    return parse_script(path.read_bytes().decode())


def _find_discarded(
    script: Script, line: int, scripts: Sequence[Script], level: int = 0
) -> Iterator[tuple[Script, ast.Expr]]:
    """The statement of a line if it is a call whose value is discarded, else those that call the line's function."""
    holding = [node for node in ast.walk(script.tree) if isinstance(node, ast.stmt) and _covers(node, line)]
    innermost = max(holding, key=lambda node: node.lineno, default=None)
    if isinstance(innermost, ast.Expr) and isinstance(innermost.value, ast.Call):
        kept = next((name for name in _list_calls(script, innermost) if name in OF_TRAINING), None)
        if kept is not None:
            raise Refusal(f"line {line} calls {kept}(), which training needs")
        if not stands_alone(script, innermost):
            raise Refusal(f"line {line} contains more than one statement")
        yield script, innermost
        return
    functions = [node for node in holding if isinstance(node, ast.FunctionDef)]
    calls = _list_callers(scripts, functions[-1].name) if functions and level < MOST_CALLERS else []
    if not calls:
        raise Refusal(f"what line {line} computes may be read elsewhere")
    for caller, call in calls:
        yield from _find_discarded(caller, call.lineno, scripts, level + 1)


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _list_calls(script: Script, statement: ast.stmt) -> list[str | None]:
    return [script.last_name(node) for node in ast.walk(statement) if isinstance(node, ast.Call)]


def _list_callers(scripts: Sequence[Script], name: str) -> list[tuple[Script, ast.Call]]:
    return [
        (script, node)
        for script in scripts
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call) and script.last_name(node) == name
    ]


def _without(script: Script, statements: Iterable[ast.Expr]) -> bytes:
    """The text with ``pass`` in place of the statements; every other line keeps its number."""
    edits = []
    for statement in statements:
        start, end = script.span(statement)
        edits.append(ScriptEdit(start, end, "pass" + script.newline * script.text.count("\n", start, end)))
    return apply_edits(script.text, edits).encode()
