"""The memory that a training's hooks write to -> its events, in the order in which they were noted."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from typing import Any

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
from hotloop.core.frames import decode_object

_MASK = SLOTS - 1
_GET_SEALS, _SEAL_SHRINK = getattr(fcntl, "F_GET_SEALS", 1034), getattr(fcntl, "F_SEAL_SHRINK", 2)
_CODE = (1 << CODE_BITS) - 1
_WORD = struct.Struct("=q")
MOST_AHEAD = 1_024
STUCK_S = 1.0
"""A slot that stays empty this long while later ones are written was left by a thread that is gone."""

Event = tuple[int, int, tuple[int, ...], Any]
"""Code, clock in ns, six arguments; and the fact of a TEXT or the bytes of a COPY, else None."""


class NotOurs(Exception):
    """The descriptor is not a memory of hotloop's hooks."""


class EventMemory:
    """Reads one memory. Nothing that is in it is trusted: it can be no shorter than it is, and every slot says its own
    number."""

    def __init__(self, descriptor: int) -> None:
        try:
            sealed = fcntl.fcntl(descriptor, _GET_SEALS) & _SEAL_SHRINK
            if not sealed or os.fstat(descriptor).st_size != MEMORY_BYTES:
                raise NotOurs("it could be cut while it is read")
            self._memory = mmap.mmap(descriptor, MEMORY_BYTES)
        except (OSError, ValueError) as error:
            raise NotOurs(str(error)) from None
        finally:
            os.close(descriptor)
        magic, self.pid, self.anchor_ns, *_ = HEADER.unpack_from(self._memory, 0)
        if magic != MAGIC:
            raise NotOurs("another magic word")
        self._next = 0
        self._stuck_s: float | None = None
        self.lost_events = 0

    def close(self) -> None:
        self._memory.close()

    def ask(self, word: int) -> None:
        """A request to the training's agent, which looks at it at a step's end."""
        _WORD.pack_into(self._memory, REQUEST_AT, word)

    @property
    def position(self) -> int:
        """Number after the last event that was taken."""
        return self._next

    def rested(self) -> int:
        """Steps that were only counted and that no event reports."""
        steps: int = _WORD.unpack_from(self._memory, RESTED_AT)[0]
        return max(0, min(steps, 1 << 20))

    def is_resting(self) -> bool:
        """Whether the steps that pass now are only counted."""
        word: int = _WORD.unpack_from(self._memory, RESTED_AT)[0]
        return word != 0

    def newest(self) -> int:
        """Number after the last event that is there."""
        number = self._next
        while self._number_at(number) == number:
            number += 1
        return number

    def _number_at(self, number: int) -> int:
        """The number in the slot of ``number``; lower where the slot is not written yet."""
        at = HEADER_BYTES + (number & _MASK) * SLOT_BYTES + SLOT_BYTES - 8
        word: int = _WORD.unpack_from(self._memory, at)[0]
        return word >> CODE_BITS if word & _CODE else -1

    def read(self, *, is_over: bool = False) -> Iterator[Event]:
        """The events since the last call. ``is_over``: nobody writes any more, so missing ones will never come."""
        while True:
            number = self._next
            at = HEADER_BYTES + (number & _MASK) * SLOT_BYTES
            slot = SLOT.unpack_from(self._memory, at)
            held = slot[7] >> CODE_BITS if slot[7] & _CODE else -1
            if held > number:  # overtaken: the ring went round
                self._skip_to(held - SLOTS + MOST_AHEAD)
                continue
            if held < number:
                if not self._is_skipped(number, is_over):
                    return
                self._next += 1
                continue
            code = slot[7] & _CODE
            if code == TEXT:
                text = self._text(number, slot[1])
                if text is None and not is_over and not self._is_late():
                    return
                self._next += 1
                self._stuck_s = None
                if text is not None:
                    yield TEXT, slot[0], slot[1:7], decode_object(text)
                continue
            if self._number_at(number) != number:
                continue
            self._next += 1
            self._stuck_s = None
            if code == COPY:
                yield COPY, slot[0], slot[1:7], self._copy(slot[1], slot[2])
            elif code != PART:
                yield code, slot[0], slot[1:7], None

    def _skip_to(self, number: int) -> None:
        number = max(number, self._next + 1)
        self.lost_events += number - self._next
        self._next = number

    def _is_skipped(self, number: int, is_over: bool) -> bool:
        """Whether this slot will never be written, while later ones were."""
        later = any(self._number_at(number + ahead) == number + ahead for ahead in range(1, MOST_AHEAD))
        if not later:
            self._stuck_s = None
            return False
        return is_over or self._is_late()

    def _is_late(self) -> bool:
        now_s = time.monotonic()
        self._stuck_s = self._stuck_s or now_s
        return now_s - self._stuck_s > STUCK_S

    def _text(self, number: int, length: int) -> bytes | None:
        """The text whose head is ``number``; None while a part of it is missing."""
        if not 0 <= length <= MOST_TEXT_BYTES:
            return b""
        wanted = -(-length // PART_BYTES)
        parts: dict[int, bytes] = {}
        ahead = number + 1
        while len(parts) < wanted and ahead < number + wanted + MOST_AHEAD:
            at = HEADER_BYTES + (ahead & _MASK) * SLOT_BYTES
            part, link, word = DATA.unpack_from(self._memory, at)
            if word == ahead << CODE_BITS | PART and link >> 16 == number:
                parts[link & 0xFFFF] = part
            elif not word & _CODE or word >> CODE_BITS < ahead:
                break
            ahead += 1
        if len(parts) < wanted:
            return None
        return b"".join(parts[i] for i in range(wanted) if i in parts)[:length]

    def _copy(self, start: int, length: int) -> bytes | None:
        """The copy that begins there; None where newer ones have taken its place."""
        at = start % COPY_BYTES
        if not 0 <= length <= COPY_BYTES - at:
            return None
        data = self._memory[COPY_AT + at : COPY_AT + at + length]
        return data if _WORD.unpack_from(self._memory, COPY_NUMBER_AT)[0] - start <= COPY_BYTES else None
