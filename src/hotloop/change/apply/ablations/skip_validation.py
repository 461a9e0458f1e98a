"""skip-validation: every validation reads one batch and no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.ablations import Ablation
from hotloop.core.findings import Value
from hotloop.core.techniques import Applied, Call, Context, Effect, NotApplicable

PLATEAU = "torch.optim.lr_scheduler:ReduceLROnPlateau.step"


class SkipValidation(Ablation):
    """
    ## What it does
    Lets each pass over a DataLoader without gradients end after its first batch, which is read once. A metric that
    decides about training (ReduceLROnPlateau, early stopping) would be wrong: then there is no bound.
    """

    id = "skip-validation"
    summary = "each validation computes one batch, from a cache"
    leaves = "one batch of each validation remains"
    functions = ("torch.utils.data.dataloader:DataLoader._get_iterator", PLATEAU)

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        """Changes nothing: whoever defines this hook knows the models and whether they are in training mode."""
        return None

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        from hotloop.change.apply.replayed_batches import make_replay, read_batches

        if call.name == PLATEAU:
            return NotApplicable(why="the scheduler ReduceLROnPlateau may read what validation computes")
        caches = context.memory(self.id)
        if not _is_validation(context, caches):
            return None
        (loader,) = call.args
        cache = caches.setdefault(f"{id(loader.dataset)} {id(loader.collate_fn)}", [])
        if not cache:
            cache += read_batches(call.function(loader), 1)
        call.function = make_replay(cache, lambda why: context.report(self.id, NotApplicable(why=why)), passes_end=True)
        return Applied(text="validation ends after one batch of {loader}", values={"loader": type(loader).__name__})


def _is_validation(context: Context, memory: dict[str, Any]) -> bool:
    """Whether a pass that begins now computes no gradients: none are enabled, or the model has left training mode."""
    import torch

    trains = any(model.training for model in context.models())
    memory["trained"] = memory.get("trained", False) or trains
    return not torch.is_grad_enabled() or (memory["trained"] and not trains)
