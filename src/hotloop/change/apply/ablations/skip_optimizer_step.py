"""skip-optimizer-step: an optimizer whose step updates nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from hotloop.core.ablations import Ablation
from hotloop.core.findings import Value
from hotloop.core.techniques import Applied, Context, Effect


class SkipOptimizerStep(Ablation):
    """
    ## What it does
    Replaces `step()` of each optimizer by a step that updates no parameter; its hooks, and a closure, still run.
    """

    id = "skip-optimizer-step"
    summary = "no optimizer updates its parameters"
    leaves = "all of the update is gone, and any optimizer needs part of it"

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from torch.optim import Optimizer

        optimizer.step = MethodType(Optimizer.profile_hook_step(_update_nothing), optimizer)
        return Applied(text="{optimizer} updates nothing", values={"optimizer": type(optimizer).__name__})


def _update_nothing(self: Any, closure: Callable[[], Any] | None = None) -> Any:
    import torch

    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
