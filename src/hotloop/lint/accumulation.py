"""Gradient accumulation in a training loop: under which test the optimizer steps, and over how many micro-batches."""

from __future__ import annotations

import ast
import re

from .script import TORCH_OPTIMIZERS, LintedScript, LoopStep

_PERIOD = re.compile(r"(?i)accum|update_freq|grad_acc|iter_size|micro|virtual|batch_multipl|subdivisions")


def find_period(script: LintedScript, call: ast.Call, training: LoopStep) -> ast.expr | None:
    """The test with ``%`` under which a call runs every few iterations of the loop; None where there is none."""
    for test in script.conditions(call, training.container):
        if isinstance(test, ast.expr) and find_divisor(test) is not None and not _is_negated(test):
            return test
    return None


def find_divisor(test: ast.AST) -> ast.expr | None:
    """N of a test such as ``(i + 1) % N == 0``."""
    return next(
        (one.right for one in ast.walk(test) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod)), None
    )


def _is_negated(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq)


def accumulates_itself(script: LintedScript, training: LoopStep, optimizers: set[str]) -> bool:
    """Whether the loop may accumulate in a way that its text does not show: several optimizers, one of another library,
    or an engine that takes the loss (``accelerator.backward(loss)``)."""
    if len(optimizers) != 1 or any(one.args for one in training.backwards):
        return True
    (name,) = optimizers
    return bool(script.assigned.get(name)) and not script.is_built_by(name, *TORCH_OPTIMIZERS)


def is_cleared(script: LintedScript, call: ast.Call, optimizers: set[str]) -> bool:
    """Whether a zero_grad is that of one of these optimizers, or of a model where there is one optimizer."""
    if not isinstance(call.func, ast.Attribute):
        return False
    receiver = script.name(call.func.value)
    return receiver in optimizers or (len(optimizers) == 1 and receiver.split(".")[-1] in ("model", "net", "module"))


def find_accumulation(script: LintedScript, training: LoopStep) -> ast.expr | None:
    """How many micro-batches a step has, as the source says it; None for a loop that does not accumulate.

    Either the step stands under a test on that number, or the backward in a loop over its range inside the step's loop.
    """
    if not training.steps or not training.backwards:
        return None
    for step in training.steps:
        test = find_period(script, step, training)
        if test is not None and all(script.runs_each_time(one, training.container) for one in training.backwards):
            divisor = find_divisor(test)
            return divisor if divisor is not None and names_accumulation(script, divisor) else None
    for backward in training.backwards:
        inner = next((one for one in script.loops_around(backward) if one is not training.container), None)
        if isinstance(inner, ast.For) and script.within(inner, training.container) and isinstance(inner.iter, ast.Call):
            count = inner.iter.args[0] if len(inner.iter.args) == 1 else None
            if script.name(inner.iter.func) == "range" and count is not None and names_accumulation(script, count):
                return count
    return None


def names_accumulation(script: LintedScript, count: ast.expr) -> bool:
    """Whether an expression bears a name that people give to the number of micro-batches."""
    names = [one.id for one in ast.walk(count) if isinstance(one, ast.Name)]
    names += [one.attr for one in ast.walk(count) if isinstance(one, ast.Attribute)]
    return any(_PERIOD.search(name) for name in names)
