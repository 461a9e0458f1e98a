"""fused-optimizer: one kernel updates all parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Stage, Technique


class FusedOptimizer(Technique):
    """
    ## What it does
    Switches an Adam, AdamW, Adagrad or SGD of torch to its fused form: one pass over the memory of all parameters in
    place of a handful of passes for each.

    ## When it helps
    When the optimizer's share of the step is visible: many small tensors on a GPU, any model on a CPU. A 10 million
    parameter transformer on 2 CPU cores took 15 ms in place of 52 ms for its AdamW step (docs/claims.md).

    ## When it does not
    With parameters that are neither floating point nor on a device with fused kernels, sparse gradients, or an
    optimizer from another library. With `foreach=True` or `capturable=True` set by hand it leaves the choice alone.

    ## Numerics
    Reordered: the same formula, with intermediate results kept in registers.
    """

    id = "fused-optimizer"
    title = "one fused kernel for the optimizer's step"
    numerics = Numerics.REORDERED
    safety = Safety.AUTO
    stage = Stage.OPTIMIZER
    treats = ("slow-optimizer",)
    conflicts = ("foreach-optimizer",)

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch
        from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

        if "fused" not in optimizer.defaults:
            return NotApplicable(why=f"{type(optimizer).__name__} has no fused form")
        for group in optimizer.param_groups:
            for key in ("foreach", "capturable", "differentiable"):
                if group.get(key):
                    return NotApplicable(why=f"{key}=True was chosen in the script")
            if group.get("fused") is not None:
                return NotApplicable(why=f"fused={group['fused']} was chosen in the script")
        devices = _get_fused_kernels_supported_devices()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for p in parameters:
            if not torch.is_floating_point(p) or p.device.type not in devices:
                return NotApplicable(why=f"a parameter of {p.dtype} on {p.device.type} has no fused kernel")
            if p.grad is not None and p.grad.is_sparse:
                return NotApplicable(why="a parameter has sparse gradients")
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
            for p in group["params"]:
                state = optimizer.state.get(p)
                step = None if state is None else state.get("step")
                if step is not None:  # the fused kernel reads the count where the parameter lives
                    state["step"] = torch.as_tensor(step, dtype=torch.float32).to(p.device)
        optimizer.defaults["fused"], optimizer.defaults["foreach"] = True, False
        optimizer._step_supports_amp_scaling = True
        return Applied(detail=f"fused=True for {len(parameters)} parameters")


TECHNIQUE = FusedOptimizer()
