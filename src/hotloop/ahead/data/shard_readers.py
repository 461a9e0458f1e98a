"""Bytes of token files: mapped in place from a disk, or streamed from a URL through a bounded buffer on disk."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.redact import redact_text

from .text_files import find_system

BLOCK_BYTES = 8 << 20
"""The bytes fetched at a time: large enough for object stores, small enough that a training starts at once."""
_LOCKS_COUNT = 16


class MappedFiles:
    """The files of a folder, memory-mapped when first read."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._maps: dict[str, mmap.mmap] = {}

    def read(self, name: str, start: int, end: int) -> bytes:
        """These bytes of a file. Raises UsageError if it has fewer."""
        found = self._maps.get(name)
        if found is None:
            file = Path(self._folder, name)
            try:
                with file.open("rb") as stream:
                    found = self._maps[name] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise UsageError(f"{file} cannot be mapped: {error}") from error
        content = found[start:end]
        if len(content) != end - start:
            raise UsageError(f"{self._folder}/{name} has only {len(found)} bytes; tokenize into a new folder")
        return content

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}  # a newly started process maps the files itself


class StreamedFiles:
    """The files of a folder at an fsspec URL, in blocks that are kept on disk up to ``most_bytes``.

    The processes of a host share the blocks. While one is read, the next is fetched; the oldest are dropped first.
    ``sizes`` are the bytes of each file; ``version`` distinguishes states of the folder.
    """

    def __init__(self, url: str, sizes: Mapping[str, int], version: str, most_bytes: int) -> None:
        self._url = url
        self._sizes = dict(sizes)
        self._most_bytes = max(most_bytes, 4 * BLOCK_BYTES)
        key = hashlib.sha256(f"{self._url} {version}".encode()).hexdigest()[:24]
        self._folder = _cache_root() / "tokens" / key
        self._ahead: tuple[int, threading.Thread] | None = None

    def read(self, name: str, start: int, end: int) -> bytes:
        """These bytes of a file. Raises UsageError if it cannot be read or has fewer."""
        parts = []
        for block in range(start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1):
            first = block * BLOCK_BYTES
            parts.append(self._read_block(name, block, max(0, start - first), end - first))
        self._fetch_ahead(name, (end - 1) // BLOCK_BYTES + 1)
        content = b"".join(parts)
        if len(content) != end - start:
            raise UsageError(f"{redact_text(self._url)}/{name} has fewer than {end} bytes; tokenize into a new folder")
        return content

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": None}

    def _read_block(self, name: str, block: int, start: int, end: int) -> bytes:
        file = self._folder / f"{name}.{block:06d}"
        while True:
            try:
                with file.open("rb") as stream:
                    stream.seek(start)
                    return stream.read(min(end, BLOCK_BYTES) - start)
            except FileNotFoundError:  # not fetched yet, or dropped by another process in between
                self._fetch(name, block, file)

    def _fetch(self, name: str, block: int, file: Path) -> None:
        """Write a block to disk, once for all processes, and drop the oldest blocks above the limit."""
        with self._hold(block):
            if file.exists():
                return
            content = read_remote(f"{self._url}/{name}", block * BLOCK_BYTES, BLOCK_BYTES)
            partial = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
            try:
                partial.write_bytes(content)
                partial.replace(file)
            except OSError as error:
                partial.unlink(missing_ok=True)
                raise UsageError(f"{file} cannot be written: {error.strerror}; set XDG_CACHE_HOME") from error
        self._drop_oldest(file)

    def _drop_oldest(self, newest: Path) -> None:
        found = []
        for entry in os.scandir(self._folder):
            if not entry.name.startswith(".lock"):
                try:
                    state = entry.stat()
                except FileNotFoundError:
                    continue
                found.append((state.st_mtime_ns, state.st_size, entry.path))
        total_bytes = sum(size_bytes for _, size_bytes, _ in found)
        for _, size_bytes, path in sorted(found):
            if total_bytes <= self._most_bytes or path == str(newest):
                return
            Path(path).unlink(missing_ok=True)
            total_bytes -= size_bytes

    def _fetch_ahead(self, name: str, block: int) -> None:
        """Fetch the next block in a thread of this process, one at a time."""
        file = self._folder / f"{name}.{block:06d}"
        if self._ahead is not None and self._ahead[0] == os.getpid() and self._ahead[1].is_alive():
            return
        if not file.exists() and block * BLOCK_BYTES < self._sizes[name]:
            thread = threading.Thread(target=self._fetch_quietly, args=(name, block, file), daemon=True)
            self._ahead = (os.getpid(), thread)
            thread.start()

    def _fetch_quietly(self, name: str, block: int, file: Path) -> None:
        try:
            self._fetch(name, block, file)
        except UsageError:
            return  # the read that needs the block meets the error again, and raises it

    @contextmanager
    def _hold(self, block: int) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f".lock{block % _LOCKS_COUNT}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def read_remote(url: str, start: int | None = None, size_bytes: int | None = None) -> bytes:
    """The bytes of a file at an fsspec URL, or ``size_bytes`` of them from ``start``. Raises UsageError."""
    system, path = find_system(url)
    end = None if start is None or size_bytes is None else start + size_bytes
    try:
        content: bytes = system.cat_file(path, start=start, end=end)
    except Exception as error:  # every driver raises its own errors
        raise UsageError(f"{redact_text(url)} cannot be read: {type(error).__name__}: {error}") from error
    return content


def _cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "hotloop"
