"""unused-parameter-search: DDP looks for unused parameters in every step."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import LintedScript, constant, keyword


@lint_rule("unused-parameter-search", "DDP looks for unused parameters in every step", reads="python")
def unused_parameter_search(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a model wrapped by `DistributedDataParallel(..., find_unused_parameters=True)`.

    ## Why it costs
    DDP then walks the whole graph after each forward. If every parameter gets a gradient, the walk is for nothing.

    ## How to tell
    The argument is the literal `True`. Whether parameters are unused cannot be seen here, so this is never above `low`.

    ## What to do
    Leave it out and train a step: DDP says if a parameter got no gradient. The rule `unused-parameter-scan` of
    `hotloop run` measures the cost.

    ## When it is wrong
    If some parameters really get no gradient in some steps.
    """
    for call in script.calls_of(".DistributedDataParallel", "DistributedDataParallel", "DDP"):
        if constant(keyword(call, "find_unused_parameters")) is True:
            yield LintFinding(
                severity=Severity.LOW,
                line=call.lineno,
                message="find_unused_parameters=True walks the graph in every step",
                advice="leave it out unless DDP then complains of parameters without gradients",
            )
