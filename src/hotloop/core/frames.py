"""Rows and facts -> the bytes of a recording, and back; docs/formats.md draws the layout.

Everything is little-endian and 8-byte aligned. The file is an array of equal segments; a segment is an array of
frames and no frame straddles two segments. A frame counts only when its commit word, written last, holds the right
checksum, so a reader may look at any time, at a file that is being written or whose writer was killed.

Nothing here trusts a length that it reads: decoding either returns checked values or skips, and time and memory are
bounded by the size of the buffer that was passed in.
"""

from __future__ import annotations

import json
import struct
from binascii import crc32
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hotloop.core.errors import RecordingError
from hotloop.core.recording import STEP_FIELDS

MAGIC = b"\x89hlr\r\n\x1a\n"
"""First bytes of every recording: a byte that is not text, and line ends that a text-mode copy would damage."""

FORMAT_VERSION = 2

HEAD_BYTES = 65536
"""Start of the first segment: file header and two status slots."""

STATUS_OFFSETS = (4096, 4608)
STATUS_END = 8192

SEGMENT_BYTES = 1 << 20
MIN_SEGMENT_BYTES = 2 * HEAD_BYTES
MAX_SEGMENT_BYTES = 64 << 20
MAX_FACT_BYTES = 256 << 10

SEGMENT_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24

KIND_ROW = 1
KIND_FACT = 2
_KIND_SEGMENT = 3
_KIND_STATUS = 4

LAST_WINS_KINDS = frozenset({"loader_stats", "optimizer", "ddp", "compile", "gc", "ops", "products", "overhead"})
"""Facts whose newest version replaces the older ones with the same key."""

MANY_KINDS = frozenset({"samples", "memory", "ddp_stats", "device_times", "network", "metric"})
"""Facts that keep coming as long as the training runs."""

_FRAME_TAG = b"HLF"  # bytes 5..7 of every commit word; what a reader looks for after damage
_TAG = int.from_bytes(b"\0" * 5 + _FRAME_TAG, "little")

_PREAMBLE = struct.Struct("<8sIIIII")  # magic, version, head bytes, segment bytes, JSON bytes, JSON checksum
_FRAME = struct.Struct("<QIIQ")  # commit word, span, payload length, sequence
_COVERED = struct.Struct("<IIQ")
_STATUS = struct.Struct("<QQq16xq20xI8x256s")  # commit word, generation, settled rows, lost facts, closed, message
_UNSIGNED = struct.Struct("<Q")

_JSON_OFFSET = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """The content of a recording's first bytes: the columns of its rows and the size of its segments."""

    segment_bytes: int
    fields: tuple[str, ...] = STEP_FIELDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the writer last reported about itself; rewritten in place in two alternating slots.

    ``settled_rows`` is the index after the newest row that was written or given up.
    """

    generation: int = 0
    settled_rows: int = 0
    lost_facts: int = 0
    closed: bool = False
    message: str = ""


class Frame(NamedTuple):
    """A frame whose checksum was right. A tuple because a reader makes one for every row."""

    kind: int
    sequence: int
    payload: bytes
    at: int
    """Its start in the buffer."""


def frame_span_bytes(payload_bytes: int) -> int:
    """Bytes that a frame with such a payload takes in a file.

    >>> frame_span_bytes(1)
    32
    """
    return (FRAME_HEADER_BYTES + payload_bytes + 7) & ~7


def _commit_word(kind: int, covered: bytes) -> int:
    """The word that makes a frame count: checksum of everything after it, kind, and a tag."""
    return crc32(covered, kind) | kind << 32 | _TAG


def encode_frame(kind: int, sequence: int, payload: bytes) -> bytes:
    span = frame_span_bytes(len(payload))
    covered = _COVERED.pack(span, len(payload), sequence) + payload
    return (_UNSIGNED.pack(_commit_word(kind, covered)) + covered).ljust(span, b"\0")


def decode_frames(data: bytes, start: int, stop: int) -> Iterator[Frame]:
    """Every good frame in ``data[start:stop]``; damaged stretches are stepped over by looking for the next frame.

    ``start`` is a multiple of 8 within the segment that ``data`` holds.
    """
    stop = min(stop, len(data))
    # A forged file could put a plausible header with a long payload at every word; without this limit, checking them
    # all would take quadratic time.
    patience_bytes = 8 * max(stop - start, 0) + FRAME_HEADER_BYTES
    at = start
    while at + FRAME_HEADER_BYTES <= stop:
        commit, span, length, sequence = _FRAME.unpack_from(data, at)
        kind = commit >> 32 & 0xFF
        if (
            commit >> 40 == _TAG >> 40
            and kind in (KIND_ROW, KIND_FACT)
            and not span & 7
            and FRAME_HEADER_BYTES + length <= span <= stop - at
        ):
            end = at + FRAME_HEADER_BYTES + length
            if crc32(data[at + 8 : end], kind) == commit & 0xFFFFFFFF:
                yield Frame(kind, sequence, data[at + FRAME_HEADER_BYTES : end], at)
                at += span
                continue
            patience_bytes -= length
            if patience_bytes < 0:
                return
        at = _find_frame(data, at + 8, stop)


def _find_frame(data: bytes, at: int, stop: int) -> int:
    """The start of the frame whose aligned tag is the next at or after ``at``; ``stop`` if there is none."""
    while True:
        found = data.find(_FRAME_TAG, at + 5, stop)
        if found < 0:
            return stop
        if (found - 5) & 7 == 0:
            return found - 5
        at = found - 4


def encode_header(header: FileHeader) -> bytes:
    """The beginning of a file, up to the first status slot."""
    text = json.dumps({"fields": list(header.fields)}, separators=(",", ":")).encode()
    head = _PREAMBLE.pack(MAGIC, FORMAT_VERSION, HEAD_BYTES, header.segment_bytes, len(text), crc32(text))
    return (head.ljust(_JSON_OFFSET, b"\0") + text).ljust(STATUS_OFFSETS[0], b"\0")


def decode_header(data: bytes, name: str) -> FileHeader:
    """The header in the first bytes of a file; ``name`` appears in the error's text.

    Raises RecordingError for a file that is not a recording, damaged at its start, or from a newer hotloop.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise RecordingError(f"{name} is not a hotloop recording")
    if len(data) < STATUS_OFFSETS[0]:
        raise RecordingError(f"{name} is truncated: {len(data)} bytes, less than a header")
    _, version, head_bytes, segment_bytes, json_bytes, json_crc = _PREAMBLE.unpack_from(data)
    if version > FORMAT_VERSION:
        raise RecordingError(
            f"{name} was written by a newer hotloop (format {version}; this version reads up to {FORMAT_VERSION}); "
            "upgrade hotloop"
        )
    text = data[_JSON_OFFSET : _JSON_OFFSET + json_bytes]
    if (
        version < 1
        or head_bytes != HEAD_BYTES
        or not MIN_SEGMENT_BYTES <= segment_bytes <= MAX_SEGMENT_BYTES
        or segment_bytes & 7
        or json_bytes > STATUS_OFFSETS[0] - _JSON_OFFSET
        or crc32(text) != json_crc
    ):
        raise RecordingError(f"{name} has a damaged header")
    fields = (decode_object(text) or {}).get("fields")
    if not isinstance(fields, list) or not all(isinstance(f, str) for f in fields):
        raise RecordingError(f"{name} has a damaged header: no list of fields")
    if not fields or len(set(fields)) != len(fields) or "index" not in fields:
        raise RecordingError(f"{name} has a damaged header: its fields are not a step row")
    return FileHeader(segment_bytes=segment_bytes, fields=tuple(fields))


def encode_segment_header(number: int, first_row: int) -> bytes:
    """The start of every segment but the first: its number and the index of the first row that can be in it."""
    covered = struct.pack("<QqQ", number, first_row, 0)
    return _UNSIGNED.pack(_commit_word(_KIND_SEGMENT, covered)) + covered


def encode_status(status: Status) -> bytes:
    """A status slot; a long message is cut."""
    message = status.message.encode("utf-8", "replace")[:256]
    facts = (status.generation, status.settled_rows, status.lost_facts, status.closed, message)
    covered = _STATUS.pack(0, *facts)[8:]
    return _UNSIGNED.pack(_commit_word(_KIND_STATUS, covered)) + covered


def decode_status(head: bytes) -> Status:
    """The newest good status at the start of a file; a fresh Status if there is none."""
    newest = Status()
    for offset in STATUS_OFFSETS:
        slot = head[offset : offset + _STATUS.size]
        if len(slot) < _STATUS.size:
            continue
        commit, generation, settled_rows, lost_facts, closed, message = _STATUS.unpack(slot)
        if commit == _commit_word(_KIND_STATUS, slot[8:]) and generation >= newest.generation:
            text = message.rstrip(b"\0").decode("utf-8", "replace")
            newest = Status(
                generation=generation,
                settled_rows=settled_rows,
                lost_facts=lost_facts,
                closed=bool(closed),
                message=text,
            )
    return newest


def decode_object(text: bytes) -> dict[str, Any] | None:
    """The JSON object in ``text``; None if it holds anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def fact_key(fact: Mapping[str, Any]) -> tuple[str, str]:
    """What identifies a fact of a last-wins kind: its kind, and its id or index if it has one."""
    return str(fact.get("kind")), str(fact.get("id", fact.get("index")))
