"""An order of samples and their lengths -> the same samples, each once, in batches of similar length."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DistributedSampler, Sampler

MEGA_BATCHES = 50
"""Batches that are sorted together, as in fairseq and Transformers: enough to find neighbours of like length, and few
enough that batches are still made of samples from everywhere."""
LEAST_WINDOWS = 4
"""Windows of an epoch, as in Transformers. In a single one the lengths alone decide which samples share a batch, and
every epoch has the same batches."""


def group_by_length(
    order: Sequence[int], lengths: Sequence[int], batch_size: int, mega_batches: int = MEGA_BATCHES, ranks: int = 1
) -> list[int]:
    """``order`` with samples of similar length beside each other, batches of ``batch_size`` per rank in random order.

    Samples are sorted within windows of ``mega_batches`` batches, or of fewer where that would leave less than
    ``LEAST_WINDOWS`` windows; windows are cut into batches, and the batches are shuffled. With
    several ``ranks``, ``order`` deals its samples to them in turn, and so does the answer: at each step all ranks have
    samples of one length. What does not fill a batch on every rank stays at the end, so that ``drop_last`` drops what
    it would have dropped. The shuffle follows from the order itself and draws from no generator of the training.

    >>> group_by_length([0, 1, 2, 3, 4, 5, 6, 7, 8], [9, 1, 8, 2, 5, 7, 6, 9, 3], batch_size=2)
    [1, 3, 2, 0, 5, 7, 4, 6, 8]
    """
    step = batch_size * ranks
    whole = len(order) // step * step
    window = step * batches_of_window(whole // step, mega_batches)
    batches: list[list[int]] = []
    for start in range(0, whole, window):
        part = sorted(order[start : min(start + window, whole)], key=lambda index: int(lengths[index]))
        batches += [part[first : first + step] for first in range(0, len(part), step)]
    draw = torch.Generator().manual_seed(_seed_of(order))
    shuffled = [batches[place] for place in torch.randperm(len(batches), generator=draw).tolist()]
    return [index for batch in shuffled for index in batch] + list(order[whole:])


def batches_of_window(batches: int, mega_batches: int) -> int:
    """At most ``mega_batches``, and so few that there are LEAST_WINDOWS windows, or as many as can hold two batches."""
    windows = min(LEAST_WINDOWS, max(2, batches // 2))
    return max(1, min(mega_batches, math.ceil(batches / windows)))


def padding_ratio(order: Sequence[int], lengths: Sequence[int], batch_size: int) -> float:
    """Share of the positions of all batches that is padding, if each is padded to its longest sample.

    >>> padding_ratio([0, 1, 2, 3], [4, 1, 3, 3], batch_size=2)
    0.2142857142857143
    """
    held = positions = 0
    for start in range(0, len(order), batch_size):
        of_batch = [int(lengths[index]) for index in order[start : start + batch_size]]
        held += sum(of_batch)
        positions += max(of_batch) * len(of_batch)
    return 1.0 - held / positions if positions else 0.0


class GroupedOrder(Sampler[int]):
    """A sampler whose passes with gradients come in groups of one length; it takes another one's place.

    Without gradients (validation) the order stays. ``source`` draws as it would alone; a DistributedSampler is grouped
    over all ranks at once.
    """

    def __init__(self, source: Any, lengths: Sequence[int], batch_size: int, mega_batches: int) -> None:
        self.source = source
        self.lengths = lengths
        self.batch_size = batch_size
        self.mega_batches = mega_batches

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[int]:
        if not torch.is_grad_enabled():
            return iter(self.source)
        if not isinstance(self.source, DistributedSampler):
            return iter(group_by_length(list(self.source), self.lengths, self.batch_size, self.mega_batches))
        ranks, rank = self.source.num_replicas, self.source.rank
        order = _order_of_all_ranks(self.source)
        return iter(group_by_length(order, self.lengths, self.batch_size, self.mega_batches, ranks)[rank::ranks])

    def __getattr__(self, name: str) -> Any:
        """What else the sampler has that it stands for (``set_epoch``, ``generator``)."""
        if name.startswith("__") or name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)


def _order_of_all_ranks(sampler: DistributedSampler[Any]) -> list[int]:
    """What the sampler deals to all ranks in this epoch, in turn; the same on each of them."""
    every = copy.copy(sampler)
    every.num_replicas, every.rank, every.num_samples = 1, 0, sampler.total_size
    return list(every)


def _seed_of(order: Sequence[int]) -> int:
    """A number that follows from an order, and differs between the permutations of two epochs."""
    seed = len(order)
    for index in order[:16]:
        seed = (seed * 1_000_003 + int(index) + 1) % 2**62
    return seed
