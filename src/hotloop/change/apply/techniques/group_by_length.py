"""group-by-length: samples of similar length share a batch, so that less of it is padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Value
from hotloop.core.sources import Wrapped
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

LEAST_WON_RATIO = 0.03
"""Part of the positions that grouping has to save."""
MOST_SIMULATED = 20_000


class GroupByLength(Technique):
    """
    ## What it does
    Changes the order of the training samples: the shuffled order is cut into windows of `mega_batches` batches, each
    window is sorted by length and cut into batches, and the batches are shuffled. Small datasets get smaller windows,
    at least four in an epoch (fewer only if a window would hold less than two batches), because in a single window, the
    same samples would share a batch in every epoch. Every epoch still contains each sample once, in a different order
    each time; the sampler draws the same random numbers as before. With a DistributedSampler, the windows span all
    ranks, so that all ranks have batches of similar length in each step. Passes without gradients (validation) keep
    their order.

    Lengths come from a list in the dataset (`self.lengths`, or a list of sequences that agrees with the samples). If
    there is none, hotloop reads every sample once in a forked process, for at most `measure_s` seconds.

    In a script of your own, `loader = hotloop.group_by_length(loader)` does the same. If you know the lengths, use
    `sampler=hotloop.LengthGroupedSampler(lengths, batch_size)`. The Transformers Trainer has an option for grouping by
    length (`group_by_length=True`, or `train_sampling_strategy="group_by_length"` in newer versions).

    ## When it helps
    It helps if lengths vary and `collate_fn` pads each batch to its longest sample. The report shows the share of
    padding before and after, computed from the lengths.

    ## When it does not
    hotloop leaves the order unchanged in the following cases, and reports the reason: batches that are padded to a
    fixed length (pad to the longest first), batches with little padding, samples of one length, a dataset that cannot
    be measured in time, `shuffle=False`, sampling with replacement, the script's own samplers and batch samplers, and
    iterable datasets. With several ranks, it needs a DistributedSampler and a list of lengths, because every rank has
    to compute the same order. With grouping, the step time varies with the length of the batch, and a model that is
    compiled for fixed shapes gets more different shapes.

    ## Numerics
    Resampled: samples share batches with different samples. If the loss is a mean over a batch's tokens, a token counts
    more in a batch of short samples, which holds fewer tokens. Compare the loss.
    """

    id = "group-by-length"
    summary = "put samples of similar length into a batch"
    effort = "medium"
    numerics = Numerics.RESAMPLED
    stage = Stage.LOADER
    source = Wrapped(function="group_by_length", names=("mega_batches",))
    treats = ("padding-waste",)
    settings = (
        Setting(
            name="mega_batches",
            kind=int,
            default=50,
            help="number of batches that are sorted together, at most a quarter of the epoch; a smaller number mixes "
            "the samples better, a larger number leaves less padding",
            least=2,
            most=1_000_000,
        ),
        Setting(
            name="measure_s",
            kind=float,
            default=10.0,
            help="time limit for reading every sample to measure its length, in seconds",
            least=0.1,
            most=3600.0,
        ),
    )

    def change_loader(self, loader: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from hotloop.change.apply.length_groups import (
            GroupedOrder,
            batches_of_window,
            find_lengths,
            group_by_length,
            padding_ratio,
        )

        mega_batches, measure_s = settings["mega_batches"], settings["measure_s"]
        assert isinstance(mega_batches, int)
        assert isinstance(measure_s, float)
        why = _why_not(loader, context)
        if why is not None:
            return NotApplicable(why=why)
        lengths = find_lengths(loader, measure_s, may_read=context.world_size == 1)
        if isinstance(lengths, str):
            return NotApplicable(why=lengths)
        batches, size = loader.batch_sampler, loader.batch_size
        order = _some_order(len(lengths.values), size)
        before = padding_ratio(order, lengths.values, size)
        after = padding_ratio(group_by_length(order, lengths.values, size, mega_batches), lengths.values, size)
        if before - after < LEAST_WON_RATIO:
            return NotApplicable(why=f"padding is {before:.1%} of the positions, and would be {after:.1%}")
        source = batches.sampler
        batches.sampler = GroupedOrder(source, lengths.values, size, mega_batches)

        def undo() -> None:
            batches.sampler = source

        return Applied(
            text="sorts {window} batches at a time by length: padding {padding_before:.0%} of the positions, "
            "{padding_after:.0%} afterwards; lengths from {source}",
            values={
                "mega_batches": mega_batches,
                "window": batches_of_window(len(batches), mega_batches),
                "padding_before": round(before, 4),
                "padding_after": round(after, 4),
                "source": lengths.source,
            },
            undo=undo,
        )


def _why_not(loader: Any, context: Context) -> str | None:
    """Why the order of this loader must stay, as far as hotloop can see without reading samples."""
    from torch.utils import data as torch_data

    data: Any = torch_data
    sampler: Any = loader.sampler
    batches, kind = loader.batch_sampler, type(sampler)
    if loader._dataset_kind == 1:
        return f"{type(loader.dataset).__name__} is iterable: it defines its own order"
    if type(batches) is not data.BatchSampler:
        return "the loader has " + (
            "no batch sampler" if batches is None else f"a batch sampler of its own ({type(batches).__name__})"
        )
    if batches.sampler is not sampler:
        return f"its order has already been changed ({type(batches.sampler).__name__})"
    if loader.batch_size == 1:
        return "a batch of one sample has no padding"
    if kind is data.DistributedSampler:
        return None if sampler.shuffle else "the script asks for its samples in order (shuffle=False)"
    if kind is data.SequentialSampler:
        return "the script asks for its samples in order (shuffle=False)"
    if kind is not data.RandomSampler:
        return f"the script has a sampler of its own ({kind.__name__})"
    if sampler.replacement or sampler.num_samples != len(sampler.data_source):
        return "the sampler draws with replacement, or not every sample"
    if context.world_size > 1:
        return f"{context.world_size} ranks shuffle separately: without a DistributedSampler their orders differ"
    return None


def _some_order(count: int, batch_size: int) -> list[int]:
    """An order in which samples might come, for the share of padding: of all samples, or of enough to estimate it."""
    import torch

    from hotloop.change.apply.length_groups import LEAST_WINDOWS, MEGA_BATCHES

    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    return order[: max(MOST_SIMULATED, LEAST_WINDOWS * MEGA_BATCHES * batch_size)]
