"""tensorboard: scalars in an event file, over the training's steps."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from hotloop.core.errors import UsageError
from hotloop.export.points import Snapshot, flatten_points
from hotloop.export.target import Sender, SendFailed, Target

_POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), reflected: RFC 3720, appendix B.4."""


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_TABLE = _make_table()


def crc32c(data: bytes) -> int:
    """CRC-32C of ``data``.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def encode_record(data: bytes) -> bytes:
    """A TFRecord: length, its masked checksum, the data, its masked checksum."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def encode_event(wall_s: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """tensorflow.Event: wall_time (1, double), step (2, int64), summary (5) of values: tag (1), simple_value (2)."""
    values = b"".join(
        _field(1, _field(1, tag.encode("utf-8", "replace")) + b"\x15" + struct.pack("<f", _as_float32(value)))
        for tag, value in scalars.items()
    )
    return b"\x09" + struct.pack("<d", wall_s) + b"\x10" + _varint(step) + _field(5, values)


def _as_float32(value: float) -> float:
    """A number beyond a float32's range as the infinity that it becomes."""
    return value if abs(value) < 3.4e38 else float("inf") if value > 0 else float("-inf")


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class _EventFile:
    """One file per run; made with the first step. A record that could not be written whole is taken back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._whole_bytes = 0
        self._last_step = -1

    def send(self, snapshot: Snapshot) -> None:
        lead = snapshot.run.lead
        if lead is None or lead.steps_count <= self._last_step:
            return
        try:
            if self._file is None:
                self._file = self._create(snapshot.wall_s)
            self._append(encode_record(encode_event(snapshot.wall_s, lead.steps_count, flatten_points(snapshot))))
        except OSError as error:
            raise SendFailed(error.strerror or type(error).__name__, may_retry=True) from None
        self._last_step = lead.steps_count

    def _create(self, wall_s: float) -> BinaryIO:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{wall_s:.0f}.{socket.gethostname()}.{os.getpid()}.hotloop"
        file = (self._folder / name).open("wb", buffering=0)
        version = b"\x09" + struct.pack("<d", wall_s) + _field(3, b"brain.Event:2")
        self._whole_bytes = file.write(encode_record(version))
        return file

    def _append(self, record: bytes) -> None:
        file = self._file
        assert file is not None
        file.seek(self._whole_bytes)
        written = file.write(record)
        if written != len(record):
            file.truncate(self._whole_bytes)
            raise OSError(28, "No space left on device")
        self._whole_bytes += written

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def open_tensorboard(where: str, variables: Mapping[str, str]) -> Sender:
    if not where or Path(where).is_file():
        raise UsageError(f"--export tensorboard={where}: give the folder that tensorboard --logdir reads")
    return _EventFile(Path(where))


TARGET = Target(
    id="tensorboard",
    summary="TensorBoard: scalars over steps in an event file",
    where="FOLDER",
    open=open_tensorboard,
)
