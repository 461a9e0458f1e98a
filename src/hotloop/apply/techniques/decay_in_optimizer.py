"""decay-in-optimizer: weight decay by the optimizer, in place of a loop over the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

DECOUPLED = ("AdamW",)
"""Optimizers of torch whose ``weight_decay`` is what a loop ``p -= lr * decay * p`` does."""


class DecayInOptimizer(Technique):
    """
    ## What it does
    By API and in the Trainer: sets `weight_decay` of an AdamW whose groups have none. Remove the loop that decays the
    weights, or they decay twice. From outside it changes nothing, because that loop is the script's own code.

    ## When it helps
    Many small tensors: a loop over them costs an operator and Python overhead for each, in every step.

    ## When it does not
    Optimizers other than AdamW add the decay to the gradient, which with momentum or Adam's scaling trains differently
    from a loop over the weights. Groups that decay already stay as they are.

    ## Numerics
    Reordered: AdamW multiplies every weight by `1 - lr * weight_decay` before its update, the same as `p -= lr *
    weight_decay * p` before the step, with different rounding.
    """

    id = "decay-in-optimizer"
    summary = "apply weight decay in the optimizer instead of in a loop over the weights"
    effort = "medium"
    numerics = Numerics.REORDERED
    safety = Safety.SHOW
    stage = Stage.OPTIMIZER
    treats = ()
    settings = (Setting(name="weight_decay", kind=float, default=None, least=0.0, most=1.0, help="required; per step"),)

    def check(self, settings: Mapping[str, Value], strategy: Strategy) -> str | None:
        if settings["weight_decay"] is None:
            return "weight_decay is missing; give the factor of the loop that it replaces"
        return None

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        if context.from_outside:
            return NotApplicable(why="the decay loop is the script's own code; set weight_decay= in the script")
        kind = type(optimizer).__name__
        if kind not in DECOUPLED:
            return NotApplicable(why=f"the weight_decay of {kind} is part of the gradient, not a decay of the weights")
        groups = optimizer.param_groups
        decaying = [group["weight_decay"] for group in groups if group.get("weight_decay")]
        if decaying:
            return NotApplicable(why=f"the script sets weight_decay={decaying[0]}")
        before = [group["weight_decay"] for group in groups]
        for group in groups:
            group["weight_decay"] = settings["weight_decay"]

        def undo() -> None:
            for group, value in zip(groups, before, strict=False):
                group["weight_decay"] = value

        values: dict[str, Value] = {"weight_decay": settings["weight_decay"], "groups": len(before)}
        return Applied(text="weight_decay={weight_decay} for {groups} groups", values=values, undo=undo)
