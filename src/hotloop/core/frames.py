"""Rows and facts -> the bytes of a recording, and back; docs/formats.md draws the layout.

A recording is a header and then frames, one after the other; a file only grows. A frame counts only if its checksum is
right, so a reader may look at any time, at a file that is being written, or whose writer was killed.
"""

from __future__ import annotations

import json
import struct
from binascii import crc32
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hotloop.core.errors import RecordingError
from hotloop.core.recording import STEP_FIELDS

MAGIC = b"\x89hlr\r\n\x1a\n"
"""First bytes of every recording: a byte that is not text, and line ends that a text-mode copy would damage."""

FORMAT_VERSION = 3
MAX_FACT_BYTES = 256 << 10
MOST_REREAD = 4

KIND_ROW = 1
KIND_FACT = 2
KIND_END = 3
"""Empty: the process ended its recording itself."""

LAST_WINS_KINDS = frozenset({"loader_stats", "optimizer", "ddp", "compile", "gc", "ops", "products", "overhead"})
"""Facts whose newest version replaces the older ones with the same key."""

MANY_KINDS = frozenset({"samples", "memory", "ddp_stats", "device_times", "network", "metric"})
"""Facts that keep coming as long as the training runs."""

_TAG = b"HLF"
"""The first bytes of every frame; what a reader looks for after damage."""
_FRAME = struct.Struct("<3sBII")  # tag, kind, payload length, checksum
_HEADER = struct.Struct("<8sII")  # magic, version, checksum of the fields
_FIELDS_CRC = crc32(",".join(STEP_FIELDS).encode())

HEADER_BYTES = _HEADER.size


class Frame(NamedTuple):
    """A frame whose checksum was right. A tuple because a reader makes one for every row."""

    kind: int
    payload: bytes
    end: int
    """Where it ends in the buffer."""


def encode_frame(kind: int, payload: bytes = b"") -> bytes:
    return _FRAME.pack(_TAG, kind, len(payload), crc32(payload, kind)) + payload


def decode_frames(data: bytes) -> Iterator[Frame]:
    """Every good frame in ``data``; damaged stretches are stepped over by looking for the next frame.

    What is made of nothing but false starts is given up: the bytes that are read in vain are at most MOST_REREAD times
    those of the data.
    """
    at, left_bytes = data.find(_TAG), MOST_REREAD * len(data)
    while 0 <= at <= len(data) - _FRAME.size and left_bytes >= 0:
        _, kind, length, checksum = _FRAME.unpack_from(data, at)
        begin, end = at + _FRAME.size, at + _FRAME.size + length
        if length <= MAX_FACT_BYTES and end <= len(data) and crc32(payload := data[begin:end], kind) == checksum:
            yield Frame(kind, payload, end)
            at = data.find(_TAG, end)
        else:
            at = data.find(_TAG, at + 1)
            left_bytes -= length if length <= MAX_FACT_BYTES and end <= len(data) else 0


def encode_header() -> bytes:
    return _HEADER.pack(MAGIC, FORMAT_VERSION, _FIELDS_CRC)


def check_header(data: bytes, name: str) -> None:
    """Raises RecordingError unless these first bytes are those of a recording of this format."""
    if data[: len(MAGIC)] != MAGIC or len(data) < HEADER_BYTES:
        raise RecordingError(f"{name} is not a hotloop recording")
    if data[:HEADER_BYTES] != encode_header():
        version = _HEADER.unpack_from(data)[1]
        raise RecordingError(
            f"{name} was written by another version of hotloop (format {version}; this version reads {FORMAT_VERSION})"
        )


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
