"""Analysis -> padding-waste: forward and backward compute tokens that are only padding."""

from __future__ import annotations

import os
import re

from hotloop.core.analysis import Analysis, LoaderFacts, RankAnalysis
from hotloop.core.findings import REMOVED_LOW_RATIO, Basis, Finding, Fix, Skipped, Where, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.forecasts import dispatch_ns
from hotloop.judge.diagnose.lines import BATCH, field_lines, loop_places
from hotloop.judge.diagnose.measured import is_material, known_places, train_share

UNKNOWN_LOW_RATIO = 0.3
"""Rule of thumb: the certain part of the saving if the batch's longest sample is unknown and half of the padding is
assumed to go."""
GAPS_OF_BATCHES = ("after_input_ns", "other_ns", "after_backward_ns")
_MAKES_BATCH = re.compile(r"(?i)pad|collat|batch")
BUCKETED_PADDING_RATIO = 0.05
"""The padding that remains if samples of similar length share a batch, or are packed into rows."""


@rule("padding-waste", "much of every batch is padding")
def judge_padding_waste(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Measures how much of the sampled batches is padding, and how much padding would remain with each of two remedies.

    ## Why it costs
    The model computes padding like any other token. Time in linear layers grows with the number of positions, and time
    in attention grows with the square of the length.

    ## How to recognize it
    Integer batches are sampled; a value that fills the ends of the rows is padding. The same batches show how much
    padding would remain if each were padded only to its own longest sample.

    ## What to do
    In the collate function, pad to the longest sample of the batch, not to the model's maximum. If lengths vary within
    a batch, group samples of similar length (`group-by-length`). An IterableDataset determines its own order, so its
    samples cannot be grouped: pack several samples into one row instead (`pack-sequences`), which leaves equally little
    padding.

    ## When it is wrong
    If torch.compile or CUDA graphs need static shapes, padding to one of a few bucket lengths is better than padding to
    the exact length of the longest sample. Bucketing changes which samples share a batch. A real token at the ends of
    the rows looks like padding.
    """
    rank = analysis.lead
    padding = rank.padding_ratio
    if padding is None:
        return Skipped(reason="no integer batches with a padding value were sampled")
    longest = rank.padding_to_longest_ratio
    share = train_share(analysis)
    scaling = share * _scaling_share(rank)
    remaining = min(padding, longest) if longest is not None else padding / 2
    by_longest = (padding - remaining) / (1.0 - remaining) if remaining < 1.0 else 0.0
    by_bucketing = max(0.0, (padding - BUCKETED_PADDING_RATIO) / (1.0 - BUCKETED_PADDING_RATIO))
    use_longest = by_longest >= 0.4 * by_bucketing
    fewer_tokens = by_longest if use_longest else by_bucketing
    cost_ratio = padding * share
    if not is_material(analysis, fewer_tokens * scaling) or fewer_tokens < 0.03:
        return None
    # At best all of forward and backward shrinks with the tokens.
    low, mid, high = REMOVED_LOW_RATIO * fewer_tokens * scaling, fewer_tokens * scaling, fewer_tokens * share
    saving = saving_within(cost_ratio, low, mid, high, Basis.SIMULATED)
    if longest is None:
        saving = saving_within(cost_ratio, UNKNOWN_LOW_RATIO * mid, mid, cost_ratio, Basis.RULE_OF_THUMB)
    loader = next((one for one in rank.loaders if one.feeds_backward), None)
    return Finding(
        title=f"{padding:.0%} of every batch is padding",
        phase="forward",
        cost_ns=round(cost_ratio * analysis.step_ns),
        cost_ratio=cost_ratio,
        time_ns={phase: round(padding * rank.breakdown.mean_ns(phase)) for phase in ("forward", "backward")},
        saving=saving,
        evidence={
            "padding_ratio": round(padding, 4),
            "padding_to_longest_ratio": None if longest is None else round(longest, 4),
            "fewer_tokens_by_padding_to_longest_ratio": round(by_longest, 4),
            "fewer_tokens_by_bucketing_ratio": round(by_bucketing, 4),
        },
        where=_where(loader) or _batch_makers(rank),
        fix=Fix(technique=_choose_act(use_longest, loader)),
    )


def _choose_act(use_longest: bool, loader: LoaderFacts | None) -> str:
    if use_longest:
        return "pad-to-longest"
    return "pack-sequences" if loader is not None and loader.iterable else "group-by-length"


def _where(loader: LoaderFacts | None) -> tuple[Where, ...]:
    """The user's collate function, or else the data set (it may return complete batches); then the DataLoader."""
    if loader is None:
        return ()
    return known_places(loader.collate_where or loader.fetch_where, loader.where)


def _batch_makers(rank: RankAnalysis) -> tuple[Where, ...]:
    """Without a DataLoader: the sampled functions whose names say that they make a batch, else those whose file's name
    does, from the training loop inward."""
    loop = loop_places(rank)
    lines = [line for name in GAPS_OF_BATCHES for line, kind in field_lines(rank, name) if kind == BATCH]
    stacks = [line.stack or (line.where,) for line in (*lines, *rank.thread_lines)]
    frames = dict.fromkeys(where for stack in stacks for where in stack if (where.file, where.function) not in loop)
    by_function = [where for where in frames if _MAKES_BATCH.search(where.function)]
    by_file = [where for where in frames if _MAKES_BATCH.search(os.path.basename(where.file))]
    return tuple((by_function or by_file)[:2])


def _scaling_share(rank: RankAnalysis) -> float:
    """Share of forward and backward that shrinks with the number of tokens, 0..1.

    The time to start each counted operator does not shrink; without counts, all of the time is assumed to shrink.
    """
    train_ns = rank.mean.get("forward_ns", 0.0) + rank.mean.get("backward_ns", 0.0)
    return max(0.0, 1.0 - dispatch_ns(rank) / train_ns) if train_ns > 0 else 1.0
