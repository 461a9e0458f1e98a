"""loader-per-step: a DataLoader or its iterator is built again in every step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import FORS, LOOPS, LintedScript


@lint_rule("loader-per-step", "a DataLoader or its iterator is built again in every step", reads="python")
def loader_per_step(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `DataLoader(...)` or `next(iter(loader))` in the body of the training loop, outside of any test.

    ## Why it costs
    Each iterator starts its workers and fills its queue anew, for one batch. It also begins a new epoch each time:
    without shuffling, every step trains on the first batch.

    ## How to tell
    The call runs in each iteration of the loop that steps the optimizer, and no loop inside goes through the loader.

    ## What to do
    Build the loader once, and take batches with `for batch in loader`; for an endless stream, keep one iterator and
    make a new one when it ends.

    ## When it is wrong
    If the loop's body is a whole training of its own, such as one per client, through helper functions.
    """
    for training in script.training:
        if not isinstance(training.container, LOOPS) or not training.steps:
            continue
        for call, name in script.calls:
            is_loader = call in script.loaders
            drawn = _drawn_from(script, call) if name == "next" else None
            if not (is_loader or drawn) or not script.runs_each_time(call, training.container):
                continue
            if is_loader and _is_gone_through(script, call, training.container):
                continue
            what = f"next(iter({drawn})) starts the loader anew" if drawn else "a DataLoader is built"
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=call.lineno,
                message=f"{what} in every step, with its workers and its order, for one batch",
                advice="build the loader once and go through it: for batch in loader",
            )


def _drawn_from(script: LintedScript, call: ast.Call) -> str | None:
    """The loader of ``next(iter(loader))``, where the file builds it."""
    inner = call.args[0] if call.args else None
    if not isinstance(inner, ast.Call) or script.name(inner.func) != "iter" or len(inner.args) != 1:
        return None
    name = script.name(inner.args[0])
    return name if script.is_built_anywhere_by(name, "DataLoader", ".DataLoader") else None


def _is_gone_through(script: LintedScript, call: ast.Call, container: ast.AST) -> bool:
    """Whether a loop or comprehension inside the container takes its batches from the loader that is built here."""
    names = {name for name, values in script.assigned.items() if call in values}
    for node in ast.walk(container):
        source = node.iter if isinstance(node, (*FORS, ast.comprehension)) else None
        if source is not None and node is not container:
            inside = [one for one in ast.walk(source) if one is call or script.name(one) in names]
            if inside:
                return True
    passed = [one for one, _ in script.calls if script.within(one, container) and one is not call]
    return any(script.name(given) in names for one in passed for given in one.args)
