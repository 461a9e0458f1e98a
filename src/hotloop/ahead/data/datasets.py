"""A folder of tokens -> samples of equal length."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import torch
from torch.utils.data import Dataset

from hotloop.core.errors import UsageError

from .shard_readers import MappedFiles
from .token_folder import open_folder, verify_folder


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
