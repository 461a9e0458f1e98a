"""Records of samples in memory that forked processes share, or in a folder; both bounded, and without locks.

A budget is cut into pieces whose numbers lie in a pipe: taking one is a read of four bytes, which the kernel never
gives to two processes. A process that dies loses at most the piece it was filling.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from typing import Any, Protocol

from hotloop.apply.sample_format import ALIGNMENT_BYTES, BadRecord, decode

MOST_PIECES = 256
LEAST_IN_PIECE = 4
"""Samples that a piece has room for, as far as the budget allows: its rest is lost."""
STALE_S = 3600.0
"""A file that is still being written after so long belongs to a process that died."""
_NUMBER = struct.Struct("<I")
_UNIT = ALIGNMENT_BYTES


class Missing:
    """The type of ``MISSING``: what a store answers for a sample that it does not hold."""


MISSING = Missing()


class SampleStore(Protocol):
    """Where records are kept. Neither method raises for what a disk or another process does."""

    def get(self, key: int) -> Any:
        """The sample, new objects at each call; MISSING where it is not held."""
        ...

    def put(self, key: int, record: bytearray) -> bool:
        """Keep a record; False where the budget is used up."""
        ...

    def count(self) -> int:
        """Samples that are held."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether this process knows that nothing more can be kept."""
        ...


class MemoryStore:
    """Records of samples 0..count-1 in anonymous shared memory: made before the workers fork, filled by all of them.

    Pages take memory when they are first written. ``most_bytes`` bounds records and index together; ``sample_bytes`` is
    what a record is expected to take. Raises OSError where the system does not give the memory.
    """

    def __init__(self, count: int, most_bytes: int, sample_bytes: int = 0) -> None:
        room_bytes = max(0, most_bytes - 8 * count)
        pieces_count = _count_pieces(room_bytes, sample_bytes)
        self._piece_bytes = room_bytes // pieces_count // _UNIT * _UNIT
        self._index = memoryview(mmap.mmap(-1, max(8, 8 * count))).cast("Q")
        self._data = mmap.mmap(-1, max(mmap.PAGESIZE, self._piece_bytes * pieces_count))
        self._pieces = Pieces(pieces_count)
        self._own = StorePart()

    def get(self, key: int) -> Any:
        place = self._index[key]
        if not place:
            return MISSING
        with memoryview(self._data)[(place - 1) * _UNIT :] as record:
            try:
                return decode(record, key, check=False)
            except BadRecord:  # another process has put it in the index, but this one does not see its bytes yet
                return MISSING

    def put(self, key: int, record: bytearray) -> bool:
        size = -(-len(record) // _UNIT) * _UNIT
        if size > self._piece_bytes:
            return False
        start = self._own.take(size, self._next_piece)
        if start is None:
            return False
        self._data[start : start + len(record)] = record
        self._index[key] = start // _UNIT + 1  # one store of eight bytes, after the record's own
        return True

    def count(self) -> int:
        return sum(1 for place in self._index if place)

    @property
    def is_full(self) -> bool:
        return self._own.is_over

    def _next_piece(self) -> tuple[int, int] | None:
        number = self._pieces.take()
        return None if number is None else (number * self._piece_bytes, (number + 1) * self._piece_bytes)


class FolderStore:
    """Records as files below a folder, written whole or not at all; what earlier runs left there is read again.

    ``most_bytes`` bounds all files of the folder together, ``sample_bytes`` is what one is expected to take. A file
    that is no record of its sample counts as missing. Raises OSError where the folder cannot be made.
    """

    def __init__(self, folder: str, most_bytes: int, sample_bytes: int = 0) -> None:
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        left_bytes = max(0, most_bytes - _clean_folder(folder))
        pieces_count = _count_pieces(left_bytes, sample_bytes)
        self._piece_bytes = left_bytes // pieces_count
        self._pieces = Pieces(pieces_count)
        self._own = StorePart()

    def get(self, key: int) -> Any:
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                record = bytearray(os.fstat(file.fileno()).st_size)
                file.readinto(record)
            return decode(record, key)
        except (OSError, BadRecord, MemoryError):
            return MISSING

    def put(self, key: int, record: bytearray) -> bool:
        if len(record) > self._piece_bytes:
            return False
        if self._own.take(len(record), self._next_piece) is None:
            return False
        path = self._path(key)
        draft = f"{path}.{os.getpid()}.{threading.get_ident()}.draft"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(draft, "wb", buffering=0) as file:
                file.write(record)
            os.replace(draft, path)
        except OSError:  # the disk is full, or the folder is gone
            self._own.is_over = True
            with contextlib.suppress(OSError):
                os.unlink(draft)
            return False
        return True

    def count(self) -> int:
        return sum(
            entry.name.endswith(".sample")
            for part in _list_folder(self.folder)
            if part.is_dir(follow_symlinks=False)
            for entry in _list_folder(part.path)
        )

    @property
    def is_full(self) -> bool:
        return self._own.is_over

    def _path(self, key: int) -> str:
        return os.path.join(self.folder, f"{key >> 10:x}", f"{key:x}.sample")

    def _next_piece(self) -> tuple[int, int] | None:
        return None if self._pieces.take() is None else (0, self._piece_bytes)


class Pieces:
    """The numbers 0..count-1, each given to one process only."""

    def __init__(self, count: int) -> None:
        self._reading, writing = os.pipe()
        os.write(writing, b"".join(_NUMBER.pack(number) for number in range(count)))  # far below a pipe's capacity
        os.close(writing)

    def take(self) -> int | None:
        data = os.read(self._reading, _NUMBER.size)
        return _NUMBER.unpack(data)[0] if len(data) == _NUMBER.size else None

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._reading)


class StorePart:
    """What this process has left of its piece. A forked child begins without one: its parent goes on with that."""

    def __init__(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()
        self._next = self._end = 0
        self.is_over = False

    def take(self, size: int, next_piece: Any) -> int | None:
        """Where ``size`` units begin; None where no piece is left, or another thread is just asking."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()  # a thread of the parent may have held it at the fork
            self._pid, self._next, self._end = os.getpid(), 0, 0
        if self.is_over or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._next + size > self._end:
                piece = next_piece()
                if piece is None:
                    self.is_over = True
                    return None
                self._next, self._end = piece
            start = self._next
            self._next += size
            return start
        finally:
            self._lock.release()


def _count_pieces(room_bytes: int, sample_bytes: int) -> int:
    """
    >>> _count_pieces(1 << 20, 1000), _count_pieces(1 << 20, 100_000), _count_pieces(1 << 20, 1 << 20)
    (256, 2, 1)
    """
    return max(1, min(MOST_PIECES, room_bytes // (LEAST_IN_PIECE * max(1, sample_bytes))))


def _clean_folder(folder: str) -> int:
    """Bytes of all samples below the folder; drafts of processes that died are removed."""
    total = 0
    for part in _list_folder(folder):
        for entry in _list_folder(part.path) if part.is_dir(follow_symlinks=False) else ():
            try:
                about = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".draft") and time.time() - about.st_mtime > STALE_S:
                    os.unlink(entry.path)
                else:
                    total += about.st_size
            except OSError:  # another process has just replaced or removed it
                continue
    return total


def _list_folder(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
