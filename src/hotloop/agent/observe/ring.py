"""Events of a training -> memory that hotloop's own process reads: no file, no descriptor, no thread, no lock.

The memory is a memfd that can neither shrink nor grow. Its descriptor is handed to the process that reads it through a
local socket and closed at once, so that nothing stays open in the training, nobody can cut what is mapped, and what
was written outlives a kill -9. Everything that is called later is bound here, before the training's own code runs.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import struct
import time
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, SOL_SOCKET, socket
from json import dumps

from hotloop.core.events import (
    CODE_BITS,
    COPY,
    COPY_AT,
    COPY_BYTES,
    COPY_NUMBER_AT,
    DATA,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MEMORY_BYTES,
    MOST_COPY_BYTES,
    MOST_TEXT_BYTES,
    PART,
    PART_BYTES,
    REQUEST_AT,
    RESTED_AT,
    SLOT,
    SLOT_BYTES,
    SLOTS,
    TEXT,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(fcntl, "F_SEAL_GROW", 4) | getattr(fcntl, "F_SEAL_SEAL", 1)
_ADD_SEALS = getattr(fcntl, "F_ADD_SEALS", 1033)
_MASK = SLOTS - 1
_WORD = struct.Struct("=q")
_libc_map = ctypes.CDLL(None, use_errno=True).mmap
_libc_map.restype = ctypes.c_void_p
_libc_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_READ_WRITE, _SHARED = 3, 1
_create, _truncate, _close, _pid = os.memfd_create, os.ftruncate, os.close, os.getpid
_clock = time.perf_counter_ns


def _map(descriptor: int) -> memoryview:
    """The memory of a descriptor. Python's own mmap keeps a second descriptor open for as long as the mapping lives."""
    address = _libc_map(None, MEMORY_BYTES, _READ_WRITE, _SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "cannot map the memory for events")
    return memoryview((ctypes.c_ubyte * MEMORY_BYTES).from_address(address)).cast("B")


class Ring:
    """``emit(code, a, ..., f)`` notes an event with the time; it never fails and never waits."""

    __slots__ = ("_copies", "_descriptor", "_memory", "_take", "address", "anchor_ns", "emit", "token")

    def __init__(self, address: str, token: str, anchor_ns: int) -> None:
        """``address`` is where the reader listens (an abstract name), ``token`` what it knows its own by."""
        self.address, self.token, self.anchor_ns = address, token, anchor_ns
        self._descriptor = -1
        self._open()

    def _open(self) -> None:
        self._copies = 0
        self._descriptor = descriptor = _create("hotloop", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        _truncate(descriptor, MEMORY_BYTES)
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS)
        self._memory = _map(descriptor)
        HEADER.pack_into(self._memory, 0, MAGIC, _pid(), self.anchor_ns, 0, 0, 0, 0, 0)
        self._take = itertools.count().__next__
        self.emit: Callable[..., int] = _make_emit(self._memory, self._take)

    def begin_in_child(self) -> None:
        """A forked child has a memory of its own, from its first event on; its parent's is left as it is."""
        self.drop()

        def open_and_emit(*event: int) -> int:
            self._open()
            if not self.hand_over():
                self.drop()
            return self.emit(*event)

        self.emit = open_and_emit

    def hand_over(self) -> bool:
        """Give the descriptor to the reader, without waiting; False while nobody takes it."""
        if self._descriptor < 0:
            return True
        try:
            link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)
        except OSError:
            return False
        try:
            link.connect("\0" + self.address)
            link.sendmsg([self.token.encode()], [(SOL_SOCKET, SCM_RIGHTS, struct.pack("=i", self._descriptor))])
        except OSError:
            return False
        finally:
            link.close()
        _close(self._descriptor)
        self._descriptor = -1
        return True

    def request(self) -> int:
        """The last request from outside; 0 before the first."""
        word: int = _WORD.unpack_from(self._memory, REQUEST_AT)[0]
        return word

    def drop(self) -> None:
        """Nobody will read it: no descriptor stays open."""
        if self._descriptor >= 0:
            _close(self._descriptor)
            self._descriptor = -1

    def tell(self, fact: Mapping[str, Any]) -> None:
        """Note a fact: what JSON can hold."""
        text = dumps(fact, separators=(",", ":"), default=_name).encode()[:MOST_TEXT_BYTES]
        number = self._take()
        parts = range(0, len(text), PART_BYTES)
        for at in parts:
            own = self._take()
            DATA.pack_into(
                self._memory,
                HEADER_BYTES + (own & _MASK) * SLOT_BYTES,
                text[at : at + PART_BYTES],
                number << 16 | at // PART_BYTES,
                own << CODE_BITS | PART,
            )
        at = HEADER_BYTES + (number & _MASK) * SLOT_BYTES
        SLOT.pack_into(self._memory, at, _clock(), len(text), 0, 0, 0, 0, 0, number << CODE_BITS | TEXT)

    def copy(self, data: bytes | memoryview, what: int, rows: int, columns: int, item: int) -> None:
        """Note a copy of some of a batch's memory; the newest ones take the places of the oldest."""
        length, start = len(data), self._copies
        if length > MOST_COPY_BYTES:
            return
        if start % COPY_BYTES + length > COPY_BYTES:  # in one piece
            start += COPY_BYTES - start % COPY_BYTES
        self._copies = end = start + length
        _WORD.pack_into(self._memory, COPY_NUMBER_AT, end)  # first: what is overwritten no longer counts
        at = COPY_AT + start % COPY_BYTES
        self._memory[at : at + length] = data
        self.emit(COPY, start, length, what, rows, columns, item)

    def note_rested(self, steps: int) -> None:
        """Steps that were only counted and are reported with the next event; a killed process leaves them here."""
        _WORD.pack_into(self._memory, RESTED_AT, steps)


def _make_emit(memory: memoryview, take: Callable[[], int]) -> Callable[..., int]:
    pack = SLOT.pack_into

    def emit(code: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> int:
        number = take()
        at = HEADER_BYTES + (number & _MASK) * SLOT_BYTES
        pack(memory, at, _clock(), a, b, c, d, e, f, number << CODE_BITS | code)
        return number

    return emit


def _name(value: object) -> str:
    """For what JSON cannot hold: the name of its type, and nothing of the object itself."""
    return type(value).__name__
