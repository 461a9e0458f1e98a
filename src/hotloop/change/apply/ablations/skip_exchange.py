"""skip-exchange: ranks that keep their gradients to themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.ablations import Ablation
from hotloop.core.findings import Value
from hotloop.core.techniques import Applied, Context, Effect


class SkipExchange(Ablation):
    """
    ## What it does
    Leaves DistributedDataParallel in the state of its own `no_sync()`: no backward exchanges gradients. Gathers of
    sharded weights and the script's own collectives stay, since their results are needed.
    """

    id = "skip-exchange"
    summary = "DistributedDataParallel exchanges no gradients"
    leaves = "all of the exchange is gone, also the part that overlaps with backward"

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from torch.nn.parallel import DistributedDataParallel

        if not isinstance(model, DistributedDataParallel):
            context.memory(self.id)["why_not"] = "only DistributedDataParallel can leave out its exchange"
            return None
        model.require_backward_grad_sync = False
        return Applied(text="no gradients are exchanged")
