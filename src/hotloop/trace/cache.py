"""Columns that were read once -> one file in the user's cache folder, from which they are mapped back in no time.

The file is ``magic | length of the head | head (JSON) | arrays``, every array uncompressed and aligned. Nothing in it
is ever executed or unpickled; a file that is damaged, foreign or of another version counts as absent.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from isal import isal_zlib
from msgspec import Struct
from numpy.typing import NDArray

from hotloop.core.trace import SPARSE_INTEGERS, SPARSE_NUMBERS, SPARSE_TEXTS, MemoryEvents, TraceFacts, TraceNote

from .columns import COLUMN_TYPES, SparseColumn, TraceColumns

MAGIC = b"hotloop columns\n"
LAYOUT = 1
SUFFIX = ".hlcols"
MIN_TRACE_BYTES = 1 << 20
"""Smaller traces are read again as fast."""
MAX_FOLDER_BYTES = 4 << 30
"""Of the whole folder, and so of one file; the longest unused files go first."""
_MAX_HEAD_BYTES = 1 << 30

_SAMPLE_BYTES = 1 << 16
_SAMPLE_COUNT = 64
_ALIGN = 64
_DTYPES = ("int8", "int16", "int32", "int64", "float64")
_MEMORY_TYPES = {
    "time_ns": np.int64, "address": np.int64, "bytes": np.int64, "allocated_bytes": np.int64,
    "reserved_bytes": np.int64, "device_type": np.int32, "device_index": np.int32,
}  # fmt: skip


class _Array(Struct, frozen=True):
    dtype: str
    length: int
    offset: int
    """From the end of the head."""
    crc: int


class _StoredTrace(Struct, frozen=True):
    facts: TraceFacts
    notes: tuple[TraceNote, ...]
    names: list[str]
    processes: list[str]
    thread_labels: list[str]
    stream_labels: list[str]
    columns: dict[str, _Array]
    sparse: dict[str, tuple[_Array, _Array, list[str]]]
    memory: dict[str, _Array] | None


class _Head(Struct, frozen=True):
    layout: int
    key: str
    traces: list[_StoredTrace]


def make_key(path: Path, format_id: str, format_version: int) -> str:
    """What must be equal for cached columns to be those of the file.

    Size, modification time, and a digest of head, tail and samples spread evenly between them. A change that keeps
    size and modification time and touches none of the sampled bytes is not caught.
    """
    facts = path.stat()
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        last = max(facts.st_size - _SAMPLE_BYTES, 0)
        for at in range(_SAMPLE_COUNT):
            file.seek(last * at // (_SAMPLE_COUNT - 1))
            digest.update(file.read(_SAMPLE_BYTES if at in (0, _SAMPLE_COUNT - 1) else _SAMPLE_BYTES // 16))
    return f"{format_id}/{format_version}/{facts.st_size}/{facts.st_mtime_ns}/{digest.hexdigest()}"


def cache_place(key: str, folder: Path) -> Path:
    """Where the columns of a trace lie in the cache folder: a name made of its key alone."""
    return folder / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}{SUFFIX}"


def default_cache_folder(environment: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/hotloop/traces``, or the same below ``~/.cache``."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "hotloop" / "traces"


def load_columns(place: Path, key: str) -> tuple[TraceColumns, ...] | None:
    """The cached traces, mapped from the file; None when there are none for this key, or none that are sound."""
    try:
        with place.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = file.read(len(MAGIC) + 8)
            head_bytes = int.from_bytes(begin[len(MAGIC) :], "little")
            if begin[: len(MAGIC)] != MAGIC or head_bytes > min(_MAX_HEAD_BYTES, size):
                return None
            head = msgspec.json.decode(file.read(head_bytes), type=_Head)
            if head.layout != LAYOUT or head.key != key:
                return None
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    body = memoryview(mapped)[_aligned(len(begin) + head_bytes) :]
    try:
        traces = tuple(_restore_trace(stored, body) for stored in head.traces)
    except _Unsound:
        return None
    with suppress(OSError):
        os.utime(place)  # the time of its last use, by which the folder is cleaned
    return traces


def store_columns(place: Path, key: str, traces: Sequence[TraceColumns]) -> bool:
    """Write the columns there, whole or not at all. False when the place cannot be written to, or is full."""
    arrays: list[NDArray[Any]] = []
    offset = 0

    def keep(array: NDArray[Any]) -> _Array:
        nonlocal offset
        plain = np.ascontiguousarray(array)
        arrays.append(plain)
        at = offset
        offset = _aligned(offset + plain.nbytes)
        return _Array(dtype=plain.dtype.name, length=len(plain), offset=at, crc=isal_zlib.crc32(_bytes_of(plain)))

    head = _Head(layout=LAYOUT, key=key, traces=[_describe_trace(trace, keep) for trace in traces])
    if offset > MAX_FOLDER_BYTES:
        return False
    try:
        text = msgspec.json.encode(head)
        place.parent.mkdir(parents=True, exist_ok=True)
        # Another name in the same folder, then renamed: a reader never sees half a file.
        descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=".", suffix=f"{SUFFIX}.tmp")
    except (OSError, TypeError, msgspec.MsgspecError):
        return False
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(MAGIC + len(text).to_bytes(8, "little") + text)
            for array in arrays:
                file.write(b"\0" * (-file.tell() % _ALIGN))
                file.write(_bytes_of(array))
        os.replace(temporary, place)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        return False
    return True


def trim_folder(folder: Path, limit_bytes: int = MAX_FOLDER_BYTES) -> None:
    """Remove the longest unused cache files until the rest is within the limit."""
    with suppress(OSError):
        files = [(place.stat(), place) for place in folder.glob(f"*{SUFFIX}")]
        files.sort(key=lambda item: item[0].st_mtime_ns, reverse=True)
        total_bytes = 0
        for facts, place in files:
            total_bytes += facts.st_size
            if total_bytes > limit_bytes:
                place.unlink(missing_ok=True)


class _Unsound(Exception):
    """The file's arrays do not fit together."""


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.data.cast("B") if array.size else memoryview(b"")


def _describe_trace(trace: TraceColumns, keep: Any) -> _StoredTrace:
    memory = trace.memory
    return _StoredTrace(
        facts=trace.facts,
        notes=trace.notes,
        names=list(trace.names),
        processes=list(trace.processes),
        thread_labels=list(trace.thread_labels),
        stream_labels=list(trace.stream_labels),
        columns={name: keep(getattr(trace, name)) for name in COLUMN_TYPES},
        sparse={
            name: (keep(column.rows), keep(column.values), list(column.table)) for name, column in trace.sparse.items()
        },
        memory=None if memory is None else {name: keep(getattr(memory, name)) for name in _MEMORY_TYPES},
    )


def _restore_trace(stored: _StoredTrace, body: memoryview) -> TraceColumns:
    _require(stored.columns.keys() == COLUMN_TYPES.keys())
    dense = {name: _restore_array(array, body) for name, array in stored.columns.items()}
    count = len(dense["start_ns"])
    for name, array in dense.items():
        _require(array.dtype == COLUMN_TYPES[name] and len(array) == count)
    _require_sorted(dense["start_ns"])
    _require_within(dense["duration_ns"], 0, 2**62 + 1)
    _require_within(dense["name"], 0, len(stored.names))
    _require_within(dense["category"], 0, 128)
    _require_within(dense["process"], -1, len(stored.processes))
    _require_within(dense["thread"], -1, len(stored.thread_labels))
    _require_within(dense["stream"], -1, len(stored.stream_labels))
    sparse = dict(_restore_sparse(stored, body, count))
    return TraceColumns(
        facts=stored.facts,
        notes=stored.notes,
        names=stored.names,
        processes=stored.processes,
        thread_labels=stored.thread_labels,
        stream_labels=stored.stream_labels,
        memory=_restore_memory(stored.memory, body),
        sparse=sparse,
        **dense,
    )


def _restore_sparse(stored: _StoredTrace, body: memoryview, count: int) -> Iterator[tuple[str, SparseColumn]]:
    for name, (of_rows, of_values, table) in stored.sparse.items():
        rows, values = _restore_array(of_rows, body), _restore_array(of_values, body)
        _require(len(rows) == len(values) and rows.dtype.kind == "i")
        _require_within(rows, 0, count)
        _require(bool((rows[1:] > rows[:-1]).all()))
        if name in SPARSE_TEXTS:
            _require(values.dtype.kind == "i")
            _require_within(values, 0, len(table))
        else:
            _require(name in (*SPARSE_INTEGERS, *SPARSE_NUMBERS) and not table)
            _require(values.dtype.kind == ("f" if name in SPARSE_NUMBERS else "i"))
        yield name, SparseColumn(rows=rows, values=values, table=table)


def _restore_memory(stored: dict[str, _Array] | None, body: memoryview) -> MemoryEvents | None:
    if stored is None:
        return None
    _require(stored.keys() == _MEMORY_TYPES.keys())
    arrays = {name: _restore_array(array, body) for name, array in stored.items()}
    for name, array in arrays.items():
        _require(array.dtype == _MEMORY_TYPES[name] and len(array) == len(arrays["time_ns"]))
    _require_sorted(arrays["time_ns"])
    return MemoryEvents(**arrays)


def _restore_array(array: _Array, body: memoryview) -> NDArray[Any]:
    _require(array.dtype in _DTYPES and array.length >= 0 and array.offset >= 0 and array.offset % _ALIGN == 0)
    dtype = np.dtype(array.dtype)
    end = array.offset + array.length * dtype.itemsize
    _require(end <= len(body))
    part = body[array.offset : end]
    _require(isal_zlib.crc32(part) == array.crc)
    return np.frombuffer(part, dtype=dtype)


def _require(condition: bool) -> None:
    if not condition:
        raise _Unsound


def _require_within(values: NDArray[Any], low: int, high: int) -> None:
    _require(not len(values) or (int(values.min()) >= low and int(values.max()) < high))


def _require_sorted(values: NDArray[Any]) -> None:
    _require(bool((values[1:] >= values[:-1]).all()))
