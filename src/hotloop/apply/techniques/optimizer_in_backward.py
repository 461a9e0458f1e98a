"""optimizer-in-backward: each parameter is updated as soon as its gradient is ready, and its gradient given up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hotloop.apply.optimizer_form import find_own_step
from hotloop.core.errors import UsageError
from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.techniques import Applied, Context, Effect, MemorySaving, NotApplicable, Stage, Technique

NEEDS_ALL = ("LBFGS", "SparseAdam", "Muon")
"""Optimizers that look at all gradients at once, or at sparse or grouped ones."""


class OptimizerInBackward(Technique):
    """
    ## What it does
    By API and in the Trainer: updates every parameter inside backward, when its gradient is complete, and frees the
    gradient at once. `optimizer.step()` finds nothing left to do, and schedulers work as before.

    ## When it helps
    Memory: the gradients of the whole model never exist at the same time. For AdamW in float32 they are a quarter of
    what model, gradients and optimizer hold together (4 of 16 bytes a parameter). On a GPU the updates also fill gaps
    of backward.

    ## When it does not
    Clipping by the total norm, a GradScaler, accumulation, gradients averaged over ranks, closures, and loops that read
    gradients all need them after backward. hotloop cannot rule these out from outside, so it leaves scripts alone. A
    second backward before `optimizer.step()` raises a clear error. Many small tensors: one update for each costs more
    than one for all.

    ## Numerics
    Reordered: the same formula for each parameter; the form for single tensors may round in another order than the
    foreach form. If the optimizer loops over tensors anyway, the bits are the same.
    """

    id = "optimizer-in-backward"
    summary = "update each parameter inside backward, then free its gradient"
    effort = "hard"
    numerics = Numerics.REORDERED
    safety = Safety.SHOW
    stage = Stage.OPTIMIZER
    memory = MemorySaving(what="gradients, freed as soon as they are used")
    conflicts = ("compile-optimizer", "foreach-optimizer", "fp16-autocast", "zero-grad-to-none")

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        if context.from_outside:
            return NotApplicable(
                why="hotloop cannot prove that the script does not use gradients after backward; use the API"
            )
        if context.world_size > 1:
            return NotApplicable(
                why=f"gradients are averaged over {context.world_size} ranks only after they are ready"
            )
        kind = type(optimizer).__name__
        own = find_own_step(optimizer) or (f"{kind} updates all tensors together" if kind in NEEDS_ALL else None)
        if own is not None:
            return NotApplicable(why=own)
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        stepped: set[int] = set()
        handles = [
            p.register_post_accumulate_grad_hook(_update(optimizer, index, stepped))
            for index, group in enumerate(optimizer.param_groups)
            for p in group["params"]
            if p.requires_grad
        ]
        handles.append(optimizer.register_step_post_hook(lambda *_: stepped.clear()))

        def undo() -> None:
            for handle in handles:
                handle.remove()

        text = "{parameters} parameters are updated inside backward"
        return Applied(text=text, values={"parameters": len(parameters)}, undo=undo)


def _update(optimizer: Any, index: int, stepped: set[int]) -> Callable[[Any], None]:
    """What a parameter of this group does when its gradient is complete."""
    import inspect

    import torch

    step = inspect.unwrap(type(optimizer).step)  # without its hooks, which belong to the whole step

    @torch.no_grad()
    def update(parameter: Any) -> None:
        if id(parameter) in stepped:
            raise UsageError(
                "optimizer-in-backward: a parameter got a second gradient before optimizer.step(). Accumulation "
                "needs the gradients of all backwards; remove optimizer-in-backward from the strategy"
            )
        stepped.add(id(parameter))
        groups = optimizer.param_groups
        one = {**groups[index], "params": [parameter]}
        if not one.get("fused") and "foreach" in one:
            one["foreach"] = False  # lists of one tensor only cost
        optimizer.param_groups = [one]
        try:
            step(optimizer)
        finally:
            optimizer.param_groups = groups
        parameter.grad = None

    return update
