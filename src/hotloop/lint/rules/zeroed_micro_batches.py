"""zeroed-micro-batches: accumulated gradients are cleared before the optimizer uses them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.accumulation import accumulates_itself, find_period, is_cleared
from hotloop.lint.script import LintedScript


@lint_rule(
    "zeroed-micro-batches", "accumulated gradients are cleared before the step that should use them", reads="python"
)
def zeroed_micro_batches(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop whose optimizer steps every N micro-batches, while `zero_grad()` runs for each of them.

    ## Why it costs
    The gradients of all micro-batches but the last are thrown away: the loop pays for N and learns from one.

    ## How to tell
    In one loop `backward()` and `zero_grad()` run each time, and the step of the same optimizer stands under a test
    such as `(i + 1) % N == 0`.

    ## What to do
    Clear the gradients only after the step, under the same test.

    ## When it is wrong
    If the step is skipped for another reason, and the single batch of the step is what you want.
    """
    for training in script.training:
        names = {script.stepped(step) for step in training.steps}
        if accumulates_itself(script, training, names) or not all(
            script.runs_each_time(one, training.container) for one in training.backwards
        ):
            continue
        periods = [find_period(script, step, training) for step in training.steps]
        for call in script.calls_of(".zero_grad"):
            is_each = script.runs_each_time(call, training.container)
            cleared = is_cleared(script, call, names)
            if is_each and cleared and periods and all(periods):
                period = script.source(periods[0]) if isinstance(periods[0], ast.expr) else ""
                yield LintFinding(
                    severity=Severity.HIGH,
                    line=call.lineno,
                    message=f"gradients are cleared for each micro-batch, but the optimizer steps only if {period}",
                    advice="move zero_grad() behind the step, under the same test",
                )
