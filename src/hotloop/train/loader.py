"""DataLoaders and samplers for your own script: settings that fit, batches by length, kept samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import Sampler

from hotloop.change.apply import length_groups
from hotloop.change.apply.api import apply_strategy
from hotloop.change.apply.device_batches import DevicePrefetcher as DevicePrefetcher
from hotloop.core.errors import UsageError
from hotloop.core.findings import Value
from hotloop.core.strategy import Choice, Strategy


class LengthGroupedSampler(Sampler[int]):
    """Every sample once an epoch, shuffled, and batched with others of similar length.

    >>> sampler = LengthGroupedSampler([7, 1, 8, 2], batch_size=2)
    >>> sorted(sampler), len(sampler)
    ([0, 1, 2, 3], 4)

    Give it as ``sampler`` of a DataLoader with the same ``batch_size``, and call ``set_epoch`` before each epoch.
    Windows of ``mega_batches`` batches are sorted by length and cut into batches, which are shuffled. Small datasets
    get smaller windows: an epoch has at least four, or as many as can hold two batches, so that batches differ from
    epoch to epoch. On several ranks (``ranks``, ``rank``), all ranks have batches of similar length in every step; as
    with torch's DistributedSampler, some samples from the beginning come twice to make the ranks equal. Raises
    UsageError for arguments that make no sense.
    """

    def __init__(
        self,
        lengths: Sequence[int] | torch.Tensor,
        batch_size: int,
        *,
        mega_batches: int = length_groups.MEGA_BATCHES,
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
        """The epoch whose order comes next; the same number gives the same order on every rank."""
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(len(self.lengths) / self.ranks)

    def __iter__(self) -> Iterator[int]:
        draw = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        order: list[Any] = torch.randperm(len(self.lengths), generator=draw).tolist()
        missing = len(self) * self.ranks - len(order)
        order += (order * math.ceil(missing / len(order)))[:missing]
        grouped = length_groups.group_by_length(order, self.lengths, self.batch_size, self.mega_batches, self.ranks)
        return iter(grouped[self.rank :: self.ranks])


L = TypeVar("L")


def group_by_length(loader: L, *, mega_batches: int = 50, measure_s: float = 10.0) -> L:
    """Make the DataLoader's batches hold samples of similar length (technique group-by-length); returns it.

    Raises UsageError with the reason where its order must stay; in that case, remove the call.
    """
    return _change(loader, "group-by-length", {"mega_batches": mega_batches, "measure_s": measure_s})


def cache_samples(loader: L, *, most_bytes: int | None = None) -> L:
    """Make the DataLoader return cached samples from the second epoch on (technique cache-samples); returns it.

    Raises UsageError with the reason where samples cannot be kept; in that case, remove the call.
    """
    return _change(loader, "cache-samples", {"most_bytes": most_bytes})


def _change(loader: L, technique: str, settings: dict[str, Value]) -> L:
    given = {name: value for name, value in settings.items() if value is not None}
    applied = apply_strategy(Strategy(choices=(Choice(technique=technique, settings=given),)), loader=loader)
    for record in applied.records:
        if record.status != "applied":
            raise UsageError(f"{technique.replace('-', '_')}: {record.detail}; leave the call out")
    changed: L = applied.loader
    return changed
