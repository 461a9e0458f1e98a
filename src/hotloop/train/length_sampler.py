"""Lengths of samples -> a sampler for a DataLoader whose batches hold samples of similar length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from hotloop.apply.length_groups import MEGA_BATCHES, group_by_length
from hotloop.core.errors import UsageError


class LengthGroupedSampler(Sampler[int]):
    """Every sample once an epoch, shuffled, and beside others of similar length.

    >>> sampler = LengthGroupedSampler([7, 1, 8, 2], batch_size=2)
    >>> sorted(sampler), len(sampler)
    ([0, 1, 2, 3], 4)

    Give it as ``sampler`` of a DataLoader with the same ``batch_size``, and call ``set_epoch`` before each epoch.
    Windows of ``mega_batches`` batches (fewer in small data: an epoch has at least four windows, or as many as can hold
    two batches, so that batches differ from epoch to epoch) are sorted by length and cut into batches, which are
    shuffled. On several ranks
    (``ranks``, ``rank``) every step has batches of similar length on all of them; as with torch's DistributedSampler,
    some samples of the beginning come twice to make the ranks equal. Raises UsageError for arguments that make no
    sense.
    """

    def __init__(
        self,
        lengths: Sequence[int] | torch.Tensor,
        batch_size: int,
        *,
        mega_batches: int = MEGA_BATCHES,
        seed: int = 0,
        ranks: int = 1,
        rank: int = 0,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("mega_batches", mega_batches), ("ranks", ranks)):
            if value < 1:
                raise UsageError(f"LengthGroupedSampler: {name} is {value}; give 1 or more")
        if not 0 <= rank < ranks:
            raise UsageError(f"LengthGroupedSampler: rank is {rank} of {ranks} ranks; give 0 to {ranks - 1}")
        try:
            self.lengths: list[int] = [int(one) for one in lengths]
        except (TypeError, ValueError) as error:
            raise UsageError(f"LengthGroupedSampler: lengths must hold one whole number per sample ({error})") from None
        if not self.lengths:
            raise UsageError("LengthGroupedSampler: lengths is empty; give the length of every sample")
        self.batch_size = batch_size
        self.mega_batches = mega_batches
        self.seed = seed
        self.ranks = ranks
        self.rank = rank
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Which epoch's order comes next; the same number gives the same order on every rank."""
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(len(self.lengths) / self.ranks)

    def __iter__(self) -> Iterator[int]:
        draw = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        order: list[Any] = torch.randperm(len(self.lengths), generator=draw).tolist()
        missing = len(self) * self.ranks - len(order)
        order += (order * math.ceil(missing / len(order)))[:missing]
        grouped = group_by_length(order, self.lengths, self.batch_size, self.mega_batches, self.ranks)
        return iter(grouped[self.rank :: self.ranks])
