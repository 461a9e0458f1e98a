"""fused-optimizer and foreach-optimizer: one update for all tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.change.apply.optimizer_form import find_choice, find_hindrance, switch_form, watch_gradients
from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.sources import Arguments
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique


class FusedOptimizer(Technique):
    """
    ## What it does
    Switches torch's Adam, AdamW, Adagrad or SGD to its fused form: one pass over the memory of all parameters instead
    of several passes for each. `state_dict()` stays as it would be without the switch.

    ## When it helps
    It helps if the optimizer takes a visible share of the step, as with many small tensors on a GPU or with any model
    on a CPU. The AdamW step of a 10 million parameter transformer took 15 ms instead of 52 ms (torch 2.13, one CPU
    core, medians of 7).

    ## When it does not
    It does not apply to parameters that are not floating point or that are on a device without fused kernels, to sparse
    gradients, to an optimizer from another library, or to a subclass with its own step. hotloop leaves the script's
    `capturable=True` and `differentiable=True` alone, and also `fused=False` and any `foreach` unless the strategy sets
    `override = true`. If sparse gradients first appear during training, the fused form is turned off again.

    ## Numerics
    Reordered: the same formula, with intermediate results kept in registers.
    """

    id = "fused-optimizer"
    summary = "update all tensors in one kernel (`fused=True`)"
    numerics = Numerics.REORDERED
    safety = Safety.AUTO
    stage = Stage.OPTIMIZER
    is_probed = True
    source = Arguments(names=("fused",), most_positional=99, excludes="foreach")
    treats = ("slow-optimizer",)
    conflicts = ("foreach-optimizer",)
    settings = (
        Setting(name="fused", kind=bool, default=True, choices=(True,), help="value set in the optimizer's groups"),
    )

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch
        from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

        why = find_hindrance(optimizer, "fused")
        if why is not None:
            return NotApplicable(why=why)
        devices = list(_get_fused_kernels_supported_devices())
        if isinstance(optimizer, torch.optim.Adagrad):
            devices = [device for device in devices if device == "cpu"]  # torch has no other fused Adagrad
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for p in parameters:
            if not torch.is_floating_point(p) or p.device.type not in devices:
                return NotApplicable(why=f"a parameter of {p.dtype} on {p.device.type} has no fused kernel")
        return _switch(optimizer, "fused", self.id, context)


class ForeachOptimizer(Technique):
    """
    ## What it does
    Switches a torch optimizer to its foreach form: each operator of the update is called once with the list of all
    tensors, not once per tensor. `state_dict()` stays as it would be without the switch.

    ## When it helps
    It helps with many small tensors and an optimizer without a fused form (NAdam, RAdam, Adadelta, RMSprop). On a CPU,
    where torch does not choose the foreach form by itself, it saves little: the AdamW step of a 10 million parameter
    transformer took 52 ms instead of 58 ms (torch 2.13, one CPU core, medians of 7). On a GPU, torch chooses this form
    by itself, so the technique helps only if the script turned the form off; it then needs `override = true`.

    ## When it does not
    If the optimizer has a fused form, that form is faster. Temporary lists need memory for one more copy of the
    parameters. hotloop leaves optimizers alone that have a learning rate in a tensor, sparse gradients or their own
    step, and also the script's `foreach=False` and `fused=False` unless the strategy sets `override = true`.

    ## Numerics
    Reordered: the same formula, with factors combined in another order for some optimizers (NAdam).
    """

    id = "foreach-optimizer"
    summary = "run one update for all tensors (`foreach=True`)"
    numerics = Numerics.REORDERED
    safety = Safety.AUTO
    stage = Stage.OPTIMIZER
    is_probed = True
    source = Arguments(names=("foreach",), most_positional=99, excludes="fused")
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
        return _switch(optimizer, "foreach", self.id, context)


def _switch(optimizer: Any, form: str, technique: str, context: Context) -> Effect:
    """The form switched on where the script left the choice to torch, or may be overridden."""
    import torch

    explicit = find_choice(optimizer)
    if explicit is not None and not context.strategy.overrides(technique):
        return NotApplicable(why=f"the script sets {explicit}", explicit=explicit)
    undo = [switch_form(optimizer, form)]

    def take_back() -> None:
        while undo:
            undo.pop()()

    def give_up(why: str) -> None:
        take_back()
        context.report(technique, NotApplicable(why=f"reverted: {why}"))

    if form == "fused" and isinstance(optimizer, (torch.optim.SGD, torch.optim.Adagrad)):
        undo.append(watch_gradients(optimizer, give_up))  # the others refuse sparse gradients in every form
    instead = "" if explicit is None else f", instead of the script's {explicit}"
    values: dict[str, Value] = {form: True, "parameters": sum(len(group["params"]) for group in optimizer.param_groups)}
    text = f"{form}={{{form}}} for {{parameters}} parameters{instead}"
    return Applied(text=text, values=values, undo=take_back, explicit=explicit)
