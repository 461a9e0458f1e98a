"""Encode and decode of frames and headers."""

from __future__ import annotations

import pytest

from hotloop.core.errors import RecordingError
from hotloop.core.frames import (
    KIND_END,
    KIND_FACT,
    KIND_ROW,
    MAGIC,
    check_header,
    decode_frames,
    encode_frame,
    encode_header,
)


def test_frames_come_back_in_order() -> None:
    data = encode_frame(KIND_ROW, b"row") + encode_frame(KIND_FACT, b"{}") + encode_frame(KIND_END) + bytes(64)
    frames = list(decode_frames(data))
    assert [(frame.kind, frame.payload) for frame in frames] == [
        (KIND_ROW, b"row"),
        (KIND_FACT, b"{}"),
        (KIND_END, b""),
    ]
    assert frames[-1].end == len(data) - 64


@pytest.mark.parametrize("at", range(13))
def test_a_damaged_frame_is_stepped_over_and_the_next_is_found(at: int) -> None:
    frames = [encode_frame(KIND_ROW, bytes([k]) * 40) for k in range(3)]
    data = bytearray(b"".join(frames))
    data[len(frames[0]) + at] ^= 0xFF
    assert [frame.payload[0] for frame in decode_frames(bytes(data))] == [0, 2]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not a hotloop recording"),
        (b"PK\3\4" * 2000, "is not a hotloop recording"),
        (MAGIC + b"\1\0\0\0", "is not a hotloop recording"),
        (MAGIC + b"\7\0\0\0" + bytes(4), "another version"),
        (encode_header()[:-1] + b"?", "another version"),
    ],
)
def test_a_bad_header_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(RecordingError, match=words):
        check_header(data, "file")


def test_a_file_of_false_starts_is_given_up() -> None:
    false_start = encode_frame(KIND_FACT, bytes(200_000))[:12]
    data = false_start * 400_000  # a checksum of 200 kB at each of them would take hours
    assert list(decode_frames(data)) == []
