"""Rows and facts of one training process -> its recording file, which survives SIGKILL and a full disk.

The training thread only copies bytes into memory that a file backs: the kernel keeps them when the process dies.
Everything that may take time (allocating the next segment, looking whether the file is still there, retrying) is done
by ``maintain()``, on a thread of the caller. What cannot be written waits in a bounded memory buffer; what does not
fit there is counted as lost.

How the file's space is taken and mapped is told in segments.py. Where it cannot be mapped, ``maintain()`` writes to the
file instead, so a killed process loses what came after the last call.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import adler32

from hotloop.core.frames import (
    FRAME_HEADER_BYTES,
    HEAD_BYTES,
    KIND_FACT,
    KIND_ROW,
    KIND_SUMMED_ROW,
    LAST_WINS_KINDS,
    MANY_KINDS,
    MAX_FACT_BYTES,
    MIN_SEGMENT_BYTES,
    RESERVE_OFFSET,
    SEGMENT_BYTES,
    SEGMENT_HEADER_BYTES,
    STATE_FULL,
    STATE_RECORDING,
    STATUS_OFFSETS,
    Status,
    commit_word,
    encode_covered,
    encode_segment_header,
    encode_status,
    fact_key,
    frame_span_bytes,
)
from hotloop.core.recording import CLOSED_BY_END, FIELD, STEP_FIELDS, UNKNOWN

from .mapped_segments import Segment, SegmentFile, Slot

RAW_ROWS = 16384
"""Rows that are kept one by one; later ones are merged in blocks of 2, then 4, 8, ..."""
LEVEL_BLOCKS = 8192
"""Blocks of one size before the size doubles."""
FACT_BUDGET_BYTES = 16 << 20
"""Facts in one file. Kinds that keep coming are thinned as it fills: every 2nd one after half of it, and so on."""

_ROW_BYTES = 8 * len(STEP_FIELDS)
_ROW_SPAN_BYTES = frame_span_bytes(_ROW_BYTES)
_ROW_SPAN_WORDS = _ROW_SPAN_BYTES // 8
_ROW_WORD = _ROW_SPAN_BYTES | _ROW_BYTES << 32  # what follows a row frame's commit word; its sequence number comes next
_ROW_HEAD = struct.Struct("<QQ")
_ROW_VALUES = struct.Struct(f"<{len(STEP_FIELDS)}q")
_COMMIT = struct.Struct("<Q")
_MAY_COPY = sys.byteorder == "little"  # the file's own order: a row's words are its bytes
_ROW_COMMIT = commit_word(KIND_SUMMED_ROW, b"") & ~0xFFFFFFFF

_INDEX, _MERGED, _CLOSED_BY = FIELD["index"], FIELD["rows_merged"], FIELD["closed_by"]
_FROM_FIRST = tuple(FIELD[name] for name in ("index", "closed_by", "optimizer_index", "start_ns"))
_FROM_LAST = tuple(FIELD[name] for name in ("end_ns", "rss_bytes", "device_allocated_bytes", "device_reserved_bytes"))
_FLAGS = FIELD["flags"]
_COUNTED = tuple(FIELD[name] for name in ("padded_tokens", "tokens", "padding_tokens", "longest_tokens"))

_RowPlace = tuple[slice, int, int]  # where a row's values go, its commit word, the checksum of what lies between
_CLAIMED_ROWS = 64  # places for rows that the training thread takes at a time
_DRAIN_ROWS = 64  # waiting rows that one write_row takes along
_TRACKED_FACTS = 1024  # last-wins facts whose places are remembered
_CHECK_NS = 1_000_000_000
_RETRY_NS, _RETRY_MAX_NS = 5_000_000_000, 60_000_000_000
_LONG_AGO_NS = -(1 << 62)
_HEALTH_SPAN_BYTES = 512
_HEALTH_KEY = ("health", "recording")
_LAST_WORDS = frozenset({"end", "health", "process"})
"""Facts that may use the reserve in the file's first segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What a recording lacks so far. ``reason`` is None while nothing is wrong; rows pending are not lost yet."""

    lost_rows: int
    lost_facts: int
    thinned_facts: int
    pending_rows: int
    reason: str | None


def merge_rows(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Two consecutive rows (or blocks) as one block.

    Fields are summed, and a sum with an unknown part is unknown, but for tokens: those of the rows that hold them.
    Index, closed_by, optimizer_index and start_ns are the first row's, end_ns and memory the second's; flags are or-ed.
    """
    merged = [UNKNOWN if a == UNKNOWN or b == UNKNOWN else a + b for a, b in zip(first, second, strict=True)]
    for i in _COUNTED:
        if merged[i] == UNKNOWN:
            merged[i] = max(first[i], second[i])
    for i in _FROM_FIRST:
        merged[i] = first[i]
    for i in _FROM_LAST:
        merged[i] = second[i]
    merged[_FLAGS] = first[_FLAGS] | second[_FLAGS]
    return merged


class FrameWriter:
    """The recording of this process. No method raises, and none but ``maintain`` and ``close`` waits for anything.

    ``clock`` gives ns since the process anchor. ``write_row`` belongs to the training thread, ``write_fact`` may be
    called from any, ``maintain`` about every 100 ms from one other thread. Until ``maintain`` was called once, the
    training thread allocates by itself. A forked child's copy disowns the file by itself.
    """

    # What every row touches lies side by side; everything else is in the dictionary.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_places",
        "_row_target",
        "_row_words",
    )

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        segment_bytes: int = SEGMENT_BYTES,
        memory_limit_bytes: int = 4 << 20,
        fact_budget_bytes: int = FACT_BUDGET_BYTES,
        raw_rows: int = RAW_ROWS,
        level_blocks: int = LEVEL_BLOCKS,
        mounts: str | None = None,
    ) -> None:
        self._clock = clock
        grain_bytes = max(65536, mmap.ALLOCATIONGRANULARITY)
        whole_bytes = max(MIN_SEGMENT_BYTES, segment_bytes // grain_bytes * grain_bytes)
        self._file = SegmentFile(path, whole_bytes, mounts)
        self._fact_budget_bytes = fact_budget_bytes
        self._level_blocks = level_blocks
        self._lock = threading.Lock()  # everything below but the deques' ends
        self._service = threading.Lock()  # one maintain or close at a time
        self._serviced = False
        self._ended = False
        self._gone = False  # deleted: nothing is kept any more, only counted

        self._first: Segment | None = None
        self._current: Segment | None = None
        self._next: Segment | None = None
        self._retired: list[Segment] = []
        self._view = memoryview(b"")
        self._at = 0
        self._sequence = 1
        self._reserve_at = RESERVE_OFFSET
        self._prepare_rows(raw_rows, level_blocks, memory_limit_bytes)
        self._prepare_facts(memory_limit_bytes)
        self._prepare_losses()

        self_ref = weakref.ref(self)

        def disown_in_child() -> None:
            writer = self_ref()
            if writer is not None:
                writer.disown()

        if sys.platform == "win32":
            self._gone, self._loss_reason = True, "recording is not supported on Windows"
        else:
            os.register_at_fork(after_in_child=disown_in_child)
            self._open()

    def _prepare_rows(self, raw_rows: int, level_blocks: int, memory_limit_bytes: int) -> None:
        """Where the next rows go: into claimed places, then into blocks of several; and those that wait for room."""
        self._places: list[_RowPlace] = []
        """Places for rows that are the training thread's own, the next one last."""
        self._row_target: Any = None
        self._row_words = self._view.cast("q")
        self._claimed: tuple[_RowPlace, ...] = ()
        """All places that were claimed last, in the order of the file."""
        self._claimed_rows = 0
        """Index after that of the row which the last of these is for."""
        self._settled_rows = 0

        self._raw_left = raw_rows
        self._block: list[int] | None = None
        self._block_rows = 2
        self._blocks_left = level_blocks
        self._newest: Slot | None = None
        self._other: Slot | None = None
        self._spare: Slot | None = None

        self._pending_rows: deque[bytes] = deque()
        self._pending_rows_max = max(16, memory_limit_bytes * 3 // 4 // (_ROW_BYTES + 64))

    def _prepare_facts(self, memory_limit_bytes: int) -> None:
        self._fact_bytes = 0
        self._fact_count = 0
        self._fact_slots: dict[tuple[str, str], list[Slot]] = {}
        self._many_seen: dict[str, int] = {}

        self._pending_facts: deque[tuple[tuple[str, str], bytes]] = deque()
        self._pending_fact_bytes = 0
        self._pending_facts_max_bytes = memory_limit_bytes // 4

    def _prepare_losses(self) -> None:
        """What could not be written, why, and when the file is looked at again."""
        self._lost_rows = 0
        self._lost_facts = 0
        self._thinned_facts = 0
        self._reason: str | None = None  # why nothing can be written now
        self._loss_reason: str | None = None  # the newest one there ever was
        self._generation = 0
        self._reported: tuple[int, int, str | None] = (0, 0, None)
        self._retry_at_ns = _LONG_AGO_NS
        self._retry_ns = _RETRY_NS
        self._check_at_ns = _LONG_AGO_NS

    @property
    def path(self) -> str:
        """Where the recording belongs."""
        return self._file.path

    # The training thread.

    def write_row(self, values: Sequence[int]) -> None:
        """Record one row, in the order of STEP_FIELDS; ``values`` is not kept. An array of int64 is copied as it is."""
        try:
            places = self._places
            if places:
                # A place that is this thread's alone: no lock. Whatever interrupts this leaves a hole, which readers
                # step over. The checksum is of the row, which is in the caches; the file's memory is far away.
                row = values if type(values) is array else array("q", values)
                where, word, seed = places.pop()
                self._row_target[where] = row
                self._row_words[word] = adler32(row, seed) | _ROW_COMMIT  # last, in one 8-byte store
            else:
                self._write_row_locked(values)
        except Exception as error:  # a training must not end because its recording could not be written
            self._give_up(error)
            self._lost_rows += 1

    def _write_row_locked(self, values: Sequence[int]) -> None:
        """Record one row when no place is left for it, and take the next ones."""
        payload = _ROW_VALUES.pack(*values)
        lock = self._lock
        if not lock.acquire(False):
            self._defer_row(payload)
            if not lock.acquire(False):
                return  # whoever holds the lock looks at the pending rows after releasing it
            try:
                self._drain(_DRAIN_ROWS)
            finally:
                lock.release()
            return
        try:
            is_first = not self._pending_rows
            if is_first and self._raw_left > 0 and self._claim_places(values[_INDEX]):
                where, word, seed = self._places.pop()
                self._row_target[where] = payload
                self._row_words[word] = adler32(payload, seed) | _ROW_COMMIT
            elif is_first and self._raw_left <= 0 and self._merge_row(values):
                self._settled_rows = values[_INDEX] + 1
            else:
                self._defer_row(payload)
                self._drain(_DRAIN_ROWS)
        finally:
            lock.release()

    def _claim_places(self, index: int) -> bool:
        """Take the next places for rows, the first of them for the row with that ``index``; needs the lock.

        Their frames are complete but for the values and the commit word. One by one in a segment that is not mapped:
        what is appended there is written out, and not looked at again.
        """
        if not _MAY_COPY or not self._make_room(_ROW_SPAN_BYTES):
            return False
        segment, at = self._current, self._at
        if segment is None:
            return False
        room = (self._file.segment_bytes - at) // _ROW_SPAN_BYTES
        count = min(_CLAIMED_ROWS if segment.mapping is not None else 1, room, self._raw_left)
        end, first_word = at + count * _ROW_SPAN_BYTES, at >> 3
        words = self._view.cast("q")
        sequences = range(self._sequence, self._sequence + count)
        words[first_word + 1 : end >> 3 : _ROW_SPAN_WORDS] = array("q", [_ROW_WORD] * count)
        words[first_word + 2 : end >> 3 : _ROW_SPAN_WORDS] = array("q", sequences)
        starts = range(at + FRAME_HEADER_BYTES, end, _ROW_SPAN_BYTES)
        places: list[_RowPlace] = [
            (slice(start, start + _ROW_BYTES), word, adler32(_ROW_HEAD.pack(_ROW_WORD, sequence), KIND_SUMMED_ROW))
            for start, word, sequence in zip(
                starts, range(first_word, end >> 3, _ROW_SPAN_WORDS), sequences, strict=True
            )
        ]
        places.reverse()
        self._at = end
        self._sequence += count
        self._raw_left -= count
        self._settled_rows, self._claimed_rows = index, index + count
        self._claimed = tuple(places[::-1])
        # The object behind the view takes a row's words with less ado than a view of it.
        self._row_target, self._row_words, self._places = segment.view.obj, words, places
        return True

    def _forget_places(self) -> None:
        """No place is the training thread's own any more. What it was about to write into one counts as lost."""
        self._places = []
        self._row_target = None
        self._row_words = memoryview(b"").cast("q")
        self._claimed, self._claimed_rows = (), 0

    def _count_settled(self) -> int:
        """Index after the newest row that was written or given up."""
        for _, word, _ in reversed(self._claimed):
            if self._row_words[word]:
                index = int(self._row_words[word + FRAME_HEADER_BYTES // 8 + _INDEX])
                return max(self._settled_rows, index + 1)
        return self._settled_rows

    def write_fact(self, fact: Mapping[str, Any]) -> None:
        """Record one fact: a mapping that JSON can hold, with a ``kind``."""
        try:
            if self._ended:
                return
            payload = json.dumps(fact, separators=(",", ":"), default=str).encode()
            key = fact_key(fact)
            # Last words and facts that have their place already do not queue behind what finds no room.
            if (key[0] in _LAST_WORDS or key in self._fact_slots) and self._lock.acquire(False):
                try:
                    if self._first is not None and self._place_fact(key, payload):
                        return
                finally:
                    self._lock.release()
            waiting_bytes = self._pending_fact_bytes + len(payload)
            # One half of the buffer is for facts that are told only once.
            limit_bytes = self._pending_facts_max_bytes // (2 if key[0] in MANY_KINDS else 1)
            if self._gone or waiting_bytes > limit_bytes or len(payload) > self._max_fact_bytes():
                self._lost_facts += 1
                return
            self._pending_facts.append((key, payload))
            self._pending_fact_bytes = waiting_bytes
            self._drain_if_free()
        except Exception as error:  # as above: neither an odd value nor a full disk may reach the caller
            self._give_up(error)
            self._lost_facts += 1

    # The maintenance thread.

    def maintain(self) -> None:
        """Allocate ahead, write what waits, notice a full disk or a deleted file, note the state in the file."""
        if self._ended or not self._service.acquire(False):
            return
        try:
            if self._ended:
                return
            self._serviced = True
            now_ns = self._clock()
            if self._first is None:
                if not self._gone and now_ns >= self._retry_at_ns:
                    self._open()
            else:
                self._keep_up(now_ns)
            self._drain_if_free()
        except Exception as error:  # the caller's thread has other work that must go on
            self._give_up(error)
        finally:
            self._service.release()

    def report_losses(self) -> Losses:
        """What was lost so far, and why."""
        return Losses(
            lost_rows=self._lost_rows,
            lost_facts=self._lost_facts,
            thinned_facts=self._thinned_facts,
            pending_rows=len(self._pending_rows),
            reason=self._reason or (self._loss_reason if self._lost_rows or self._lost_facts else None),
        )

    def close(self) -> None:
        """Write what waits, mark the recording as complete, and leave the file. Later rows and facts are dropped."""
        if self._ended or not self._service.acquire(timeout=2.0):
            return
        try:
            if self._ended:
                return
            if self._first is None and not self._gone:
                self._open()
            if self._finish():
                self._leave_file()
        except Exception as error:  # at exit nobody is left who could do anything about it
            self._give_up(error)
        finally:
            self._service.release()

    def disown(self) -> None:
        """Forget the file without touching it: for the copy of this object in a forked child."""
        self._ended = True
        self._lock = threading.Lock()  # the parent's threads, which may hold the old ones, do not exist here
        self._service = threading.Lock()
        self._pending_rows.clear()
        self._pending_facts.clear()
        self._drop_segments()
        self._file.forget()

    # Rows and facts on their way into segments; all of these need the lock.

    def _defer_row(self, payload: bytes) -> None:
        """Put a row into the bounded buffer; the one thing that may be done without the lock."""
        if self._ended or self._gone:
            self._lost_rows += 1
            return
        self._pending_rows.append(payload)
        if len(self._pending_rows) > self._pending_rows_max:
            oldest = _ROW_VALUES.unpack(self._pending_rows.popleft())
            self._lost_rows += 1
            self._settled_rows = oldest[_INDEX] + 1

    def _drain_if_free(self) -> None:
        """Write what waits unless another thread is at it; looks again after releasing, so nothing is left behind."""
        while (self._pending_rows or self._pending_facts) and self._lock.acquire(False):
            before = len(self._pending_rows) + len(self._pending_facts)
            try:
                self._drain(self._pending_rows_max)
            finally:
                self._lock.release()
            if len(self._pending_rows) + len(self._pending_facts) >= before:
                return

    def _drain(self, rows_max: int) -> None:
        if self._first is None:
            return
        while self._pending_facts:
            key, payload = self._pending_facts[0]
            if not self._place_fact(key, payload):
                break
            self._pending_facts.popleft()
            self._pending_fact_bytes -= len(payload)
        for _ in range(rows_max):
            if not self._pending_rows:
                return
            payload = self._pending_rows[0]
            values = _ROW_VALUES.unpack(payload)
            if not self._place_row(payload, values):
                return
            self._pending_rows.popleft()
            self._settled_rows = values[_INDEX] + 1

    def _place_row(self, payload: bytes, values: Sequence[int]) -> bool:
        if self._raw_left > 0:
            if not self._append(KIND_ROW, payload, _ROW_SPAN_BYTES):
                return False
            self._raw_left -= 1
            return True
        return self._merge_row(values)

    def _merge_row(self, values: Sequence[int]) -> bool:
        """Add a row to the growing block. Two places take turns, so a kill while one is written leaves the other."""
        block = self._block
        ends = values[_CLOSED_BY] == CLOSED_BY_END
        if block is not None and (ends or block[_INDEX] + block[_MERGED] != values[_INDEX]):
            self._finish_block()  # the tail stays apart, and a block never spans a gap
            block = None
        merged = list(values) if block is None else merge_rows(block, values)
        target = self._spare if block is None else self._other
        if target is None:
            target = self._new_slot(_ROW_SPAN_BYTES)
            if target is None:
                return False
        self._write_slot(target, KIND_ROW, _ROW_VALUES.pack(*merged))
        if block is None:
            self._newest, self._other, self._spare = target, None, None
        else:
            self._newest, self._other = target, self._newest
        self._block = merged
        if ends or merged[_MERGED] >= self._block_rows:
            self._finish_block()
        return True

    def _finish_block(self) -> None:
        self._block = None
        self._spare, self._newest, self._other = self._other, None, None
        self._blocks_left -= 1
        if self._blocks_left <= 0:
            self._block_rows *= 2
            self._blocks_left = self._level_blocks

    def _place_fact(self, key: tuple[str, str], payload: bytes) -> bool:
        """Write a fact, or decide that it is not kept; False when there is no room now."""
        kind = key[0]
        if len(payload) > self._max_fact_bytes():
            self._lost_facts += 1
            return True
        if kind in LAST_WINS_KINDS or key == _HEALTH_KEY:
            return self._place_last_wins(key, payload)
        span = frame_span_bytes(len(payload))
        last_words = kind in _LAST_WORDS
        if kind in MANY_KINDS:
            seen = self._many_seen[kind] = self._many_seen.get(kind, -1) + 1
            if seen % self._stride():
                self._thinned_facts += 1
                return True
        if self._fact_bytes + span > self._fact_budget_bytes * (2 if last_words else 1):
            self._lost_facts += 1
            return True
        if self._append(KIND_FACT, payload, span):
            self._fact_bytes += span
            self._fact_count += 1
            return True
        if kind in MANY_KINDS:
            self._many_seen[kind] -= 1  # it will be asked again
        return last_words and self._append_reserve(kind, payload, span)

    def _max_fact_bytes(self) -> int:
        return min(MAX_FACT_BYTES, self._file.segment_bytes // 4)

    def _stride(self) -> int:
        """1 in the first half of the budget for facts, 2 in the next quarter, 4 in the next eighth, ..."""
        left = max(self._fact_budget_bytes - self._fact_bytes, 1)
        return 1 << min(20, (self._fact_budget_bytes // left).bit_length() - 1)

    def _place_last_wins(self, key: tuple[str, str], payload: bytes) -> bool:
        """Rewrite a fact in the older one of its two places."""
        slots = self._fact_slots.pop(key, [])
        need = frame_span_bytes(len(payload))
        if len(slots) == 2 and slots[0].span_bytes >= need:
            slots.append(slots.pop(0))
        else:
            span = frame_span_bytes(len(payload) * 3 // 2)  # room to grow; outgrown places are left behind
            if slots and slots[-1].span_bytes >= need:
                span = slots[-1].span_bytes
            if self._fact_bytes + span > 2 * self._fact_budget_bytes:
                self._lost_facts += 1
                return True
            slot = self._new_slot(span)
            if slot is None:
                self._fact_slots[key] = slots
                return False
            self._fact_bytes += span
            self._fact_count += 1
            slots = [*slots[-1:], slot] if slots and slots[-1].span_bytes >= need else [slot]
        self._write_slot(slots[-1], KIND_FACT, payload)
        self._fact_slots[key] = slots
        if len(self._fact_slots) > _TRACKED_FACTS:
            del self._fact_slots[next(iter(self._fact_slots))]  # its newest version stays in the file
        return True

    # Segments; all of these need the lock, too.

    def _make_room(self, span: int) -> bool:
        current = self._current
        if current is not None and self._at + span <= self._file.segment_bytes:
            return True
        if self._next is None and not self._serviced:
            self._allocate_next()  # nobody else will
        if current is None or self._next is None:
            return False
        current.at = self._at
        self._retired.append(current)
        self._current, self._next = self._next, None
        # The rows of claimed places lie in the segment before, now or soon.
        first_row = max(self._settled_rows, self._claimed_rows) if self._block is None else self._block[_INDEX]
        self._view = self._current.view
        self._view[:SEGMENT_HEADER_BYTES] = encode_segment_header(self._current.number, first_row)
        self._at = self._current.at = SEGMENT_HEADER_BYTES
        return span <= self._file.segment_bytes - self._at

    def _append(self, kind: int, payload: bytes, span: int) -> bool:
        if not self._make_room(span):
            return False
        self._write_frame(self._view, self._at, kind, payload, span)
        self._at += span
        return True

    def _append_reserve(self, kind: str, payload: bytes, span: int) -> bool:
        end = (RESERVE_OFFSET + HEAD_BYTES) // 2 if kind == "health" else HEAD_BYTES
        if self._first is None or self._reserve_at + span > end:
            return False
        self._write_frame(self._first.view, self._reserve_at, KIND_FACT, payload, span)
        self._touch(self._first, self._reserve_at, span)
        self._reserve_at += span
        return True

    def _new_slot(self, span: int) -> Slot | None:
        if not self._make_room(span) or self._current is None:
            return None
        slot = Slot(self._current, self._at, span)
        self._at += span
        return slot

    def _write_slot(self, slot: Slot, kind: int, payload: bytes) -> None:
        self._write_frame(slot.segment.view, slot.at, kind, payload, slot.span_bytes)
        self._touch(slot.segment, slot.at, slot.span_bytes)

    def _write_frame(self, view: memoryview, at: int, kind: int, payload: bytes, span: int) -> None:
        covered = encode_covered(self._sequence, payload, span)
        _COMMIT.pack_into(view, at, 0)
        view[at + 8 : at + 8 + len(covered)] = covered
        _COMMIT.pack_into(view, at, commit_word(kind, covered))  # last, in one 8-byte store
        self._sequence += 1

    def _touch(self, segment: Segment, at: int, span: int) -> None:
        if segment.dirty is not None:
            segment.dirty.add((at, span))

    # The file.

    def _open(self) -> None:
        """Create the file and its first segment; on failure everything goes to memory and is tried again later."""
        try:
            first = self._file.open()
        except (OSError, ValueError) as error:
            self._fall_back(error)
            return
        with self._lock:
            self._first = self._current = first
            self._view = first.view
            self._at = HEAD_BYTES
            first.at = first.flushed = HEAD_BYTES
            for _ in range(2):
                places = self._fact_slots.setdefault(_HEALTH_KEY, [])
                places.append(Slot(first, self._reserve_at, _HEALTH_SPAN_BYTES))
                self._reserve_at += _HEALTH_SPAN_BYTES
            self._reason = None
        self._write_status()
        try:
            self._file.write_pointer()
        except OSError as error:
            self._fall_back(error)

    def _allocate_next(self) -> None:
        if self._current is None or self._next is not None or self._ended:
            return
        if self._clock() < self._retry_at_ns:
            return
        if not self._file.mapped and self._retired:
            return  # their bytes first: copies that cannot be written must not pile up
        try:
            self._next = self._file.allocate(self._current.number + 1)
        except OSError as error:
            self._fall_back(error)
        else:
            self._retry_ns, self._reason = _RETRY_NS, None

    def _fall_back(self, error: OSError | ValueError) -> None:
        """Note why there is no (further) space; the next try comes later and later."""
        text = error.strerror if isinstance(error, OSError) else str(error)
        self._reason = f"{text or type(error).__name__}: {os.path.dirname(self._file.present_path)}"
        self._loss_reason = self._reason
        self._retry_at_ns = self._clock() + self._retry_ns
        self._retry_ns = min(2 * self._retry_ns, _RETRY_MAX_NS)

    def _give_up(self, error: Exception) -> None:
        self._reason = self._loss_reason = f"{type(error).__name__} in the recording: {error}"

    def _keep_up(self, now_ns: int) -> None:
        """The work of one maintain() on an open file."""
        due = now_ns >= self._check_at_ns
        if due:
            self._check_at_ns = now_ns + _CHECK_NS
            if self._file.is_deleted():
                self._abandon()
                return
        self._flush_copies()
        self._release_retired()
        wanted = self._at > self._file.segment_bytes // 2 or self._pending_rows or self._pending_facts
        if self._next is None and wanted:
            self._allocate_next()
        self._drain_if_free()
        if due:
            self._report_trouble()
            self._write_status()
            self._flush_copies()

    def _flush_copies(self) -> None:
        """Write the news of segments that are not mapped; the bytes are copied under the lock and written without."""
        if self._file.mapped:
            return
        for segment in list(self._file.copies):
            with self._lock:
                at = self._at if segment is self._current else segment.at
                dirty = sorted(segment.dirty or ())
                parts = [(offset, bytes(segment.view[offset : offset + span])) for offset, span in dirty]
                if at > segment.flushed:
                    parts.append((segment.flushed, bytes(segment.view[segment.flushed : at])))
                if segment.dirty:
                    segment.dirty.clear()
            try:
                for offset, part in parts:
                    self._file.write(part, segment.base_bytes + offset)
            except OSError as error:
                with self._lock:
                    if segment.dirty is not None:
                        segment.dirty.update(dirty)
                self._fall_back(error)
                return
            segment.flushed = max(segment.flushed, at)
        live = {self._first, self._current, self._next, *self._retired}
        live.update(slot.segment for slots in self._fact_slots.values() for slot in slots)
        live.update(slot.segment for slot in (self._newest, self._other, self._spare) if slot is not None)
        self._file.copies = [segment for segment in self._file.copies if segment in live]

    def _release_retired(self) -> None:
        """Let go of full segments that the file has; those that no slot refers to are unmapped by that."""
        if not self._retired:
            return
        with self._lock:
            retired, self._retired = self._retired, []
        kept = [segment for segment in retired if segment.mapping is None and segment.flushed < segment.at]
        with self._lock:
            self._retired[:0] = kept

    def _report_trouble(self) -> None:
        """A health fact with what was lost, whenever that changed."""
        with self._lock:
            self._put_trouble()

    def _put_trouble(self) -> None:
        losses = (self._lost_rows, self._lost_facts, self._reason)
        if losses == self._reported or not any(losses):
            return
        fact = _loss_fact(self._clock(), self._lost_rows, self._lost_facts, self._reason or self._loss_reason)
        if self._place_fact(_HEALTH_KEY, json.dumps(fact).encode()):
            self._reported = losses

    def _write_status(self) -> None:
        first = self._first
        if first is None:
            return
        with self._lock:
            self._put_status(first, closed=False)

    def _put_status(self, first: Segment, *, closed: bool) -> None:
        self._generation += 1
        slots = [slot for slot in (self._newest, self._other, self._spare) if slot is not None]
        numbers = [slot.segment.number for slot in slots]
        status = Status(
            generation=self._generation,
            settled_rows=self._count_settled(),
            pending_rows=len(self._pending_rows),
            lost_rows=self._lost_rows,
            lost_facts=self._lost_facts,
            thinned_facts=self._thinned_facts,
            tail_segment=min(numbers, default=self._current.number if self._current else 0),
            state=STATE_RECORDING if self._reason is None else STATE_FULL,
            closed=closed,
            updated_ns=self._clock(),
            message=self._reason or "",
        )
        offset = STATUS_OFFSETS[self._generation % 2]
        encoded = encode_status(status)
        first.view[offset + 8 : offset + len(encoded)] = encoded[8:]
        first.view[offset : offset + 8] = encoded[:8]
        self._touch(first, offset, len(encoded))

    def _abandon(self) -> None:
        """The file was deleted: free its space and count everything in it as lost."""
        with self._lock:
            settled_rows = self._count_settled()
            self._drop_segments()
            self._file.forget()
            self._lost_rows = max(self._lost_rows, settled_rows) + len(self._pending_rows)
            self._lost_facts += self._fact_count + len(self._pending_facts)
            self._pending_rows.clear()
            self._pending_facts.clear()
            self._pending_fact_bytes = 0
            self._gone = True
            self._reason = self._loss_reason = f"the recording was deleted: {self._file.present_path}"

    def _drop_segments(self) -> None:
        self._view = memoryview(b"")
        self._forget_places()
        self._first = self._current = self._next = None
        self._retired = []
        self._newest = self._other = self._spare = None
        self._fact_slots = {}

    def _finish(self) -> bool:
        """Write what waits and the closing status; False when an interrupted write_row holds the lock for good."""
        # A signal handler that closes may have interrupted that very call, which then cannot release the lock.
        if not self._lock.acquire(timeout=1.0):
            return False
        self._lock.release()
        self._retry_at_ns = _LONG_AGO_NS
        before = (-1, -1)
        while True:
            self._flush_copies()
            self._release_retired()
            with self._lock:
                waiting = (len(self._pending_rows), len(self._pending_facts))
                if self._first is None or waiting in (before, (0, 0)):
                    self._finish_locked()
                    break
                before = waiting
                self._allocate_next()
                self._drain(self._pending_rows_max)
        self._flush_copies()
        return True

    def _finish_locked(self) -> None:
        if self._first is not None:
            waiting = list(self._pending_facts)
            self._pending_facts.clear()
            self._pending_facts.extend(fact for fact in waiting if not self._place_fact(*fact))
        self._ended = True
        self._lost_facts += len(self._pending_facts)
        if self._pending_rows:
            self._lost_rows += len(self._pending_rows)
            self._settled_rows = _ROW_VALUES.unpack(self._pending_rows[-1])[_INDEX] + 1
        self._pending_rows.clear()
        self._pending_facts.clear()
        if self._first is not None:
            self._put_trouble()
            self._put_status(self._first, closed=True)

    def _leave_file(self) -> None:
        current = self._current
        used_bytes = 0 if current is None else current.base_bytes + self._at
        with self._lock:
            self._drop_segments()
        self._file.leave(used_bytes, self._fall_back)


def _loss_fact(t_ns: int, lost_rows: int, lost_facts: int, reason: str | None) -> dict[str, Any]:
    """The health fact of a recording in trouble; ``id`` marks it as the writer's own, of which the newest counts."""
    message = f"the recording lost {lost_rows} rows and {lost_facts} facts"
    if reason is not None:
        message += f" ({reason})"
    level = "warning" if lost_rows or lost_facts else "info"
    if level == "info":
        message = f"the recording waits in memory ({reason})"
    return {"kind": "health", "id": _HEALTH_KEY[1], "t": t_ns, "level": level, "message": message[:160]}
