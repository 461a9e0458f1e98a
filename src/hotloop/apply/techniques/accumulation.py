"""accumulation: a batch in several micro-batches, one step for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Value
from hotloop.core.techniques import Context, Effect, MemoryForm, MemorySaving, NotApplicable, Setting, Stage, Technique


class Accumulation(Technique):
    """
    ## What it does
    The Trainer splits each batch into `micro_batches` parts, adds up their gradients and steps once, so the effective
    batch stays the same. Each part's loss is weighted by its share of the samples, so a smaller last part is right too.
    Ranks exchange gradients once a step. In your own loop, use `hotloop.train.accumulate.micro_batches`.

    ## When it helps
    The whole batch's activations do not fit: their peak becomes that of one micro-batch. Compared with four small
    steps, 4 parts save 3 of 4 exchanges between ranks; on two gloo ranks that share two cores, each saved exchange of
    3.2 MB was worth 5.1 to 6.2 ms (3 to 5 interleaved pairs).

    ## When it does not
    It does not cure low utilisation: smaller matrices compute less per second. It saves no parameters, gradients or
    optimizer state. Losses that are not a mean over samples, BatchNorm and contrastive losses see the part, not the
    batch.

    ## Numerics
    Reordered for a mean loss over samples: the same sum in another order. A mean over tokens with padding is not the
    same, because parts are weighted by samples.
    """

    id = "accumulation"
    summary = "use smaller micro-batches whose gradients add up to one step"
    effort = "medium"
    numerics = Numerics.REORDERED
    stage = Stage.LOOP
    memory = MemorySaving(
        what="activations of the other micro-batches", forms=(MemoryForm(settings={"micro_batches": 2}),), turn=1
    )
    needs_library = True
    settings = (Setting(name="micro_batches", kind=int, default=2, help="micro-batches per step", least=1, most=65536),)

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        if context.from_outside:
            return NotApplicable(why="the script's loop defines the batch; use the Trainer or micro_batches()")
        return NotApplicable(why="your loop must do it: iterate over hotloop.train.accumulate.micro_batches")
