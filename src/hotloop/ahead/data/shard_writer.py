"""Tokens in order -> Megatron's .bin and .idx, and a state from which the same files continue after a kill.

The index, all integers little-endian (megatron/core/datasets/indexed_dataset.py, version 1):

    9 bytes    MMIDIDX and two zeros          8 bytes    version, 1
    1 byte     type: 8 uint16, 4 int32        8 bytes    sequences n          8 bytes   documents + 1
    n x int32  tokens of each sequence        n x int64  its first byte in the .bin
    (documents + 1) x int64                   first sequence of each document, and n
"""

from __future__ import annotations

import hashlib
import os
import struct
from array import array
from collections.abc import Mapping
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.core.tokenizing import TokenShard

from .token_folder import TOKEN_BYTES, hash_file, shard_name

INDEX_MAGIC = b"MMIDIDX\0\0"
INDEX_VERSION = 1
TYPE_CODES = {"uint16": 8, "int32": 4}
_LENGTHS = ".lengths"
"""Lengths of the documents in the current shard, int32; the index is built from them."""


class ShardWriter:
    """Appends documents; a shard ends before the document that would bring it above ``most_tokens``.

    ``state`` and ``resume_state`` are plain JSON: they describe the disk after ``sync``.
    """

    def __init__(self, folder: Path, token_type: str, most_tokens: int) -> None:
        self._folder = folder
        self._token_bytes = TOKEN_BYTES[token_type]
        self._token_type = token_type
        self._most_tokens = most_tokens
        self.shards: list[TokenShard] = []
        self._tokens_count = 0
        self._documents_count = 0
        self._digest = hashlib.sha256()
        self._bin: BinaryIO | None = None
        self._lengths: BinaryIO | None = None

    def close(self) -> None:
        """Close the files; unsynced data may be lost."""
        for stream in (self._bin, self._lengths):
            if stream is not None:
                stream.close()
        self._bin = self._lengths = None

    def add(self, tokens: bytes, lengths: array[int]) -> None:
        """Append documents: their tokens, and how many each has."""
        first, begin = 0, 0  # the first document of the current shard, and its byte
        for number, end in enumerate(accumulate(lengths)):
            count = end - begin // self._token_bytes
            if self._tokens_count + count > self._most_tokens:
                before = (end - lengths[number]) * self._token_bytes
                self._append(tokens[begin:before], lengths[first:number])
                first, begin = number, before
                if self._documents_count:
                    self.close_shard()
        self._append(tokens[begin:], lengths[first:])

    def sync(self) -> dict[str, Any]:
        """Write everything to the disk; returns the state from which to continue."""
        for stream in (self._bin, self._lengths):
            if stream is not None:
                stream.flush()
                os.fsync(stream.fileno())
        return {
            "shards": [asdict(shard) for shard in self.shards],
            "tokens_count": self._tokens_count,
            "documents_count": self._documents_count,
            "sha256": self._digest.hexdigest(),
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Cut the files back to ``state``. Raises UsageError if they are not what was written."""
        self.shards = [TokenShard(**shard) for shard in state["shards"]]
        self._tokens_count, self._documents_count = state["tokens_count"], state["documents_count"]
        kept = len(self.shards)
        for file in self._folder.glob("tokens-*"):
            if file.stem > shard_name(kept) or (file.stem == shard_name(kept) and file.suffix == ".idx"):
                file.unlink()
        name = shard_name(kept)
        sizes = {".bin": self._tokens_count * self._token_bytes, _LENGTHS: self._documents_count * 4}
        for suffix, size_bytes in sizes.items():
            file = self._folder / (name + suffix)
            found_bytes = file.stat().st_size if file.is_file() else 0
            if found_bytes < size_bytes:
                raise UsageError(
                    f"{file} lost data: {found_bytes} bytes of {size_bytes}; delete the folder and start again"
                )
            if file.is_file():
                os.truncate(file, size_bytes)
        if self._tokens_count:
            self._digest = _digest_of(self._folder / f"{name}.bin", state["sha256"])

    def close_shard(self) -> None:
        """End the current shard: its files and its index are complete on the disk."""
        if not self._documents_count:
            return
        self._open()  # the shard was complete when the process was killed
        self.sync()
        self.close()
        name = shard_name(len(self.shards))
        index = self._folder / f"{name}.idx"
        write_index(index, np.fromfile(self._folder / (name + _LENGTHS), dtype="<i4"), self._token_type)
        self.shards.append(
            TokenShard(
                name=name,
                documents_count=self._documents_count,
                tokens_count=self._tokens_count,
                bin_bytes=self._tokens_count * self._token_bytes,
                sha256=self._digest.hexdigest(),
                idx_sha256=hash_file(index),
            )
        )
        self._tokens_count = self._documents_count = 0
        self._digest = hashlib.sha256()

    def finish(self) -> None:
        """End the last shard, and remove files that only a resume would need."""
        self.close_shard()
        for file in self._folder.glob(f"tokens-*{_LENGTHS}"):
            file.unlink()

    def _append(self, tokens: bytes, lengths: array[int]) -> None:
        if not lengths:
            return
        self._open()
        assert self._bin is not None
        assert self._lengths is not None
        self._bin.write(tokens)
        self._lengths.write(np.asarray(lengths, dtype="<i4").tobytes())
        self._digest.update(tokens)
        self._tokens_count += len(tokens) // self._token_bytes
        self._documents_count += len(lengths)

    def _open(self) -> None:
        if self._bin is None:
            name = shard_name(len(self.shards))
            self._bin = (self._folder / f"{name}.bin").open("ab")
            self._lengths = (self._folder / (name + _LENGTHS)).open("ab")


def write_index(file: Path, lengths: np.ndarray[Any, np.dtype[np.int32]], token_type: str) -> None:
    """Write Megatron's index of documents of these lengths, each one sequence; in full or not at all."""
    count = len(lengths)
    pointers = np.zeros(count, dtype="<i8")
    np.cumsum(lengths[:-1], dtype="<i8", out=pointers[1:])
    pointers *= TOKEN_BYTES[token_type]
    temporary = file.with_name(file.name + ".tmp")
    with temporary.open("wb") as stream:
        stream.write(INDEX_MAGIC + struct.pack("<QBQQ", INDEX_VERSION, TYPE_CODES[token_type], count, count + 1))
        for part in (lengths.astype("<i4", copy=False), pointers, np.arange(count + 1, dtype="<i8")):
            part.tofile(stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)


def _digest_of(file: Path, wanted: str) -> Any:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    if digest.hexdigest() != wanted:
        raise UsageError(f"{file} has changed since it was written; delete the folder and start again")
    return digest
