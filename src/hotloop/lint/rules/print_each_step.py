"""print-each-step: the loop prints in every step."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import LintedScript


@lint_rule("print-each-step", "the training loop prints in every step", reads="python")
def print_each_step(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `print` in the body of a training loop that steps an optimizer, outside of any test.

    ## Why it costs
    A line per step is a write per step and rank, into a terminal, a pipe or a file on a shared file system; what is
    printed is usually read back from the device first.

    ## How to tell
    The call runs in each iteration. What it costs depends on where the output goes, so this is never above `low`.

    ## What to do
    Print every N steps. The rule `logging-overhead` of `hotloop run` measures what it takes.

    ## When it is wrong
    If a step takes seconds: a line beside it is nothing.
    """
    for training in script.training:
        calls = [call for call in script.calls_of("print") if script.runs_each_time(call, training.container)]
        if calls and training.steps:
            yield LintFinding(
                severity=Severity.LOW,
                line=calls[0].lineno,
                message="prints in every step",
                advice="print every N steps",
            )
