"""Gradients in 8 bits with error feedback, as a communication hook: a quarter of float32's bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .hooks import Bucket, GradientHook, Residuals, all_gather, new_future, pieces_of, state_by_name
from .quantization import BLOCK_COUNT, blocks_of, dequantize, quantize

LEVELS = 127
SCALE_BYTES = 4
WORD_BYTES = 8
"""Blocks are moved in words: 26 million elements took 4 ms as words, 17 to 29 ms as bytes (one thread, 2026-11-23)."""


class Int8Hook(GradientHook):
    """Gradients as 8-bit integers with one scale per block of 1,024 elements, each block averaged by one rank.

    Each rank sends every other rank that one's blocks (all-to-all), averages what it gets for its own, and sends the
    mean as 8-bit integers to all (all-gather): between two ranks 1.004 bytes per element, where an all-reduce of
    float32 sends 4. What both roundings take away is kept and added to the next gradient; the second is kept by the
    block's rank, times the number of ranks, because only that one adds it. The all-gathers begin with the last bucket,
    in the order of the buckets. Blocks begin with their parameter, so that DDP's layout of the buckets does not change
    the training.
    """

    def __init__(self, group: Any = None) -> None:
        super().__init__(group)
        self._unsent = Residuals(multiple=BLOCK_COUNT)
        self._places: dict[tuple[int, ...], _Places] = {}
        self._waiting: list[_Int8Bucket] = []

    def describe(self) -> str:
        return "a quarter of the bytes; rounding errors are kept"

    def send(self, bucket: Bucket) -> Any:
        buffer = bucket.buffer()
        if buffer.dtype != torch.float32:
            raise TypeError(f"int8 sends float32 gradients, but these are {buffer.dtype}: choose a 16-bit hook")
        one = _Int8Bucket(self, bucket, self._unsent.of(bucket), self._place(bucket))
        self._waiting.append(one)
        if not bucket.is_last():
            return one.future
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.send_mean()
        for one in waiting:
            one.finish()
        return one.future

    def _place(self, bucket: Bucket) -> _Places:
        """Where the blocks of a bucket go. Consecutive blocks of a parameter belong to consecutive ranks."""
        parameters = bucket.parameters()
        layout = tuple(map(id, parameters))
        known = self._places.get(layout)
        if known is None:
            first = {key: index for index, key in enumerate(self.names)}
            counts = [blocks_of(one.numel()) for one in parameters]
            owner = torch.cat(
                [torch.arange(count) + first.get(key, 0) for key, count in zip(layout, counts, strict=True)]
            )
            owner %= self.world_size
            position = torch.zeros_like(owner)
            for rank in range(self.world_size):
                mine = owner == rank
                position[mine] = torch.arange(int(mine.sum()))
            device = bucket.buffer().device
            known = _Places(
                owner=owner.to(device),
                position=position.to(device),
                own=(owner == dist.get_rank(self.group)).nonzero().flatten().to(device),
                rows=int(torch.bincount(owner).max()) if len(owner) else 0,
            )
            self._places[layout] = known
        return known

    def kept_state(self) -> dict[str, Any]:
        return {"unsent": state_by_name(self._unsent.by_parameter(), self.names)}

    def load_kept_state(self, state: Mapping[str, Any]) -> None:
        self._unsent.load(pieces_of(state["unsent"], self.names))

    def forget(self) -> None:
        self._unsent.load({})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """For each block of a bucket: the rank that averages it, and its row among those of that rank (int64, [blocks])."""

    owner: torch.Tensor
    position: torch.Tensor
    own: torch.Tensor
    """The blocks that this rank averages."""
    rows: int
    """The most blocks of one rank."""


class _Int8Bucket:
    """One bucket on its way. A payload has a part for each rank: ``rows`` blocks of integers, then their scales."""

    def __init__(self, hook: Int8Hook, bucket: Bucket, unsent: torch.Tensor, places: _Places) -> None:
        self.hook, self.unsent, self.places = hook, unsent, places
        self.buffer = bucket.buffer()
        self.future = new_future(self.buffer.device)
        sizes = [one.numel() for one in bucket.parameters()]
        self.pieces = self.buffer.split_with_sizes(sizes)
        for piece, kept in zip(self.pieces, unsent.split_with_sizes(_whole(sizes)), strict=True):
            kept[: piece.numel()].add_(piece)
        codes = torch.empty(unsent.numel(), dtype=torch.int8, device=unsent.device)
        scales = torch.empty(blocks_of(unsent.numel()), device=unsent.device)
        quantize(unsent, codes, scales, LEVELS)
        self.payload = self._new_payload(hook.world_size)
        words, sent_scales = self._parts(self.payload)
        at = (places.owner, places.position)
        words[at] = codes.view(torch.int64).view(-1, words.shape[-1])
        sent_scales[at] = scales
        self.received = torch.empty_like(self.payload)
        self.work = dist.all_to_all_single(self.received, self.payload, group=hook.group, async_op=True)

    def send_mean(self) -> None:
        """Average what all ranks sent of this one's blocks, and start to send the mean to all."""
        self.work.wait()
        ranks, count = self.hook.world_size, self.places.own.numel() * BLOCK_COUNT
        mean, one = self.unsent.new_zeros(count), self.unsent.new_empty(count)
        for words, scales in zip(*self._parts(self.received), strict=True):
            dequantize(words.view(-1).view(torch.int8)[:count], scales[: blocks_of(count)], one)
            mean.add_(one)
        mean.div_(ranks)
        self.payload = self._new_payload(1)
        words, scales = self._parts(self.payload)
        quantize(mean, words.view(-1).view(torch.int8)[:count], scales[0, : blocks_of(count)], LEVELS)
        self.unsent.view(-1, BLOCK_COUNT).index_add_(0, self.places.own, mean.view(-1, BLOCK_COUNT), alpha=ranks)
        self.work = all_gather(self.received, self.payload, group=self.hook.group, async_op=True)

    def finish(self) -> None:
        self.work.wait()
        words, scales = self._parts(self.received)
        at = (self.places.owner, self.places.position)
        codes, scales = words[at].view(-1).view(torch.int8), scales[at]
        start = 0
        for piece in self.pieces:
            block = start // BLOCK_COUNT
            count = piece.numel()
            dequantize(codes[start : start + count], scales[block : block + blocks_of(count)], piece)
            start += blocks_of(count) * BLOCK_COUNT
        self.future.set_result(self.buffer)

    def _new_payload(self, parts: int) -> torch.Tensor:
        shape = parts, self.places.rows * (BLOCK_COUNT + SCALE_BYTES)
        padding = -shape[1] % WORD_BYTES
        return torch.zeros(parts, shape[1] + padding, dtype=torch.uint8, device=self.buffer.device)

    def _parts(self, payload: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A payload's integers as words (int64, [parts, rows, 128]) and their scales (float32, [parts, rows])."""
        rows = self.places.rows
        words = payload[:, : rows * BLOCK_COUNT].view(torch.int64)
        words = words.view(len(payload), rows, BLOCK_COUNT // WORD_BYTES)
        scales = payload[:, rows * BLOCK_COUNT : rows * (BLOCK_COUNT + SCALE_BYTES)].view(torch.float32)
        return words, scales


def _whole(sizes: list[int]) -> list[int]:
    return [blocks_of(size) * BLOCK_COUNT for size in sizes]
