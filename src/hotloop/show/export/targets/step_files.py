"""json and tensorboard: files that grow by a record whenever steps were done."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from hotloop.core.errors import UsageError
from hotloop.show.export.points import Snapshot, flatten_points
from hotloop.show.export.target import Sender, SendFailed, Target

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


class _StepFile:
    """One record per snapshot, unless nothing was trained since the last one; a record that was not written in full
    is removed again."""

    def __init__(self) -> None:
        self.file: BinaryIO | None = None
        self._last_step = -1

    def send(self, snapshot: Snapshot) -> None:
        lead = snapshot.run.lead
        if lead is None or lead.steps_count <= self._last_step:
            return
        try:
            if self.file is None:
                self.file = self.open(snapshot.wall_s)
            self._append(self.file, self.encode(snapshot.wall_s, lead.steps_count, flatten_points(snapshot)))
        except OSError as error:
            raise SendFailed(error.strerror or type(error).__name__) from None
        self._last_step = lead.steps_count

    def open(self, wall_s: float) -> BinaryIO:
        raise NotImplementedError

    def encode(self, wall_s: float, step: int, metrics: Mapping[str, float]) -> bytes:
        raise NotImplementedError

    def _append(self, file: BinaryIO, record: bytes) -> None:
        whole_bytes = file.seek(0, os.SEEK_END)
        if file.write(record) != len(record):
            file.truncate(whole_bytes)
            raise OSError(28, "No space left on device")

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class _Lines(_StepFile):
    """A line is ``{"step": ..., "time_s": ..., "metrics": {name: value}}``, for wandb.log and mlflow.log_metrics."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self.file = file

    def encode(self, wall_s: float, step: int, metrics: Mapping[str, float]) -> bytes:
        line = {"step": step, "time_s": round(wall_s, 3), "metrics": metrics}
        return json.dumps(line, allow_nan=False).encode() + b"\n"


class _EventFile(_StepFile):
    """TensorBoard's scalars over the training's steps. One file a run, made with the first step."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def open(self, wall_s: float) -> BinaryIO:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{wall_s:.0f}.{socket.gethostname()}.{os.getpid()}.hotloop"
        file = (self._folder / name).open("wb", buffering=0)
        file.write(encode_record(b"\x09" + struct.pack("<d", wall_s) + _field(3, b"brain.Event:2")))
        return file

    def encode(self, wall_s: float, step: int, metrics: Mapping[str, float]) -> bytes:
        return encode_record(encode_event(wall_s, step, metrics))


def open_json(where: str, variables: Mapping[str, str]) -> Sender:
    try:
        return _Lines(Path(where).open("ab", buffering=0))
    except OSError as error:
        raise UsageError(f"--export json={where}: cannot write there ({error.strerror}); give a file") from None


JSON = Target(
    id="json",
    summary="JSON lines with flat names, for wandb.log and mlflow.log_metrics",
    where="FILE",
    open=open_json,
)


def open_tensorboard(where: str, variables: Mapping[str, str]) -> Sender:
    if not where or Path(where).is_file():
        raise UsageError(f"--export tensorboard={where}: give the folder that tensorboard --logdir reads")
    return _EventFile(Path(where))


TENSORBOARD = Target(
    id="tensorboard",
    summary="TensorBoard: scalars over steps in an event file",
    where="FOLDER",
    open=open_tensorboard,
)
