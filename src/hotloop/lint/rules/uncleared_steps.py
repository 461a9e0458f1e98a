"""uncleared-steps: the optimizer steps for each micro-batch, but gradients are cleared only every N."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.accumulation import accumulates_itself, find_period, is_cleared
from hotloop.lint.script import LintedScript


@lint_rule(
    "uncleared-steps", "the optimizer steps for each micro-batch on gradients that are cleared every N", reads="python"
)
def uncleared_steps(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop whose optimizer steps each time, while `zero_grad()` stands under a test such as `i % N == 0`.

    ## Why it costs
    The gradients of old micro-batches are used again in each step until they are cleared, and every micro-batch pays
    for a step of the optimizer.

    ## How to tell
    In one loop the step runs each time, and each `zero_grad()` of the same optimizer runs only every N iterations.

    ## What to do
    Put the step under the same test as `zero_grad()`, before it.

    ## When it is wrong
    If gradients are meant to decay slowly over several steps, as a kind of momentum.
    """
    for training in script.training:
        names = {script.stepped(step) for step in training.steps}
        clears = [
            call
            for call in script.calls_of(".zero_grad")
            if script.within(call, training.container) and is_cleared(script, call, names)
        ]
        if (
            accumulates_itself(script, training, names)
            or not clears
            or not all(find_period(script, one, training) for one in clears)
        ):
            continue
        if not all(script.runs_each_time(step, training.container) for step in training.steps):
            continue
        yield LintFinding(
            severity=Severity.HIGH,
            line=training.steps[0].lineno,
            message=f"{names.pop()} steps for each micro-batch, but its gradients are cleared only every few of them",
            advice="step under the same test as zero_grad(), before it",
        )
