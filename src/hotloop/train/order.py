"""Seed, epoch and position -> the samples of each rank in each micro-batch; every sample once, on any world size.

One optimizer step takes the next ``window`` samples of the epoch's permutation: world size x accumulation x batch size.
As long as that product stays the same, every step sees the same samples on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import Sampler

Part = tuple[int, int]
"""First sample and number of samples, in the epoch's permutation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How an epoch is divided. ``batch_size`` is that of one micro-batch on one rank."""

    samples_count: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    accumulate: int = 1
    drop_last: bool = False

    @property
    def window(self) -> int:
        """Samples of one optimizer step, over all ranks."""
        return self.batch_size * self.world_size * self.accumulate

    def full_steps(self, start: int) -> int:
        """Optimizer steps with a full window from sample ``start`` to the end of the epoch."""
        return max(0, self.samples_count - start) // self.window

    def rest(self, start: int) -> int:
        """Samples after the full windows: those of the last, smaller step. Zero where they are dropped."""
        return 0 if self.drop_last else max(0, self.samples_count - start) % self.window

    def rest_parts(self, rest: int) -> list[Part]:
        """This rank's micro-batches of the last step: as many on every rank, sizes that differ by one at most.

        A rank for which nothing is left gets a part of zero samples.

        >>> Layout(samples_count=5, batch_size=4, world_size=2, rank=1).rest_parts(5)
        [(3, 2)]
        """
        count = self._parts_count(rest)
        size, longer = divmod(rest, count)
        starts = [index * size + min(index, longer) for index in range(count + 1)]
        return [(starts[i], starts[i + 1] - starts[i]) for i in range(self.rank, count, self.world_size)]

    def least_part(self, rest: int) -> int:
        """Samples of the smallest batch that any rank gets in the last step; at least 1.

        >>> Layout(samples_count=3, batch_size=4, world_size=2).least_part(3)
        1
        """
        return max(1, rest // max(1, self._parts_count(rest)))

    def _parts_count(self, rest: int) -> int:
        return -(-rest // (self.batch_size * self.world_size)) * self.world_size


class BatchOrder(Sampler[list[int]]):
    """A batch sampler for map-style datasets: its batches follow from seed, epoch and position alone.

    ``set_position`` before each epoch (the Trainer does). A part without samples repeats one with weight 0.
    """

    def __init__(self, layout: Layout, *, shuffle: bool, seed: int) -> None:
        self.layout = layout
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.start = 0

    def set_position(self, epoch: int, start: int) -> None:
        """``start``: samples of this epoch that all ranks together have already taken."""
        self.epoch, self.start = epoch, start

    @property
    def pass_seed(self) -> int:
        """The seed of the random draws of this rank's samples in this epoch."""
        return (self.seed + self.epoch) * 65_537 + self.layout.rank

    def permutation(self) -> torch.Tensor:
        """The order of the entire epoch, the same on every rank."""
        count = self.layout.samples_count
        if not self.shuffle:
            return torch.arange(count)
        generator = torch.Generator()
        generator.manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        return torch.randperm(count, generator=generator)

    def sizes(self) -> list[int]:
        """How many samples count in each batch of this rank, from the position to the end of the epoch."""
        layout = self.layout
        rest = layout.rest(self.start)
        whole = [layout.batch_size] * (layout.full_steps(self.start) * layout.accumulate)
        return whole + ([count for _, count in layout.rest_parts(rest)] if rest else [])

    def __len__(self) -> int:
        return len(self.sizes())

    def __iter__(self) -> Iterator[list[int]]:
        layout, start = self.layout, self.start
        order = self.permutation()
        size = layout.batch_size
        stride = size * layout.world_size
        end = start + layout.full_steps(start) * layout.window
        for first in range(start + layout.rank * size, end, stride):
            yield order[first : first + size].tolist()
        rest = layout.rest(start)
        for first, count in layout.rest_parts(rest) if rest else ():
            yield order[end + first : end + first + count].tolist() or order[-1:].tolist()
