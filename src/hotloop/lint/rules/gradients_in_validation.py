"""gradients-in-validation: a validation builds a graph that nothing uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import FORS, FUNCTIONS, LintedScript

WITHOUT = re.compile(r"no_grad|inference_mode|set_grad_enabled|requires_grad|volatile")


@lint_rule("gradients-in-validation", "a validation builds a graph that nothing uses", reads="python")
def gradients_in_validation(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop over a loader, after `model.eval()`, that calls the model outside of `torch.no_grad()`.

    ## Why it costs
    Every forward keeps its activations for a backward that never comes: validation needs the memory of training and is
    slower.

    ## How to tell
    The function calls `eval()` of a model and that model in a loop over a loader, never goes backward, and neither it,
    its decorators nor its callers in the file turn gradients off. Its cost is not known, so this is never above `low`.

    ## What to do
    `with torch.no_grad():` around the loop, or `@torch.no_grad()` on the function.

    ## When it is wrong
    If a caller in another file turns gradients off, or the evaluation needs them.
    """
    for call in script.calls_of(".eval"):
        scope = script.scope(call)
        if not isinstance(scope, FUNCTIONS) or not isinstance(call.func, ast.Attribute) or call.args:
            continue
        around = "\n".join(script.lines[_first(scope) - 1 : scope.end_lineno])
        callers = [script.lines[max(0, one.lineno - 4) : one.lineno] for one in script.callers(scope)]
        if WITHOUT.search(around) or WITHOUT.search(str(callers)) or "backward" in around or "autograd" in around:
            continue
        model = script.name(call.func.value)
        for loop in ast.walk(scope):
            if isinstance(loop, FORS) and loop.lineno > call.lineno and script.iterates_loader(loop):
                forwards = [one for one in script.calls_of(model) if script.within(one, loop)]
                if forwards and script.loops_around(forwards[0])[:1] == [loop]:
                    yield LintFinding(
                        severity=Severity.LOW,
                        line=forwards[0].lineno,
                        message=f"{model} keeps activations for a backward that never comes",
                        advice="evaluate under torch.no_grad()",
                    )
                    break


def _first(scope: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([scope.lineno, *(one.lineno for one in scope.decorator_list)])
