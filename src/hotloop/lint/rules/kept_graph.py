"""kept-graph: a sum or list of losses keeps the graph of every step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintEdit, LintFinding, lint_rule
from hotloop.lint.script import LintedScript, LoopStep


@lint_rule("kept-graph", "a sum of losses keeps a piece of the graph of every step", reads="python")
def kept_graph(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `total += loss` in a training loop, where `loss` goes backward in the same loop and `total` never does.

    ## Why it costs
    The sum is a tensor that needs gradients. It holds the graph's nodes of all steps so far, so memory grows step by
    step, and freeing it at the end takes a moment.

    ## How to tell
    The name that goes backward is added as it is, without `.item()`, `.detach()` or `float`, in the same iteration.

    ## What to do
    `total += loss.detach()`, which waits for nothing. `hotloop lint --fix` writes it.

    ## When it is wrong
    If `total` goes backward in another function.
    """
    for training in script.training:
        for node in script.nodes:
            name = _added_loss(script, node, training)
            if name is None or not isinstance(node, ast.AugAssign):
                continue
            value = node.value
            end = (value.end_lineno or value.lineno, _column(script, value.end_lineno, value.end_col_offset))
            yield LintFinding(
                severity=Severity.LOW,
                line=node.lineno,
                message=f"{script.source(node.target)} keeps the graph of each {name}: memory grows with every step",
                advice=f"add {name}.detach()",
                edits=(
                    LintEdit(
                        first_line=end[0], first_column=end[1], last_line=end[0], last_column=end[1], text=".detach()"
                    ),
                ),
            )


def _added_loss(script: LintedScript, node: ast.AST, training: LoopStep) -> str | None:
    if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add) or not isinstance(node.value, ast.Name):
        return None
    name, total = node.value.id, script.name(node.target) if isinstance(node.target, (ast.Name, ast.Attribute)) else ""
    if not total or not script.within(node, training.container):
        return None
    own = [one for one in training.backwards if script.name(one.func) == f"{name}.backward"]
    used_backward = any(total in script.name(one.func) or total in _names(script, one) for one in script.backwards)
    rebound = [value for value in script.assigned.get(name, []) if script.within(value, training.container)]
    made_plain = any("item" in (script.source(value)) or "float(" in script.source(value) for value in rebound)
    if not own or used_backward or made_plain:
        return None
    first, last = sorted((own[0].lineno, node.lineno))
    return None if any(first < value.lineno < last for value in rebound) else name


def _names(script: LintedScript, call: ast.Call) -> set[str]:
    return {script.name(one) for one in ast.walk(call) if isinstance(one, (ast.Name, ast.Attribute))}


def _column(script: LintedScript, line: int | None, offset: int | None) -> int:
    """1-based column in characters of an offset in bytes."""
    text = script.lines[(line or 1) - 1]
    return len(text.encode()[: offset or 0].decode("utf-8", "replace")) + 1
