"""accumulation and no-sync-accumulation: a step of several micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.change.apply.forecasts import forecast_removal
from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Saving, Value, saving_within
from hotloop.core.sources import NoSource
from hotloop.core.techniques import (
    Applied,
    Call,
    Context,
    Effect,
    MemoryForm,
    MemorySaving,
    NotApplicable,
    Setting,
    Stage,
    Technique,
)


class Accumulation(Technique):
    """
    ## What it does
    The Trainer splits each batch into `micro_batches` parts, adds up their gradients and steps once, so the effective
    batch stays the same. Each part's loss is weighted by its share of the samples, so a smaller last part counts
    correctly. Ranks exchange gradients once per step. In your own loop, use `hotloop.train.accumulate.micro_batches`.

    ## When it helps
    It helps if the activations of the entire batch do not fit in memory: peak memory becomes that of one micro-batch.
    Compared with four small steps, 4 parts save 3 of 4 exchanges between ranks; on two gloo ranks that share two cores,
    each avoided exchange of 3.2 MB saved 5.1 to 6.2 ms (3 to 5 interleaved pairs).

    ## When it does not
    It does not fix low utilization: smaller matrices compute less per second. It saves no memory for parameters,
    gradients or optimizer state. Losses that are not a mean over samples, BatchNorm and contrastive losses work on the
    micro-batch, not on the batch.

    ## Numerics
    Reordered for a mean loss over samples: the same sum in another order. A mean over tokens with padding changes,
    because parts are weighted by samples.
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


class NoSyncAccumulation(Technique):
    """
    ## What it does
    Makes DistributedDataParallel keep gradients local for all micro-batches of a step except the last. All ranks
    together learn the number of micro-batches from the first steps. If a step has fewer micro-batches (the last,
    shorter step of an epoch), its gradients are averaged too: they are exchanged before clipping, unscaling or the step
    uses them.

    ## When it helps
    It helps with gradient accumulation without `no_sync()`: with k micro-batches, it saves k-1 exchanges of all
    gradients. On two gloo ranks that share two cores, each avoided exchange of 3.2 MB saved 5.1 to 6.2 ms (3 to 5
    interleaved pairs).

    ## When it does not
    It saves nothing with one backward per step. It does not apply to scripts that read or change gradients by hand
    (`.grad`), or that clip after every micro-batch, because they would see the gradients of only one rank. It does not
    apply with communication hooks (except compress-gradients, which then compresses the sum once per step), hooks on
    parameters, sparse gradients, `join()`, or `find_unused_parameters` (unless ddp-settings turns it off). Code that is
    imported later and uses gradients between micro-batches would see local gradients.

    ## Numerics
    Reordered: the same sum of gradients, first over micro-batches, then over ranks.
    """

    id = "no-sync-accumulation"
    summary = "average gradients once per step instead of after every micro-batch"
    effort = "medium"
    numerics = Numerics.REORDERED
    stage = Stage.LOOP
    source = NoSource(why="it changes the structure of the loop, which cannot be derived from the observed lines")
    treats = ("sync-every-microstep",)
    watch_steps = True
    functions = (
        "torch.nn.utils.clip_grad:clip_grad_norm_",
        "torch.nn.utils.clip_grad:clip_grad_value_",
        "torch.nn.utils.clip_grad:_clip_grads_with_norm_",  # torch.nn.utils calls it clip_grads_with_norm_
        "torch.amp.grad_scaler:GradScaler.unscale_",
    )
    settings = (
        Setting(
            name="learn_steps",
            kind=int,
            default=4,
            help="steps used to learn the number of micro-batches; at most half of them may have fewer",
            least=2,
            most=256,
        ),
    )

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from hotloop.change.apply.ddp import find_ddp, why_no_average
        from hotloop.change.apply.rhythm import Rhythm

        choice = context.strategy.get(self.id)
        if choice is not None and choice.where:
            return NotApplicable(
                why="it cannot be limited to a place (where), because every use of the gradients must be observed"
            )
        if not context.from_outside:
            return NotApplicable(why="your loop must do it: use hotloop.train.accumulate.micro_batches")
        found = find_ddp(model)
        if not found:
            return NotApplicable(why="the model is not a DistributedDataParallel")
        if len(found) > 1 or found[0] is not model:
            return NotApplicable(why="DistributedDataParallel is inside another module, or compiled")
        if "rhythm" in context.memory(self.id):
            return NotApplicable(why="the script trains a second DistributedDataParallel")
        why = why_no_average(model)
        if why is not None:
            return NotApplicable(why=why)
        rhythm_memory = context.memory(self.id)
        steps = settings["learn_steps"]
        assert isinstance(steps, int)

        def emit(text: str, values: Mapping[str, Value] | None) -> None:
            context.report(self.id, NotApplicable(why=text) if values is None else Applied(text=text, values=values))

        rhythm_memory["rhythm"] = Rhythm(model, steps, emit)
        return None

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        rhythm = context.memory(self.id).get("rhythm")
        if rhythm is not None:
            rhythm.watch_optimizer(optimizer)
        return None

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        rhythm = context.memory(self.id).get("rhythm")
        if rhythm is not None:
            rhythm.before_use(False)
        return None

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        """The exposed communication of every synchronization but one. Waiting for another rank may come back at the one
        that stays: the low end is therefore the rank that waits least."""
        exposed = [rank.ddp.exposed_comm_ns for rank in analysis.ranks if rank.ddp is not None]
        known = [one for one in exposed if one is not None]
        extra = analysis.lead.mean["synced_backwards"] - 1.0
        if len(known) != len(analysis.ranks) or extra <= 0:
            return None
        least = forecast_removal(analysis, extra * min(known))
        mean = forecast_removal(analysis, extra * sum(known) / len(known))
        if mean is None:
            return None
        low = 0.0 if least is None else least.low_ratio
        return saving_within(mean.high_ratio, low, (low + mean.high_ratio) / 2, mean.high_ratio, mean.basis)
