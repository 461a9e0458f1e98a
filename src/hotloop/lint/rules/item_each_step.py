"""item-each-step: the loop reads a value back from the device in every step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import LintedScript

READS = ("item", "tolist", "cpu", "numpy")


@lint_rule("item-each-step", "the loop reads a value back from the device in every step", reads="python")
def item_each_step(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `.item()`, `.cpu()`, `.tolist()` and `float()` of the loss in the body of a training loop, outside of any
    test.

    ## Why it costs
    The host waits until the device has computed the value, and has nothing queued when it goes on. On a fast device
    with small kernels the gaps add up; on a CPU it costs nothing.

    ## How to tell
    The call runs in each iteration and reads what goes backward, or what was computed from it. The cost is not known
    before it is measured, so this is never above `low`.

    ## What to do
    Add up `loss.detach()` on the device, and read it every N steps. The rule `host-sync` of `hotloop run` measures it.

    ## When it is wrong
    If the value decides what the next step does, or training is on a CPU.
    """
    for training in script.training:
        losses = {_receiver(script, one) for one in training.backwards} - {""}
        for call, name in script.calls:
            if _reads_one_of(script, call, name, losses) and script.runs_each_time(call, training.container):
                yield _describe(script, call)
                break  # one place a loop: the rest is found by reading on


def _receiver(script: LintedScript, backward: ast.Call) -> str:
    value = backward.func.value if isinstance(backward.func, ast.Attribute) else backward
    if backward.args and isinstance(backward.args[0], (ast.Name, ast.Attribute)):
        value = backward.args[0]  # accelerator.backward(loss)
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]  # scaler.scale(loss).backward()
    return script.name(value) if isinstance(value, (ast.Name, ast.Attribute)) else ""


def _reads_one_of(script: LintedScript, call: ast.Call, name: str, losses: set[str]) -> bool:
    if name in ("float", "int") and len(call.args) == 1:
        return script.name(call.args[0]) in losses
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in READS:
        return False
    value = call.func.value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value  # loss.detach().cpu()
    if isinstance(value, ast.Attribute) and value.attr == "data":
        value = value.value
    return script.name(value) in losses


def _describe(script: LintedScript, call: ast.Call) -> LintFinding:
    return LintFinding(
        severity=Severity.LOW,
        line=call.lineno,
        message=f"{script.source(call)} waits for the device in every step",
        advice="add up loss.detach() on the device and read it every N steps",
    )
