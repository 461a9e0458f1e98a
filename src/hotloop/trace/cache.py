"""Columns that were read once -> one file in the user's cache folder, from which they are read back in no time.

The file is a zip archive of a head (JSON) and the bytes of every array, not compressed. Nothing in it is ever executed
or unpickled; a file that is damaged, foreign or of another version counts as absent.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hotloop.core.output_file import open_whole
from hotloop.core.trace import MemoryEvents, TraceFacts, TraceNote

from .columns import COLUMN_TYPES, SparseColumn, TraceColumns

SUFFIX = ".hlcols"
MIN_TRACE_BYTES = 1 << 20
"""Smaller traces are read again as fast."""
MAX_FOLDER_BYTES = 4 << 30
"""Of the whole folder, and so of one file; the longest unused files go first."""

_SAMPLE_BYTES = 1 << 16
_SAMPLE_COUNT = 64
_HEAD = "head.json"
_MEMORY = tuple(field.name for field in fields(MemoryEvents))


class _StoredTrace(Struct, frozen=True):
    facts: TraceFacts
    notes: tuple[TraceNote, ...]
    names: list[str]
    processes: list[str]
    thread_labels: list[str]
    stream_labels: list[str]
    tables: dict[str, list[str]]
    """Distinct texts by sparse fact; empty for facts that are numbers."""
    has_memory: bool
    dtypes: dict[str, str]
    """By array."""


class _Head(Struct, frozen=True):
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
    """The cached traces; None when there are none for this key, or none that are sound."""
    try:
        with zipfile.ZipFile(place) as archive:  # checks the CRC of whatever is read
            head = msgspec.json.decode(archive.read(_HEAD), type=_Head)
            if head.key != key:
                return None
            traces = tuple(_restore_trace(archive, at, stored) for at, stored in enumerate(head.traces))
        os.utime(place)  # the time of its last use, by which the folder is cleaned
    except Exception:  # damage leads to nearly any of them
        return None
    return traces


def store_columns(place: Path, key: str, traces: Sequence[TraceColumns]) -> bool:
    """Write the columns there, whole or not at all. False when the place cannot be written to, or is full."""
    arrays = [_list_arrays(trace) for trace in traces]
    if sum(array.nbytes for of_trace in arrays for array in of_trace.values()) > MAX_FOLDER_BYTES:
        return False
    head = _Head(key=key, traces=list(map(_describe_trace, traces, arrays)))
    try:
        text = msgspec.json.encode(head)
        place.parent.mkdir(parents=True, exist_ok=True)
        with open_whole(place) as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr(_HEAD, text)
            for at, of_trace in enumerate(arrays):
                for name, array in of_trace.items():
                    content = np.ascontiguousarray(array).data.cast("B") if array.size else b""
                    archive.writestr(f"{at}/{name}", content)
    except (OSError, TypeError, ValueError, msgspec.MsgspecError):
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


def _list_arrays(trace: TraceColumns) -> dict[str, NDArray[Any]]:
    arrays = {name: getattr(trace, name) for name in COLUMN_TYPES}
    for fact, column in trace.sparse.items():
        arrays |= {f"{fact}/rows": column.rows, f"{fact}/values": column.values}
    if trace.memory is not None:
        arrays |= {f"memory/{name}": getattr(trace.memory, name) for name in _MEMORY}
    return arrays


def _describe_trace(trace: TraceColumns, arrays: Mapping[str, NDArray[Any]]) -> _StoredTrace:
    return _StoredTrace(
        facts=trace.facts,
        notes=trace.notes,
        names=list(trace.names),
        processes=list(trace.processes),
        thread_labels=list(trace.thread_labels),
        stream_labels=list(trace.stream_labels),
        tables={fact: list(column.table) for fact, column in trace.sparse.items()},
        has_memory=trace.memory is not None,
        dtypes={name: array.dtype.name for name, array in arrays.items()},
    )


def _restore_trace(archive: zipfile.ZipFile, at: int, stored: _StoredTrace) -> TraceColumns:
    arrays = {name: np.frombuffer(archive.read(f"{at}/{name}"), dtype) for name, dtype in stored.dtypes.items()}
    return TraceColumns(
        facts=stored.facts,
        notes=stored.notes,
        names=stored.names,
        processes=stored.processes,
        thread_labels=stored.thread_labels,
        stream_labels=stored.stream_labels,
        memory=MemoryEvents(**{name: arrays[f"memory/{name}"] for name in _MEMORY}) if stored.has_memory else None,
        sparse={
            fact: SparseColumn(rows=arrays[f"{fact}/rows"], values=arrays[f"{fact}/values"], table=table)
            for fact, table in stored.tables.items()
        },
        **{name: arrays[name] for name in COLUMN_TYPES},
    )
