"""A path -> its bytes in order, unpacked if they are gzip, with any problem on the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import cast

from isal import isal_zlib

from hotloop.core.errors import TraceError

Progress = Callable[[int, int], None]
"""Called with (bytes of the file read so far, bytes of the file)."""

_INFLATE_ERROR = cast(type[Exception], isal_zlib.error)
"""Declared as a value, not as a type, by isal's stubs."""

GZIP_MAGIC = b"\x1f\x8b"

MAX_RATIO = 400
"""A file that inflates to more than this is not a trace: real ones stay below 40, DEFLATE itself ends at 1032."""
MAX_UNPACKED_BYTES = 1 << 37
_RATIO_FROM_BYTES = 1 << 28
"""Small files may repeat themselves as much as they like."""

_CHUNK_BYTES = 1 << 18


class ByteSource(AbstractContextManager["ByteSource"]):
    """The unpacked bytes of one file. ``damage`` says why they end early, None if nothing is wrong."""

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self._path = path
        self._progress = progress
        self._file = path.open("rb")
        self._total_bytes = path.stat().st_size
        self._unpacked_bytes = 0
        self.damage: str | None = None
        self.is_packed = self._at_member()
        self._inflater = isal_zlib.decompressobj(31) if self.is_packed else None

    def _at_member(self) -> bool:
        return self._file.peek(2)[:2] == GZIP_MAGIC

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        """At least ``size`` bytes unless the file ends; empty at its end. Raises TraceError for corrupt gzip."""
        if not self.is_packed:
            data = self._file.read(size)
        else:
            parts: list[bytes] = []
            got = 0
            while got < size and self._inflater is not None:
                parts.append(self._inflate_some())
                got += len(parts[-1])
            data = b"".join(parts)
        if self._progress is not None:
            self._progress(min(self._file.tell(), self._total_bytes), self._total_bytes)
        return data

    def _inflate_some(self) -> bytes:
        assert self._inflater is not None
        packed = self._file.read(_CHUNK_BYTES)
        if not packed:
            self.damage = "the gzip file is truncated"
            self._inflater = None
            return b""
        try:
            data: bytes = self._inflater.decompress(packed)
        except _INFLATE_ERROR as error:
            raise TraceError(f"{self._path.name} is a corrupt gzip file ({error}); record or copy it again.") from None
        self._unpacked_bytes += len(data)
        unpacked, read = self._unpacked_bytes, self._file.tell()
        if unpacked > MAX_UNPACKED_BYTES or (unpacked > _RATIO_FROM_BYTES and unpacked > MAX_RATIO * read):
            raise TraceError(
                f"{self._path.name} inflates {read:,} bytes to more than {unpacked:,}, which traces never do, so "
                "reading stopped. If you trust the file, unpack it with gunzip and read the result."
            )
        if self._inflater.eof:
            self._file.seek(-len(self._inflater.unused_data), 1)
            # Anything but a further member is padding.
            self._inflater = isal_zlib.decompressobj(31) if self._at_member() else None
        return data
