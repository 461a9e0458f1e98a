"""eval-mode-kept: after the first validation the model trains in eval mode."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import FUNCTIONS, LintedScript, Loop, LoopStep

MATTERS = re.compile(r"(?i)dropout|batch_?norm|torchvision|timm|transformers|resnet")


@lint_rule("eval-mode-kept", "after the first validation the model trains in eval mode", reads="python")
def eval_mode_kept(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `model.eval()` inside the loop over epochs or steps, of the model that is trained there, in a file that
    never calls `train()`.

    ## Why it costs
    `eval()` stays in force: from the second epoch on there is no dropout, and batch normalisation keeps its statistics.

    ## How to tell
    The optimizer has the model's parameters, `eval()` of the same name runs in the same loop as the training or in a
    function that this loop calls with the model, and no `.train(` occurs in the file. `low` where nothing in the file
    points to dropout or batch normalisation.

    ## What to do
    Call `model.train()` before each epoch's training.

    ## When it is wrong
    If the model is meant to train in eval mode, such as one whose batch normalisation is frozen: then say so once,
    before the loop.
    """
    if re.search(r"\.train\(|\.training\s*=|set_train|\btrain_mode|model_mode", script.text):
        return
    trained = _list_trained(script)
    for training in script.training:
        around = script.loops_around(training.loop) if training.container is training.loop else []
        outer = (around or [training.loop])[-1]
        for call in script.calls_of(".eval"):
            if call.args or not isinstance(call.func, ast.Attribute):
                continue
            model = script.name(call.func.value)
            if model in trained and _runs_in(script, call, outer, training):
                yield LintFinding(
                    severity=Severity.HIGH if MATTERS.search(script.text) else Severity.LOW,
                    line=call.lineno,
                    message=f"{model} stays in eval mode for all later epochs: nothing calls train() again",
                    advice=f"call {model}.train() before each epoch's training",
                )
                return


def _list_trained(script: LintedScript) -> set[str]:
    """Names whose parameters an optimizer of this file has."""
    return {
        name.removesuffix(".parameters")
        for call, name in script.calls
        if name.endswith(".parameters")
        and any(
            isinstance(one, ast.Call) and script.name(one.func).startswith("torch.optim.")
            for one in script.parents(call)
        )
    }


def _runs_in(script: LintedScript, call: ast.Call, outer: Loop, training: LoopStep) -> bool:
    """Whether the eval runs in the loop, behind its training, or in a function that the loop calls."""
    if script.within(call, outer):
        return call.lineno > training.backwards[-1].lineno
    scope = script.scope(call)
    return isinstance(scope, FUNCTIONS) and any(script.within(one, outer) for one in script.callers(scope))
