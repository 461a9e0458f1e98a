"""foreach-optimizer: each operator of the update runs once over a list of all tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.apply.optimizer_form import find_choice, find_hindrance, switch_form
from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.sources import Arguments
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique


class ForeachOptimizer(Technique):
    """
    ## What it does
    Switches a torch optimizer to its foreach form: each operator of the update is called once with the list of all
    tensors, not once per tensor. `state_dict()` stays as it would be without the switch.

    ## When it helps
    Many small tensors, and an optimizer without a fused form (NAdam, RAdam, Adadelta, RMSprop). On a CPU, where torch
    does not choose it by itself, it saves little: 52 ms instead of 58 ms for the AdamW step of a 10 million parameter
    transformer (torch 2.13, one CPU core, medians of 7). On a GPU torch chooses it by itself, so it helps only if the
    script turned it off, which takes `override = true`.

    ## When it does not
    Where the fused form exists it is faster. Temporary lists need memory for one more copy of the parameters. A tensor
    learning rate, sparse gradients and optimizers with their own step are left alone. So are the script's
    `foreach=False` and `fused=False`, unless the strategy sets `override = true`.

    ## Numerics
    Reordered: the same formula, with factors combined in another order for some optimizers (NAdam).
    """

    id = "foreach-optimizer"
    summary = "run one update for all tensors (`foreach=True`)"
    numerics = Numerics.REORDERED
    safety = Safety.AUTO
    stage = Stage.OPTIMIZER
    is_probed = True
    source = Arguments(of="optimizer", names=("foreach",), most_positional=99, excludes="fused")
    treats = ("slow-optimizer",)
    conflicts = ("fused-optimizer",)
    settings = (
        Setting(name="foreach", kind=bool, default=True, choices=(True,), help="value set in the optimizer's groups"),
    )

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        why = find_hindrance(optimizer, "foreach")
        if why is not None:
            return NotApplicable(why=why)
        for group in optimizer.param_groups:
            if isinstance(group.get("lr"), torch.Tensor):
                return NotApplicable(why="the learning rate is a tensor, which the foreach form does not accept")
        explicit = find_choice(optimizer)
        if explicit is not None and not context.strategy.overrides(self.id):
            return NotApplicable(why=f"the script sets {explicit}", explicit=explicit)
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        undo = switch_form(optimizer, "foreach")
        text = "foreach={foreach} for {parameters} parameters"
        if explicit is not None:
            text += f", instead of the script's {explicit}"
        return Applied(text=text, values={"foreach": True, "parameters": count}, undo=undo, explicit=explicit)
