"""replay-batches: a training loader that reads a few batches and then gives them again and again."""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.core.ablations import Ablation
from hotloop.core.findings import Value
from hotloop.core.techniques import Applied, Call, Context, Effect, NotApplicable

CACHED_BATCHES = 8


class ReplayBatches(Ablation):
    """
    ## What it does
    Reads the first batches of each loader when the first pass begins, and gives them in turn from then on. A pass has
    as many batches as before. Workers end once the batches are read.
    """

    id = "replay-batches"
    summary = f"batches come from a cache of {CACHED_BATCHES}"
    leaves = "it also frees the CPU time that loading used"
    functions = ("torch.utils.data.dataloader:DataLoader._get_iterator",)

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        from hotloop.change.apply.replayed_batches import make_replay, read_batches

        if not torch.is_grad_enabled():
            return None  # a loader for validation
        (loader,) = call.args
        if loader._dataset_kind != torch.utils.data.dataloader._DatasetKind.Map:
            return NotApplicable(why="only reading an IterableDataset shows where a pass ends")
        caches = context.memory(self.id)
        cache = caches.setdefault(f"{id(loader.dataset)} {id(loader.collate_fn)}", [])
        if not cache:
            cache += read_batches(call.function(loader), CACHED_BATCHES)
        call.function = make_replay(cache, lambda why: context.report(self.id, NotApplicable(why=why)))
        values: dict[str, Value] = {"count": len(cache), "dataset": type(loader.dataset).__name__}
        return Applied(text="{count} batches of {dataset} are replayed", values=values)
