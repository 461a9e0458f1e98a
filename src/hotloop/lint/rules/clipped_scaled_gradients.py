"""clipped-scaled-gradients: gradients are clipped while a GradScaler's factor is still in them."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import LintedScript

CLIPS = (
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
    "torch.nn.utils.clip_grad.clip_grad_norm_",
)


@lint_rule(
    "clipped-scaled-gradients", "gradients are clipped before the GradScaler's factor is taken out", reads="python"
)
def clipped_scaled_gradients(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training loop with a GradScaler that clips gradients without `scaler.unscale_(optimizer)` before it.

    ## Why it costs
    The gradients are some 65,536 times too large at that moment. Each step is clipped, and after the scaler divides by
    its factor almost nothing is left of it.

    ## How to tell
    `scaler.scale(loss).backward()`, a clipping of `torch.nn.utils` and `scaler.step(optimizer)` run in one loop, and
    `unscale_` occurs nowhere in the file.

    ## What to do
    Call `scaler.unscale_(optimizer)` before the clipping.

    ## When it is wrong
    If the scaler is disabled wherever gradients are clipped.
    """
    if "unscale_" in script.text or not script.calls_of(".GradScaler", "GradScaler"):
        return
    for training in script.training:
        scaled = [one for one in training.backwards if "scale(" in script.source(one)]
        stepped = [one for one in training.steps if one.args]
        for call in script.calls_of(*CLIPS):
            if not script.within(call, training.container):
                continue
            before = [one for one in scaled if one.lineno < call.lineno and not script.exclude_each_other(one, call)]
            after = [one for one in stepped if one.lineno > call.lineno and not script.exclude_each_other(one, call)]
            if before and after:
                yield LintFinding(
                    severity=Severity.HIGH,
                    line=call.lineno,
                    message="clips gradients that still hold the scaler's factor: almost nothing is left of a step",
                    advice="call scaler.unscale_(optimizer) before it",
                )
