"""A path -> its bytes in order, unpacked when they are gzip, with what went wrong on the way."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

from isal import isal_zlib

from hotloop.core.errors import TraceError

Progress = Callable[[int, int], None]
"""Called with (bytes of the file read so far, bytes of the file)."""

_INFLATE_ERROR = cast(type[Exception], isal_zlib.error)
"""Declared as a value, not as a type, by isal's stubs."""

GZIP_MAGIC = b"\x1f\x8b"

MAX_RATIO = 400
"""A file that inflates to more than this is no trace: real ones stay below 40, DEFLATE itself ends at 1032."""
MAX_UNPACKED_BYTES = 1 << 37
_RATIO_FROM_BYTES = 1 << 28
"""Small files may repeat themselves as much as they like."""

_CHUNK_BYTES = 1 << 18
_SLOW_CHUNK_BYTES = 64


class ByteSource:
    """The unpacked bytes of one file. ``damage`` says why they end early, None while nothing is wrong."""

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self._path = path
        self._progress = progress
        self._file: BinaryIO = path.open("rb")
        self._total_bytes = path.stat().st_size
        self._unpacked_bytes = 0
        self._chunks: list[bytes] = []
        self.damage: str | None = None
        self.is_packed = self._file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        self._file.seek(0)
        self._inflater = isal_zlib.decompressobj(31) if self.is_packed else None
        self._member_bytes = 0
        """Unpacked bytes of the current member of the gzip file."""
        self._member_offset = 0
        """Where the current member begins in the file."""

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        """At least ``size`` bytes unless the file ends; empty at its end."""
        if not self.is_packed:
            data = self._file.read(size)
        else:
            parts: list[bytes] = []
            got = 0
            while got < size and self._inflater is not None:
                part = self._inflate_some()
                if part is None:
                    break
                parts.append(part)
                got += len(part)
            data = b"".join(parts)
        self._unpacked_bytes += len(data)
        if self._progress is not None:
            self._progress(min(self._file.tell(), self._total_bytes), self._total_bytes)
        return data

    def _inflate_some(self) -> bytes | None:
        """The next piece; None at the end."""
        assert self._inflater is not None
        packed = self._file.read(_CHUNK_BYTES)
        if not packed:
            if not self._inflater.eof:
                self.damage = "the gzip file is truncated"
            return None
        before = self._file.tell() - len(packed)
        try:
            data: bytes = self._inflater.decompress(packed)
        except (_INFLATE_ERROR, zlib.error) as error:
            self.damage = f"the gzip file is corrupt ({error})"
            data = self._salvage_inflation(before, packed)
            self._inflater = None
            return data
        self._member_bytes += len(data)
        self._check_ratio(len(data))
        if self._inflater.eof:
            self._file.seek(-len(self._inflater.unused_data), 1)
            self._start_member()
        return data

    def _start_member(self) -> None:
        """Go on with the next member of the file; anything else after the first one is padding."""
        at = self._file.tell()
        if self._file.read(len(GZIP_MAGIC)) == GZIP_MAGIC:
            self._inflater = isal_zlib.decompressobj(31)
            self._member_bytes, self._member_offset = 0, at
            self._file.seek(at)
            return
        self._inflater = None

    def _salvage_inflation(self, before: int, packed: bytes) -> bytes:
        """What the broken piece still gives: the member is inflated again, in small bites where it broke."""
        inflater = zlib.decompressobj(31)
        known_bytes = self._member_bytes
        kept: list[bytes] = []
        for piece in self._pieces_again(before, packed):
            try:
                data = inflater.decompress(piece)
            except zlib.error:
                break
            kept.append(data[known_bytes:])
            known_bytes = max(known_bytes - len(data), 0)
        return b"".join(kept)

    def _pieces_again(self, before: int, packed: bytes) -> Iterator[bytes]:
        self._file.seek(self._member_offset)
        left = before - self._member_offset
        while left > 0 and (piece := self._file.read(min(left, _CHUNK_BYTES))):
            left -= len(piece)
            yield piece
        for at in range(0, len(packed), _SLOW_CHUNK_BYTES):
            yield packed[at : at + _SLOW_CHUNK_BYTES]

    def _check_ratio(self, new_bytes: int) -> None:
        unpacked = self._unpacked_bytes + new_bytes
        read = max(self._file.tell(), 1)
        if unpacked > MAX_UNPACKED_BYTES or (unpacked > _RATIO_FROM_BYTES and unpacked > MAX_RATIO * read):
            raise TraceError(
                f"{self._path.name} inflates {read:,} bytes to more than {unpacked:,}, which traces never do, so "
                "reading stopped. If you trust the file, unpack it with gunzip and read the result."
            )
