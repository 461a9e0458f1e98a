"""missing-zero-grad: gradients are never cleared between steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintEdit, LintFinding, lint_rule
from hotloop.lint.script import TORCH_OPTIMIZERS, LintedScript, LoopStep

CLEARED = re.compile(
    r"zero_grad|\.grad\s*=\s*None|grad(\.data)?\.(zero_|fill_)|clear_grad|set_to_none|grad\.detach_\(\)"
)


@lint_rule("missing-zero-grad", "gradients are never cleared between steps", reads="python")
def missing_zero_grad(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training loop that calls `backward()` and the `step()` of a `torch.optim` optimizer, while nothing in
    the loop clears the gradients.

    ## Why it costs
    `backward()` adds to `.grad`. Without `zero_grad()` each step uses the sum of all gradients since the start (or, if
    it stands in front of the loop, since the epoch began): the training still runs, and learns badly.

    ## How to tell
    The optimizer is built in the file from `torch.optim`, its step runs in the loop, and the file clears gradients
    nowhere, or only outside of that loop.

    ## What to do
    Call `optimizer.zero_grad()` once per step, before `backward()` or after `step()`. `hotloop lint --fix` writes it
    where the step runs each time.

    ## When it is wrong
    If another file clears the gradients, for example inside the model's own `forward`; a loop that runs only once.
    """
    clears = [at for at, line in enumerate(script.lines, 1) if CLEARED.search(line.partition("#")[0])]
    for training in script.training:
        for step in training.steps:
            name = script.stepped(step)
            takes_closure = bool(step.keywords) or (step.args and script.name(step.func) == f"{name}.step")
            if takes_closure or not script.is_built_by(name, *TORCH_OPTIMIZERS):
                continue
            if clears and not _clears_only_before(script, training, clears):
                continue
            since = "of all steps so far" if not clears else "of all steps since the loop began"
            yield LintFinding(
                severity=Severity.HIGH,
                line=step.lineno,
                message=f"{name} steps with the sum of the gradients {since}: nothing in the loop clears them",
                advice=f"call {name}.zero_grad() once per step",
                edits=_add_clear(script, training, step, name) if not clears else (),
            )
            break


def _clears_only_before(script: LintedScript, training: LoopStep, clears: list[int]) -> bool:
    """Whether each line that clears is a zero_grad of the same function, in front of the loop that steps."""
    if training.container is not training.loop:
        return False
    calls = {call.lineno: call for call in script.calls_of(".zero_grad")}
    around = {id(one) for one in script.loops_around(training.loop)}
    return all(
        line in calls
        and line < training.loop.lineno
        and script.scope(calls[line]) is training.scope
        and {id(one) for one in script.loops_around(calls[line])} <= around
        for line in clears
    )


def _add_clear(script: LintedScript, training: LoopStep, step: ast.Call, name: str) -> tuple[LintEdit, ...]:
    """A line behind the step, where the step is a line of its own that runs each time."""
    line = script.lines[step.lineno - 1]
    statement = next(iter(script.parents(step)))
    alone = isinstance(statement, ast.Expr) and step.lineno == step.end_lineno and ";" not in line
    if not alone or len(training.steps) != 1 or not script.runs_each_time(step, training.container):
        return ()
    indent = line[: len(line) - len(line.lstrip())]
    at = step.lineno + 1
    return (LintEdit(first_line=at, first_column=1, last_line=at, last_column=1, text=f"{indent}{name}.zero_grad()\n"),)
