"""A folder of tokens -> samples of equal length; and batches in an order that the number of ranks does not change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sized
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Sampler

from hotloop.core.errors import UsageError

from .shard_readers import MappedFiles
from .token_folder import open_folder, verify_folder

_ROUNDS = 6
_MASK = (1 << 64) - 1


def permute_index(position: int, count: int, key: int) -> int:
    """The index at ``position`` of the random order that ``key`` names, of the indices below ``count``.

    A Feistel network is a bijection of 2h-bit numbers, whatever its round function is; repeating it while the result is
    ``count`` or above keeps it a bijection of the indices below (Black and Rogaway, "Ciphers with arbitrary finite
    domains", CT-RSA 2002). Fewer than four passes are needed on average.

    >>> sorted(permute_index(position, 5, key=7) for position in range(5))
    [0, 1, 2, 3, 4]
    """
    half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
    half_mask = (1 << half_bits) - 1
    value = position
    while True:
        left, right = value >> half_bits, value & half_mask
        for number in range(_ROUNDS):
            left, right = right, left ^ (_mix(right + (key << half_bits) + number * 0x9E3779B97F4A7C15) & half_mask)
        value = left << half_bits | right
        if value < count:
            return value


def _mix(value: int) -> int:
    """The finalizer of splitmix64: each bit of the result depends on every bit below 2^64 of ``value``."""
    value &= _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


class TokenDataset(Dataset[torch.Tensor]):
    """Samples of ``seq_length`` + 1 tokens from a folder that ``hotloop tokenize`` wrote, read in place from disk.

    The documents of all shards form one packed row of tokens: sample i begins at token i x ``seq_length`` and shares
    its last token with the next, so that ``sample[:-1]`` are inputs and ``sample[1:]`` their targets, and each token
    except the first is a target once. Tokens after the last whole sample are left out.

    ``dataset[i]`` is an int64 tensor of shape (seq_length + 1,). With ``verify``, every file is first compared with its
    SHA-256.

    Raises UsageError for a folder that is damaged, incomplete, or too small for one sample.
    """

    def __init__(self, folder: str | Path, seq_length: int, *, verify: bool = False) -> None:
        if seq_length < 1:
            raise UsageError(f"seq_length={seq_length}: give a number of at least 1")
        self.folder = open_folder(folder)
        self._files = MappedFiles(str(folder))
        if verify:
            verify_folder(self.folder)
        self.seq_length = seq_length
        self._ends = list(accumulate(shard.tokens_count for shard in self.folder.shards))
        if len(self) == 0:
            raise UsageError(
                f"{folder} holds {self.folder.tokens_count} tokens, fewer than one sample of {seq_length} + 1 tokens; "
                "give a smaller seq_length"
            )

    def __len__(self) -> int:
        return max(0, self.folder.tokens_count - 1) // self.seq_length

    def __getitem__(self, index: int) -> torch.Tensor:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"sample {index} of {count}")
        start = index % count * self.seq_length
        return self.read_tokens(start, self.seq_length + 1)

    def read_tokens(self, start: int, count: int) -> torch.Tensor:
        """``count`` tokens starting at token ``start`` of all shards, as int64 of shape (count,)."""
        size = self.folder.token_bytes
        content = bytearray()
        while len(content) < count * size:
            shard = bisect_right(self._ends, start)
            first = self._ends[shard] - self.folder.shards[shard].tokens_count
            end = min(self._ends[shard], start + count - len(content) // size)
            name = f"{self.folder.shards[shard].name}.bin"
            content += self._files.read(name, (start - first) * size, (end - first) * size)
            start = end
        return decode_tokens(content, self.folder.token_type)


def decode_tokens(content: bytearray, token_type: str) -> torch.Tensor:
    """Little-endian uint16 or int32 tokens as int64."""
    if token_type == "int32":
        return torch.frombuffer(content, dtype=torch.int32).long()
    # torch.uint16 lacks most operations, and older versions lack torch.uint16.
    return torch.frombuffer(content, dtype=torch.int16).long() & 0xFFFF


class ElasticLoader:
    """Batches of a map-style data set; a scalar, ``cursor``, is the position of training for any number of ranks.

    The samples have one global order over all epochs. A step takes the next ``batch_size`` x ``world_size`` of them,
    each rank its part; ``cursor`` counts the samples that all ranks together have taken. Save ``state_dict()`` on one
    rank, and continue with more or fewer: each sample is seen once per epoch, in the same global order.

    ``shuffle_window`` shuffles only within this many neighboring samples, so that files are read almost in order.
    ``epochs`` None never ends. At the end of the last epoch, samples that do not fill a whole step are left out.
    ``rank`` and ``world_size`` default to torch.distributed's. Further arguments are passed to DataLoader
    (``num_workers``...); the cursor counts the batches that the training loop received, not those that wait in workers.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool = True,
        shuffle_window: int | None = None,
        seed: int = 0,
        epochs: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **arguments: Any,
    ) -> None:
        is_joined = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else dist.get_rank() if is_joined else 0
        self.world_size = world_size if world_size is not None else dist.get_world_size() if is_joined else 1
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank={self.rank}, world_size={self.world_size}: give a rank below world_size")
        for name, value in (("batch_size", batch_size), ("epochs", epochs), ("shuffle_window", shuffle_window)):
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}: give a number of at least 1")
        taken = {"batch_sampler", "sampler", "drop_last"} & set(arguments)
        if taken:
            raise UsageError(f"{min(taken)}: ElasticLoader itself defines the order of the samples; leave it out")
        self.batch_size, self.shuffle, self.seed, self.epochs = batch_size, shuffle, seed, epochs
        self.shuffle_window = shuffle_window
        self.samples_count = len(cast(Sized, dataset))
        if not self.samples_count:
            raise UsageError("the data set is empty; give one with samples")
        self.cursor = 0
        self._order = _RankOrder(self)
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._order, **arguments)

    def __iter__(self) -> Iterator[Any]:
        self._order.start = self.cursor
        for batch in self._loader:
            self.cursor += self.batch_size * self.world_size
            yield batch

    def __len__(self) -> int:
        """Batches left for this rank. Raises TypeError if the loader has no end."""
        if self.epochs is None:
            raise TypeError("an ElasticLoader without epochs has no length")
        return max(0, self.epochs * self.samples_count - self.cursor) // (self.batch_size * self.world_size)

    def sample_at(self, position: int) -> int:
        """The index of the data set's sample at a position of the global order."""
        epoch, within = divmod(position, self.samples_count)
        if not self.shuffle:
            return within
        key = self.seed * 1_000_003 + epoch
        size = self.shuffle_window or self.samples_count
        first = within - within % size
        count = min(size, self.samples_count - first)
        return first + permute_index(within - first, count, key * 1_000_003 + first // size)

    def state_dict(self) -> dict[str, Any]:
        """The cursor, and the values that identify the order; the same on every rank."""
        return {
            "cursor": self.cursor,
            "samples_count": self.samples_count,
            "shuffle": self.shuffle,
            "shuffle_window": self.shuffle_window,
            "seed": self.seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of any number of ranks. Raises UsageError if it belongs to another order."""
        own = self.state_dict()
        for name in ("samples_count", "shuffle", "shuffle_window", "seed"):
            if state.get(name) != own[name]:
                raise UsageError(
                    f"the state has {name}={state.get(name)!r}, this loader {own[name]!r}: another order of samples"
                )
        cursor = state.get("cursor")
        if not isinstance(cursor, int) or cursor < 0:
            raise UsageError(f"the state's cursor is {cursor!r}, not a count of samples")
        self.cursor = cursor


class _RankOrder(Sampler[list[int]]):
    """The indices of each batch of one rank, starting at ``start``."""

    def __init__(self, loader: ElasticLoader) -> None:
        self._loader = loader
        self.start = 0

    def __iter__(self) -> Iterator[list[int]]:
        loader = self._loader
        size, window = loader.batch_size, loader.batch_size * loader.world_size
        at = self.start
        while loader.epochs is None or at + window <= loader.epochs * loader.samples_count:
            first = at + loader.rank * size
            yield [loader.sample_at(position) for position in range(first, first + size)]
            at += window
