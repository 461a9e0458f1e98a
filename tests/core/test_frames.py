"""Encode and decode of frames, headers and status slots."""

from __future__ import annotations

import struct
from binascii import crc32

import pytest

from hotloop.core.errors import RecordingError
from hotloop.core.frames import (
    FORMAT_VERSION,
    HEAD_BYTES,
    KIND_FACT,
    KIND_ROW,
    MAGIC,
    SEGMENT_BYTES,
    STATUS_OFFSETS,
    FileHeader,
    decode_frames,
    decode_header,
    encode_frame,
    encode_header,
    frame_span_bytes,
)
from hotloop.core.recording import STEP_FIELDS


def make_header(version: int = FORMAT_VERSION, text: bytes = b'{"fields":["index"]}', segment_bytes: int = 1 << 20):
    head = struct.pack("<8sIIIII", MAGIC, version, HEAD_BYTES, segment_bytes, len(text), crc32(text))
    return (head.ljust(32, b"\0") + text).ljust(STATUS_OFFSETS[0], b"\0")


def test_frames_come_back_in_order() -> None:
    data = encode_frame(KIND_ROW, 1, b"row") + encode_frame(KIND_FACT, 2, b"{}") + bytes(64)
    assert [tuple(frame) for frame in decode_frames(data, 0, len(data))] == [(1, 1, b"row", 0), (2, 2, b"{}", 32)]


@pytest.mark.parametrize("torn", [slice(0, 8), slice(8, 12), slice(12, 16), slice(16, 24), slice(24, 25)])
def test_a_torn_frame_is_stepped_over_and_the_next_is_found(torn: slice) -> None:
    data = bytearray(b"".join(encode_frame(KIND_ROW, k, bytes([k]) * 40) for k in range(1, 4)))
    at = frame_span_bytes(40)
    for i in range(at + torn.start, at + torn.stop):
        data[i] ^= 0xFF
    assert [frame.sequence for frame in decode_frames(bytes(data), 0, len(data))] == [1, 3]


def test_a_frame_without_its_commit_word_does_not_count() -> None:
    data = bytearray(encode_frame(KIND_ROW, 1, b"x" * 40))
    data[:8] = bytes(8)
    assert list(decode_frames(bytes(data), 0, len(data))) == []


def test_a_frame_beyond_the_end_does_not_count() -> None:
    data = encode_frame(KIND_ROW, 1, b"x" * 40)
    assert list(decode_frames(data, 0, len(data) - 8)) == []
    assert list(decode_frames(data[:-8], 0, len(data))) == []


def test_a_changed_kind_is_damage() -> None:
    data = bytearray(encode_frame(KIND_ROW, 1, b"x" * 40))
    data[4] = KIND_FACT
    assert list(decode_frames(bytes(data), 0, len(data))) == []


def test_a_header_comes_back() -> None:
    encoded = encode_header(FileHeader(segment_bytes=SEGMENT_BYTES))
    header = decode_header(encoded, "file")
    assert len(encoded) == STATUS_OFFSETS[0]
    assert header.fields == STEP_FIELDS
    assert header.segment_bytes == SEGMENT_BYTES


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "file is not a hotloop recording"),
        (b"PK\3\4" * 2000, "file is not a hotloop recording"),
        (MAGIC + b"\1\0\0\0", "file is truncated: 12 bytes, less than a header"),
        (
            make_header(version=7),
            "file was written by a newer hotloop (format 7; this version reads up to 2); upgrade hotloop",
        ),
        (make_header(version=0), "file has a damaged header"),
        (make_header(segment_bytes=1 << 31), "file has a damaged header"),
        (make_header(segment_bytes=0), "file has a damaged header"),
        (make_header(text=b"[]"), "file has a damaged header: no list of fields"),
        (make_header(text=b"{"), "file has a damaged header: no list of fields"),
        (make_header(text=b'{"fields":[1]}'), "file has a damaged header: no list of fields"),
        (make_header(text=b'{"fields":["a","a"]}'), "file has a damaged header: its fields are not a step row"),
        (make_header()[:40] + b"X" + make_header()[41:], "file has a damaged header"),
    ],
)
def test_a_bad_header_is_refused_in_one_line(data: bytes, text: str) -> None:
    with pytest.raises(RecordingError) as refused:
        decode_header(data, "file")
    assert str(refused.value) == text
