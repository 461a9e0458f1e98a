"""A growing recording -> what was appended to it since the last look, in pieces that fit a segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.frames import (
    HEAD_BYTES,
    KIND_ROW,
    RESERVE_OFFSET,
    SEGMENT_HEADER_BYTES,
    Frame,
    decode_frames,
    frame_span_bytes,
)

from .recording import EMPTY_SEGMENTS, RecordingFile, Rows, RowsAndFacts

_FIRST_BYTES, _PIECE_BYTES = 48 << 10, 128 << 10  # the first holds the places of all rows that were taken ahead
_NEWEST_PLACES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TailPiece:
    """``rows`` is n x len(STEP_FIELDS), sorted by index. A block of merged rows that has grown comes again, whole."""

    rows: Rows
    facts: tuple[dict[str, Any], ...]


class RecordingTail:
    """Reads one process's file again and again, each time only what may be new since the time before.

    A file that was replaced by another one is read from its beginning. Of last-wins facts only their first version is
    certain to come: later ones are written in place.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()
        self.is_closed = False
        """Whether the process ended its recording itself, as of the last complete ``read``."""

    def _forget(self) -> None:
        self._identity: tuple[int, int] | None = None
        self._resume = HEAD_BYTES  # where the last row lies: everything before it is settled, but for the places below
        # Offset -> index and version of the newest rows: a block has two places, and one may lie far back.
        self._places: dict[int, tuple[int, int]] = {}
        self._fact_sequence = -1

    def read(self) -> Iterator[TailPiece]:
        """What is new. Raises RecordingError when the file is foreign, damaged at its head, or gone."""
        with RecordingFile(self._path) as file:
            if file.identity != self._identity or file.size_bytes < self._resume:
                self._forget()
                self._identity = file.identity
            newest_fact = self._fact_sequence
            for frames in self._read_frames(file):
                collected, found = RowsAndFacts(file.header), False
                for at, frame in frames:
                    if frame.kind == KIND_ROW:
                        if self._places.get(at, (0, -1))[1] == frame.sequence:
                            continue
                        index = collected.add_row(frame)
                        if index is not None:
                            self._note_row(at, index, frame.sequence)
                            found = True
                    elif frame.sequence > self._fact_sequence:
                        newest_fact = max(newest_fact, frame.sequence)
                        collected.add(frame)
                        found = True
                if found:
                    yield TailPiece(rows=collected.take_rows(), facts=collected.take_facts())
            self._fact_sequence = newest_fact
            self.is_closed = file.status.closed

    def _note_row(self, at: int, index: int, version: int) -> None:
        self._resume = max(self._resume, at)
        self._places[at] = index, version
        if len(self._places) > _NEWEST_PLACES:
            del self._places[min(self._places, key=lambda place: (self._places[place][0], place))]

    def _read_frames(self, file: RecordingFile) -> Iterator[list[tuple[int, Frame]]]:
        """Lists of (offset, frame): the last words, the places behind us that may be rewritten, then the rest."""
        if file.status.closed:
            yield [(RESERVE_OFFSET + frame.at, frame) for frame in file.read_reserve()]
        row_bytes = frame_span_bytes(8 * len(file.header.fields))
        behind = sorted(place for place in self._places if place < self._resume)
        yield [one for place in behind for one in _decode(file.read(place, row_bytes), place)]
        number, start = divmod(self._resume, file.header.segment_bytes)
        empty = 0
        while number < file.segment_count and empty <= EMPTY_SEGMENTS:
            start = max(start, SEGMENT_HEADER_BYTES if number else HEAD_BYTES)
            at = number * file.header.segment_bytes + start
            is_begun = start > SEGMENT_HEADER_BYTES or not _is_hole(file.read(at - start, SEGMENT_HEADER_BYTES))
            data = _read_used(file, at, file.header.segment_bytes - start) if is_begun else b""
            yield _decode(data, at)
            number, start, empty = number + 1, 0, 0 if data else empty + 1


def _decode(data: bytes, offset: int) -> list[tuple[int, Frame]]:
    return [(offset + frame.at, frame) for frame in decode_frames(data, 0, len(data))]


def _read_used(file: RecordingFile, at: int, length: int) -> bytes:
    """Up to the first long piece that nothing was written to: places are taken one after another, some rows ahead."""
    parts: list[bytes] = []
    while length > 0:
        part = file.read(at, min(length, _PIECE_BYTES if parts else _FIRST_BYTES))
        if parts and _is_hole(part):
            break
        parts.append(part)
        at, length = at + len(part), length - len(part)
        if not part:
            break
    data = b"".join(parts)
    return b"" if _is_hole(data) else data


def _is_hole(data: bytes) -> bool:
    """Whether nothing was written there; comparing whole buffers is what an idle rank's reading costs least with."""
    return data == bytes(len(data))
