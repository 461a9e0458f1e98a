"""Rows and facts of one process -> its recording, appended by hotloop's own process (the format is core/frames.py).

What cannot be written because the disk is full or something blocks the path waits in memory, up to a limit, and is
tried again; what does not fit there is counted as lost.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.core.frames import (
    KIND_END,
    KIND_FACT,
    KIND_ROW,
    LAST_WINS_KINDS,
    MANY_KINDS,
    MAX_FACT_BYTES,
    encode_frame,
    encode_header,
    fact_key,
)
from hotloop.core.recording import CLOSED_BY_END, FIELD, STEP_FIELDS, UNKNOWN

RAW_ROWS, LEVEL_BLOCKS = 16384, 8192
"""Rows that are kept one by one; later ones are merged in blocks of 2, then 4, 8, ... of that many blocks each."""
FACT_BUDGET_BYTES = 16 << 20
"""Facts in one file. Kinds that keep coming are thinned as it fills: every 2nd one after half of it, and so on."""
MOST_WAITING_BYTES = 8 << 20
RETRY_S = 5.0
_CLOSED_BY, _FLAGS = FIELD["closed_by"], FIELD["flags"]
_FROM_FIRST = tuple(FIELD[name] for name in ("index", "closed_by", "optimizer_index", "start_ns"))
_FROM_LAST = tuple(FIELD[name] for name in ("end_ns", "rss_bytes", "device_allocated_bytes", "device_reserved_bytes"))
_COUNTED = tuple(FIELD[name] for name in ("padded_tokens", "tokens", "padding_tokens", "longest_tokens"))
_ROW = struct.Struct(f"<{len(STEP_FIELDS)}q")


def merge_rows(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Two consecutive rows (or blocks) as one block.

    Fields are summed, and a sum with an unknown part is unknown, except for tokens: those of the rows that hold them.
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


class RecordingWriter:
    """One process's file. No method raises for what the disk does; ``flush`` writes what has come since, once there is
    a ``path``."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        raw_rows: int = RAW_ROWS,
        level_blocks: int = LEVEL_BLOCKS,
    ) -> None:
        self.path = path
        self._descriptor = -1
        self._waiting = bytearray(encode_header())
        self._raw_left, self._level_blocks = raw_rows, level_blocks
        self._block: list[int] | None = None
        self._block_rows, self._blocks_left = 2, level_blocks
        self._fact_bytes = 0
        self._many: dict[tuple[str, str], int] = {}
        self._newest: dict[tuple[str, str], bytes] = {}
        """Facts of which only the newest counts, and thinned-out ones: written at the end."""
        self.lost_rows = self.lost_facts = 0
        self.message = ""
        self._retry_s = 0.0

    def write_row(self, row: Sequence[int]) -> None:
        """A row in the order of STEP_FIELDS; it is not kept."""
        if self._raw_left > 0 or row[_CLOSED_BY] == CLOSED_BY_END:
            self._raw_left -= 1
            self._push_block()
            self._push(KIND_ROW, _ROW.pack(*row))
            return
        self._block = list(row) if self._block is None else merge_rows(self._block, row)
        if self._block[FIELD["rows_merged"]] >= self._block_rows:
            self._push_block()
            self._blocks_left -= 1
            if self._blocks_left <= 0:
                self._block_rows, self._blocks_left = 2 * self._block_rows, self._level_blocks

    def _push_block(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            self._push(KIND_ROW, _ROW.pack(*block))

    def write_fact(self, fact: Mapping[str, Any]) -> None:
        payload = json.dumps(fact, separators=(",", ":"), default=str).encode()
        kind = str(fact.get("kind"))
        if len(payload) > MAX_FACT_BYTES:
            self.lost_facts += 1
            return
        is_total = kind in LAST_WINS_KINDS
        if is_total or kind in MANY_KINDS or self._fact_bytes > FACT_BUDGET_BYTES:
            every, left = 1, FACT_BUDGET_BYTES - self._fact_bytes
            while left < FACT_BUDGET_BYTES // (2 * every) and every < 1 << 20:
                every *= 2
            key = fact_key(fact) if is_total else (kind, "")
            self._many[key] = seen = self._many.get(key, -1) + 1
            self._newest.pop(key, None)
            if seen % every:
                if is_total:
                    self._newest[key] = payload
                return
        self._fact_bytes += len(payload)
        self._push(KIND_FACT, payload)

    def _push(self, kind: int, payload: bytes) -> None:
        frame = encode_frame(kind, payload)
        if len(self._waiting) + len(frame) > MOST_WAITING_BYTES:
            self.lost_rows += kind == KIND_ROW
            self.lost_facts += kind == KIND_FACT
        else:
            self._waiting += frame

    def flush(self, *, closed: bool = False) -> None:
        """Write what waits; what fails is tried again in RETRY_S, or at the end."""
        if closed:
            self._push_block()
            self._waiting += encode_frame(KIND_END)
        if self.path is None or (not closed and (time.monotonic() < self._retry_s or not self._waiting)):
            return
        try:
            if self._descriptor < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_TRUNC
                self._descriptor = os.open(self.path, flags, 0o666)
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, self._waiting)]
            self.message = ""
        except OSError as error:
            self.message = f"cannot write {self.path}: {error.strerror}"
            self._retry_s = time.monotonic() + RETRY_S

    def close(self, *, closed: bool = True) -> None:
        """``closed`` says whether the process ended its recording itself."""
        lost = [f"{n} {what}" for n, what in ((self.lost_rows, "rows"), (self.lost_facts, "facts")) if n]
        if lost:
            text = f"{' and '.join(lost)} of the recording were lost: {self.message or 'the disk was too slow'}"
            self.write_fact({"kind": "health", "id": "recording", "level": "warning", "message": text})
        for payload in self._newest.values():
            self._push(KIND_FACT, payload)
        self._newest.clear()
        self._retry_s = 0.0
        self.flush(closed=closed)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
