"""clip-after-step: gradients are clipped when the optimizer has used them already."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import LintedScript

CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm", "torch.nn.utils.clip_grad_value_")


@lint_rule("clip-after-step", "gradients are clipped when the optimizer has used them already", reads="python")
def clip_after_step(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a clipping of gradients between the optimizer's step and the next backward.

    ## Why it costs
    It comes too late: the step used the gradients as they were, and they are cleared before the next one.

    ## How to tell
    Backward, step and clipping stand in the same block, in this order, and no other backward, step or clipping does.

    ## What to do
    Move the clipping between `backward()` and `step()`.

    ## When it is wrong
    If the gradients are kept for the next step on purpose.
    """
    for training in script.training:
        clips = [one for one in script.calls_of(*CLIPS) if script.within(one, training.container)]
        if not (len(clips) == len(training.backwards) == len(training.steps) == 1):
            continue
        order = [training.backwards[0], training.steps[0], clips[0]]
        blocks = {id(_block(script, one)) for one in order}
        if len(blocks) == 1 and order[0].lineno < order[1].lineno < order[2].lineno:
            yield LintFinding(
                severity=Severity.HIGH,
                line=clips[0].lineno,
                message="clips gradients behind the step that should use them: it has no effect",
                advice="clip between backward() and step()",
            )


def _block(script: LintedScript, call: ast.Call) -> ast.AST:
    """What holds the statement of a call."""
    statement = next(one for one in script.parents(call) if isinstance(one, ast.stmt))
    return next(iter(script.parents(statement)))
