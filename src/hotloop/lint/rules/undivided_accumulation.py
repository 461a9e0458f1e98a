"""undivided-accumulation: the losses of several micro-batches add up to a gradient that is N times too large."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.accumulation import find_accumulation
from hotloop.lint.script import LintedScript, constant, keyword

DIVIDES_ITSELF = ("accelerate", "deepspeed", "lightning", "colossalai", "fairscale", "transformers.Trainer")


@lint_rule(
    "undivided-accumulation", "the mean losses of several micro-batches are added up, not averaged", reads="python"
)
def undivided_accumulation(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for gradient accumulation over N micro-batches whose loss, a mean, is never divided by N.

    ## Why it costs
    The gradient is N times that of one large batch. The learning rate means something else for each N, weight decay
    and clipping are out of proportion, and with clipping every step is clipped.

    ## How to tell
    The optimizer steps every N micro-batches, the loss is a mean (a loss of `torch.nn` without `reduction`), and
    nothing in the file divides or multiplies by N.

    ## What to do
    Divide the loss by the number of micro-batches: `(loss / N).backward()`.

    ## When it is wrong
    If the learning rate was chosen for the sum on purpose, or another file divides.
    """
    if any(name in script.text for name in DIVIDES_ITSELF):
        return
    for training in script.training:
        count = find_accumulation(script, training)
        if count is None or constant(count) == 1:
            continue
        if _is_scaled(script, count) or not all(_is_mean(script, one) for one in training.backwards):
            continue
        shown = script.source(count)
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=training.backwards[0].lineno,
            message=f"mean losses of {shown} micro-batches add up: the gradient is {shown} times their mean's",
            advice=f"divide the loss before backward: (loss / {shown}).backward()",
        )


def _is_scaled(script: LintedScript, count: ast.expr) -> bool:
    """Whether a name in ``count`` takes part in any product or quotient."""
    names = {one.id for one in ast.walk(count) if isinstance(one, ast.Name)}
    names |= {one.attr for one in ast.walk(count) if isinstance(one, ast.Attribute)}
    names -= {"self", "args", "cfg", "config", "opt", "hparams"}
    for node in script.nodes:
        is_scaling = isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, (ast.Div, ast.Mult))
        is_call = isinstance(node, ast.Call) and script.name(node.func).endswith((".div", ".div_", ".mul", ".mul_"))
        if is_scaling or is_call:
            inside = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            inside |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
            if names & inside:
                return True
    return False


def _is_mean(script: LintedScript, backward: ast.Call) -> bool:
    """Whether what goes backward is, as far as the file shows, the mean loss of torch.nn."""
    value = backward.func.value if isinstance(backward.func, ast.Attribute) else backward
    if isinstance(value, ast.Call) and script.name(value.func).endswith(".scale") and value.args:
        value = value.args[0]
    if isinstance(value, (ast.Name, ast.Attribute)):
        values = script.assigned.get(script.name(value), [])
        return bool(values) and all(_makes_mean(script, one) for one in values)
    return _makes_mean(script, value)


def _makes_mean(script: LintedScript, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = script.name(value.func)
    if name.startswith("torch.nn.functional.") and name.endswith(("cross_entropy", "mse_loss", "l1_loss", "nll_loss")):
        return keyword(value, "reduction") is None
    built = script.assigned.get(name, [])
    return bool(built) and all(
        isinstance(one, ast.Call)
        and script.name(one.func).startswith("torch.nn.")
        and script.name(one.func).endswith("Loss")
        and keyword(one, "reduction") is None
        for one in built
    )
