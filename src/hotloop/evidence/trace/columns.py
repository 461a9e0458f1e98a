"""Arrays of events in any order -> TraceColumns, the numpy implementation of core.trace.Trace; and who reads them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import InvariantError
from hotloop.core.trace import SPARSE_INTEGERS, SPARSE_NUMBERS, SPARSE_TEXTS, MemoryEvents, TraceFacts, TraceNote

from .byte_source import Progress

Int64s: TypeAlias = NDArray[np.int64]
Int32s: TypeAlias = NDArray[np.int32]
Int8s: TypeAlias = NDArray[np.int8]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.integer[Any]]

COLUMN_TYPES: Mapping[str, type[np.generic]] = {
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "name": np.int32,
    "category": np.int8,
    "process": np.int32,
    "thread": np.int32,
    "device": np.int32,
    "stream": np.int32,
    "correlation": np.int64,
    "external_id": np.int64,
}
"""The dense columns in their order, with the type that the contract gives them."""

_UNKNOWN_WHEN_ABSENT = ("process", "thread", "device", "stream", "correlation", "external_id")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparseColumn:
    """A fact that only some events have. ``rows`` ascend; the two arrays may be of any integer width."""

    rows: Ints
    values: NDArray[Any]
    """The fact itself, or an index into ``table``."""
    table: Sequence[str] = ()
    """The distinct texts of a text fact; empty for numbers."""


# Not frozen, but only because the protocol's members are plain attributes, which a type checker takes for writable; the
# arrays themselves are read-only.
@dataclass(slots=True, kw_only=True, eq=False)
class TraceColumns:
    """The columns of one process, as core.trace.Trace defines them; make it with ``assemble_trace``."""

    facts: TraceFacts
    notes: tuple[TraceNote, ...]
    start_ns: Int64s
    duration_ns: Int64s
    name: Int32s
    category: Int8s
    process: Int32s
    thread: Int32s
    device: Int32s
    stream: Int32s
    correlation: Int64s
    external_id: Int64s
    names: Sequence[str]
    processes: Sequence[str]
    thread_labels: Sequence[str]
    stream_labels: Sequence[str]
    memory: MemoryEvents | None
    sparse: Mapping[str, SparseColumn]

    def __len__(self) -> int:
        return len(self.start_ns)

    def integers(self, name: str) -> tuple[Int64s, Int64s]:
        """(rows, values) of a sparse integer fact, rows ascending; empty if there are none."""
        column = self._find(name, SPARSE_INTEGERS)
        return column.rows.astype(np.int64, copy=False), column.values.astype(np.int64, copy=False)

    def numbers(self, name: str) -> tuple[Int64s, Floats]:
        """(rows, values) of a sparse fractional fact, rows ascending."""
        column = self._find(name, SPARSE_NUMBERS)
        return column.rows.astype(np.int64, copy=False), column.values.astype(np.float64, copy=False)

    def texts(self, name: str) -> tuple[Int64s, Int64s, Sequence[str]]:
        """(rows, indices, table) of a sparse text fact, rows ascending; the text is table[indices[i]]."""
        column = self._find(name, SPARSE_TEXTS)
        return column.rows.astype(np.int64, copy=False), column.values.astype(np.int64, copy=False), column.table

    def _find(self, name: str, known: Sequence[str]) -> SparseColumn:
        if name not in known:
            raise InvariantError(f"{name!r} is not a fact of this kind; choose from {', '.join(known)}")
        return self.sparse.get(name, _NOTHING)


def order_events(start_ns: Int64s, duration_ns: Int64s) -> Int64s:
    """The permutation that sorts by start; of equal starts, the longer event first, else in the given order."""
    order = np.argsort(start_ns, kind="stable")
    sorted_start_ns = start_ns[order]
    same = sorted_start_ns[1:] == sorted_start_ns[:-1]
    if same.any():
        tied = np.zeros(len(order), dtype=bool)
        tied[1:] |= same
        tied[:-1] |= same
        at = np.flatnonzero(tied)
        rows = order[at]
        # Runs of equal starts keep their positions, because the start is the first key.
        order[at] = rows[np.lexsort((-duration_ns[rows], sorted_start_ns[at]))]
    return order


def assemble_trace(
    *,
    facts: TraceFacts,
    notes: Sequence[TraceNote],
    columns: MutableMapping[str, NDArray[Any]],
    names: Sequence[str],
    processes: Sequence[str],
    thread_labels: Sequence[str],
    stream_labels: Sequence[str],
    memory: MemoryEvents | None = None,
    sparse: Mapping[str, SparseColumn] | None = None,
) -> TraceColumns:
    """A trace of unsorted columns (the names of COLUMN_TYPES); rows of sparse facts mean rows of these columns.

    A column of ids may be left out, which makes it unknown everywhere. ``columns`` is emptied, so that a large trace is
    not held twice while it is sorted.
    """
    count = len(columns["start_ns"])
    for name in _UNKNOWN_WHEN_ABSENT:
        columns.setdefault(name, np.broadcast_to(np.int8(-1), (count,)))
    wrong = [name for name in COLUMN_TYPES if len(columns[name]) != count]
    if wrong or columns.keys() != COLUMN_TYPES.keys():
        raise InvariantError(f"columns of a trace must be {', '.join(COLUMN_TYPES)}, all of one length; wrong: {wrong}")
    order = order_events(columns["start_ns"], columns["duration_ns"])
    in_order = bool(np.array_equal(order, np.arange(count)))
    dense: dict[str, Any] = {}
    for name, kind in COLUMN_TYPES.items():
        column = columns.pop(name)
        dense[name] = _seal((column if in_order else column[order]).astype(kind, copy=False))
        del column
    place: Ints = np.empty(0, dtype=np.int64)
    if sparse and not in_order:
        place = np.empty(count, dtype=np.int32 if count < 2**31 else np.int64)
        place[order] = np.arange(count, dtype=place.dtype)
    del order
    return TraceColumns(
        facts=facts,
        notes=tuple(notes),
        names=names,
        processes=processes,
        thread_labels=thread_labels,
        stream_labels=stream_labels,
        memory=memory,
        sparse={
            name: _move_rows(column, None if in_order else place)
            for name, column in (sparse or {}).items()
            if len(column.rows)
        },
        **dense,
    )


def _move_rows(column: SparseColumn, place: Ints | None) -> SparseColumn:
    rows = column.rows if place is None else place[column.rows]
    order = np.argsort(rows, kind="stable")
    return SparseColumn(rows=_seal(rows[order]), values=_seal(column.values[order]), table=column.table)


def _seal(array: NDArray[Any]) -> Any:
    """The array without write permission. A view is sealed, not its owner's array."""
    sealed = array.view()
    sealed.flags.writeable = False
    return sealed


_NOTHING = SparseColumn(rows=np.empty(0, dtype=np.int64), values=np.empty(0, dtype=np.int64))


# Columns in the making


class Interner(dict[Any, int]):
    """Value -> number in the order of first use. A look-up creates the number, so that map() can do it in C.

    Beyond ``max_bytes`` of text, nothing new is kept: such values get -1 and are counted in ``left_out_count``.
    """

    __slots__ = ("_kept_bytes", "_max_bytes", "left_out_count")

    def __init__(self, max_bytes: int | None = None) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._kept_bytes = 0
        self.left_out_count = 0

    def __missing__(self, value: Any) -> int:
        if self._max_bytes is not None:
            self._kept_bytes += len(value)
            if self._kept_bytes > self._max_bytes:
                self._kept_bytes -= len(value)
                self.left_out_count += 1
                return -1
        number = self[value] = len(self)
        return number

    def numbers_of(self, values: Sequence[Any]) -> Int32s:
        """One number per value."""
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32, count=len(values))


def merge_equal(values: Iterable[Hashable]) -> tuple[Int32s, list[Any]]:
    """(new number of each value, the distinct values): for values that became equal when they were made readable."""
    merged = Interner()
    numbers = np.fromiter((merged[value] for value in values), dtype=np.int32)
    return numbers, list(merged)


class GrowingArray:
    """An array that grows at its end. Growing moves pages of a large array and does not copy them (realloc)."""

    __slots__ = ("_length", "_values")

    def __init__(self, dtype: Any) -> None:
        self._values: NDArray[Any] = np.empty(4096, dtype=dtype)
        self._length = 0

    def append(self, piece: NDArray[Any]) -> None:
        end = self._length + len(piece)
        if end > len(self._values):
            # Nobody else holds the buffer: it leaves this object only in ``finish``.
            self._values.resize(max(end, len(self._values) * 3 // 2), refcheck=False)
        self._values[self._length : end] = piece
        self._length = end

    def finish(self) -> NDArray[Any]:
        """The complete array; nothing can be appended after it."""
        self._values.resize(self._length, refcheck=False)
        return self._values


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """``read`` gives one trace per process in the file, and raises TraceError or RecordingError in one line."""

    id: str
    suffixes: Sequence[str]
    """Lower-case endings of file names to search a folder for, '.json' and the like."""
    sniff: Callable[[bytes], bool]
    """True if the first kilobytes of a file, unpacked if it is gzip, look like this format."""
    read: Callable[[Path, Progress | None], Sequence[TraceColumns]]
