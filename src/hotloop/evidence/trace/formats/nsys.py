"""A database written by ``nsys export --type sqlite`` -> one Trace per process that used a GPU.

Table and column names are those of NVIDIA's "SQLite schema reference" (Nsight Systems User Guide). They came and went
with the versions, so the reader checks which ones the file has and says in a note what is missing. A database can
contain more than rows: views and virtual tables can make a SELECT run forever. Only plain, known tables are read.
"""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import RecordingError
from hotloop.core.trace import SPARSE_TEXTS, Category, DeviceFacts, TraceFacts, TraceNote
from hotloop.evidence.trace.columns import SparseColumn, TraceColumns, TraceFormat, assemble_trace

SQLITE_SUFFIXES = (".sqlite", ".sqlite3", ".db")
REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
SQLITE_MAGIC = b"SQLite format 3\x00"

Ints: TypeAlias = NDArray[np.int64]
Column: TypeAlias = NDArray[Any]
"""Integers of any width."""
Rows: TypeAlias = dict[str, Ints]

_MISSING = -(2**63 - 1)
"""Marks NULL, a value of another type, and a column that the file does not have."""
_CHUNK_ROWS = 1 << 16
_MAX_TEXT = 4096
_MAX_VALUE = 1 << 20
"""For a value about the machine: an entire environment can be one."""
_MAX_CELL_BYTES = 64 << 20
_MAX_NAMED_ROWS = 100_000
_INVALID = 0xFFFFFFFF
"""Means no stream, or no event."""

_ENV_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "FLUX_TASK_RANK")
_ENV_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")

_NVTX_PUSH_POP, _NVTX_START_END, _NVTXT_PUSH_POP, _NVTXT_START_END = 59, 60, 70, 71
_NVTX_RANGES = (_NVTX_PUSH_POP, _NVTX_START_END, _NVTXT_PUSH_POP, _NVTXT_START_END)
_NVTX_MARK = 34

_COPY_KINDS = {
    0: "Unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
    10: "PtoP", 11: "HtoD (Unified)", 12: "DtoH (Unified)", 13: "DtoD (Unified)",
}  # fmt: skip
_MEMORY_KINDS = {
    0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static",
}  # fmt: skip
_SYNC_KINDS = {
    (False, False): "Context Sync",
    (False, True): "Event Sync",
    (True, False): "Stream Sync",
    (True, True): "Stream Wait Event",
}
"""By (has a stream, has an event), in the words of Kineto's cuda_sync_kind.

The number in syncType is not used: exports up to 2024.5 count the kinds in an order other than that of their own enum
table, as the calls that they belong to show.
"""

_API_VERSION = re.compile(r"^(cu\w+)_v\d{4,5}$")
"""cudaLaunchKernel_v7000: the version of the entry point, which Kineto does not write."""


_HOST_API = ("start", "end", "globalTid", "nameId")
_DEVICE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_COLUMNS: dict[str, tuple[str, ...]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *_DEVICE, "demangledName", "mangledName", "shortName",
        "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*_DEVICE, "bytes", "copyKind", "srcKind", "dstKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*_DEVICE, "bytes", "memKind"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (*_DEVICE, "graphId", "graphExecId"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (*_DEVICE, "eventId", "eventSyncId"),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        "deviceId", "contextId", "streamId", "correlationId", "globalPid", "eventId", "eventSyncId",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (*_HOST_API, "correlationId"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": (*_HOST_API, "overheadType"),
    "PROFILER_OVERHEAD": _HOST_API,
}  # fmt: skip
"""Integer columns to read from each table of events."""

_NVTX_COLUMNS = ("start", "end", "eventType", "globalTid", "textId")

_TABLES = frozenset(_COLUMNS) | {
    "NVTX_EVENTS", "StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE", "EXPORT_META_DATA",
    "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV",
    "DIAGNOSTIC_EVENT",
}  # fmt: skip
_OPTIONAL = frozenset(
    {
        "graphId", "graphExecId", "mangledName", "shortName", "contextId", "eventSyncId", "overheadType",
    }
)  # fmt: skip
"""Columns whose absence is not noted: old versions lack them, and the notes should stay readable."""

# The columns without which a table is of no use.
_NEEDED: dict[str, tuple[str, ...]] = dict.fromkeys(_COLUMNS, ("start", "end"))
_NEEDED["CUPTI_ACTIVITY_KIND_CUDA_EVENT"] = ("correlationId",)


def is_sqlite(head: bytes) -> bool:
    """True when these first bytes of a file are those of a sqlite database."""
    return head.startswith(SQLITE_MAGIC)


# The database


class _Database:
    """A database, opened to read a few known tables and nothing else."""

    def __init__(self, path: Path) -> None:
        self.notes: list[TraceNote] = []
        # immutable: no lock, no journal, no -wal file is looked at or created next to the trace.
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._connection.execute("PRAGMA trusted_schema=OFF")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
        self.columns = self._read_schema()

    def close(self) -> None:
        self._connection.close()

    def _read_schema(self) -> dict[str, frozenset[str]]:
        """Columns by table, of the known tables that are plain: a view or a virtual table has no root page."""
        found: dict[str, frozenset[str]] = {}
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        for (name,) in self._connection.execute(query).fetchmany(_MAX_NAMED_ROWS):
            if name in _TABLES:
                # table_info leaves out generated columns, whose expressions could be anything.
                info = self._connection.execute(f'PRAGMA table_info("{name}")').fetchmany(2000)
                found[name] = frozenset(row[1] for row in info if isinstance(row[1], str))
        return found

    def integers(self, table: str, wanted: Sequence[str]) -> Rows:
        """Integer columns of a table, row by row; empty if the table is not there."""
        parts = [rows for rows, _ in self._chunks(table, wanted, None)]
        return {name: np.concatenate([part[name] for part in parts] or [_no_ints()]) for name in wanted}

    def with_text(
        self, table: str, wanted: Sequence[str], text: str, length: int = _MAX_TEXT
    ) -> Iterator[tuple[Rows, list[str | None]]]:
        """The same in chunks, with one column of text, of which this much is read."""
        yield from self._chunks(table, wanted, text, length)

    def _chunks(
        self, table: str, wanted: Sequence[str], text: str | None, length: int = _MAX_TEXT
    ) -> Iterator[tuple[Rows, list[str | None]]]:
        have = self.columns.get(table)
        if have is None:
            return
        selected = [name for name in wanted if name in have]
        terms = [f'CASE typeof("{name}") WHEN \'integer\' THEN "{name}" ELSE {_MISSING} END' for name in selected]
        if text is not None:
            terms.append(
                f'CASE typeof("{text}") WHEN \'text\' THEN substr("{text}", 1, {length}) END'
                if text in have
                else "NULL"
            )
        if not terms:
            return
        cursor = self._connection.execute(f'SELECT {", ".join(terms)} FROM "{table}"')
        while rows := cursor.fetchmany(_CHUNK_ROWS):
            values = list(zip(*rows, strict=True))
            texts: list[str | None] = list(values.pop()) if text is not None else []
            known = dict(zip(selected, (np.array(column, dtype=np.int64) for column in values), strict=True))
            missing = np.full(len(rows), _MISSING, dtype=np.int64)
            yield {name: known.get(name, missing) for name in wanted}, texts


def _no_ints() -> Ints:
    return np.empty(0, dtype=np.int64)


# Rows -> events


class _Names:
    """Text -> number. The texts of StringIds come first, so that most columns are mapped without touching text."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index: dict[str, int] = {}
        self._ids = _no_ints()
        self._index_of_id = _no_ints()

    def intern(self, text: str) -> int:
        found = self._index.get(text)
        if found is None:
            found = self._index[text] = len(self.texts)
            self.texts.append(text)
        return found

    def load(self, database: _Database) -> None:
        ids: list[Ints] = []
        indices: list[int] = []
        for rows, texts in database.with_text("StringIds", ("id",), "value"):
            ids.append(rows["id"])
            indices.extend(self.intern(_API_VERSION.sub(r"\1", text or "")) for text in texts)
        if ids:
            together = np.concatenate(ids)
            order = np.argsort(together, kind="stable")
            self._ids, self._index_of_id = together[order], np.array(indices, dtype=np.int64)[order]

    def of_ids(self, ids: Ints) -> Ints:
        """Name numbers of string ids, -1 if there is no such string."""
        if not len(self._ids):
            return np.full(len(ids), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._index_of_id[at], -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Events:
    """Events of one table. All arrays have one entry per event; -1 is unknown, as in a Trace."""

    category: Column
    start_ns: Ints
    end_ns: Ints
    name: Ints
    pid: Column
    tid: Column
    """-1: on a device."""
    device: Column
    context: Column
    stream: Column
    correlation: Column
    integers: Mapping[str, Ints] = field(default_factory=dict)
    numbers: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """NaN is unknown."""
    texts: Mapping[str, Ints] = field(default_factory=dict)
    """Numbers of texts."""


def _known(values: Ints) -> Ints:
    return np.where(values == _MISSING, -1, values)


def _pid(global_id: Ints) -> Column:
    """Bits 24..47 of a global id; machine and hypervisor are above them."""
    return np.where(global_id == _MISSING, -1, (global_id >> 24) & 0xFFFFFF).astype(np.int32)


def _tid(global_id: Ints) -> Column:
    return np.where(global_id == _MISSING, -1, global_id & 0xFFFFFF).astype(np.int32)


def _all(value: int, count: int) -> Column:
    """The same number for every event, which takes no memory."""
    return np.broadcast_to(np.int8(value), count)


def _first_known(*choices: Ints) -> Ints:
    result = choices[0]
    for choice in choices[1:]:
        result = np.where(result < 0, choice, result)
    return result


class _Reader:
    """One file on its way to traces. Steps: names, tables, processes, traces."""

    def __init__(self, database: _Database) -> None:
        self.database = database
        self.names = _Names()
        self.names.load(database)
        self.notes = database.notes
        self.events: list[_Events] = []
        self.table_rows: dict[str, int] = {}
        self.gpu = _read_gpus(database)

    def read_events(self) -> None:
        self._read_kernels()
        self._read_copies()
        self._read_sets()
        self._read_graphs()
        self._read_syncs()
        self._read_host("CUPTI_ACTIVITY_KIND_RUNTIME", Category.RUNTIME)
        for table in ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD"):
            self._read_host(table, Category.OVERHEAD)
        self._read_nvtx()

    def _rows(self, table: str) -> Rows:
        """The rows of a table that have what they need; the rest is counted in a note."""
        wanted = _COLUMNS[table]
        have = self.database.columns.get(table)
        if have is None:
            return _no_rows(wanted)
        if not set(_NEEDED[table]) <= have:
            self._note(
                "warning", "missing-columns", f"Table {table} was not read: it has no {' and '.join(_NEEDED[table])}."
            )
            return _no_rows(wanted)
        absent = [name for name in wanted if name not in have and name not in _OPTIONAL]
        rows = self.database.integers(table, wanted)
        self.table_rows[table] = len(rows[wanted[0]])
        if absent and self.table_rows[table]:
            self._note("info", "missing-columns", f"This version's table {table} has no {', '.join(absent)}.")
        return self._keep_timed(table, rows)

    def _keep_timed(self, table: str, rows: Rows) -> Rows:
        if "start" not in rows:
            return rows
        good = rows["start"] != _MISSING
        if "end" in rows:
            good &= rows["end"] >= rows["start"]
        lost = int(len(good) - good.sum())
        if lost:
            self._note(
                "warning", "no-times", f"{lost} rows of {table} without a usable start and end were left out.", lost
            )
        return {name: values[good] for name, values in rows.items()} if lost else rows

    def _note(self, level: str, code: str, message: str, count: int | None = None) -> None:
        self.notes.append(TraceNote(level=level, code=code, message=message, count=count))

    def _add_device(self, category: Category, rows: Rows, name: Ints, **facts: Any) -> None:
        """Work of a device; ``facts`` as in _Events."""
        stream = _known(rows["streamId"])
        self._add(
            category, rows, name,
            pid=_pid(rows["globalPid"]),
            device=_known(rows["deviceId"]),
            context=_known(rows["contextId"]),
            stream=np.where(stream == _INVALID, -1, stream),
            correlation=_correlation(rows),
            **facts,
        )  # fmt: skip

    def _add(self, category: Category | Column, rows: Rows, name: Ints, **known: Any) -> None:
        count = len(name)
        if not count:
            return
        unknown = dict.fromkeys(("tid", "device", "context", "stream", "correlation"), _all(-1, count))
        self.events.append(
            _Events(
                category=_all(int(category), count) if isinstance(category, Category) else category,
                start_ns=rows["start"],
                end_ns=rows["end"],
                name=name,
                **{**unknown, **known},
            )
        )

    def _read_kernels(self) -> None:
        rows = self._rows("CUPTI_ACTIVITY_KIND_KERNEL")
        count = len(rows["start"])
        name = _first_known(*(self.names.of_ids(rows[key]) for key in ("demangledName", "mangledName", "shortName")))
        name = np.where(name < 0, self.names.intern("(unnamed kernel)"), name)
        grid, block = (np.stack([rows[f"{what}{axis}"] for axis in "XYZ"], axis=1) for what in ("grid", "block"))
        per_sm = np.full(count, np.nan)
        launched = (grid > 0).all(axis=1) & (block > 0).all(axis=1)
        pids = _pid(rows["globalPid"])
        for pid in np.unique(pids).tolist():
            for device, facts in self.gpu.facts(pid).items():
                if facts.sm_count:
                    here = launched & (pids == pid) & (rows["deviceId"] == device)
                    per_sm[here] = grid[here].astype(np.float64).prod(axis=1) / facts.sm_count
        self._add_device(
            Category.KERNEL,
            rows,
            name,
            numbers={"blocks_per_sm": per_sm},
            texts={"grid": self._triples(grid), "block": self._triples(block)},
        )

    def _triples(self, values: Ints) -> Ints:
        """[x, y, z] as compact JSON; one text per distinct triple."""
        if not len(values):
            return _no_ints()
        distinct, inverse = _distinct_rows(values)
        numbers = [
            -1 if _MISSING in triple else self.names.intern(json.dumps(triple, separators=(",", ":")))
            for triple in distinct.tolist()
        ]
        return np.array(numbers, dtype=np.int64)[inverse]

    def _read_copies(self) -> None:
        rows = self._rows("CUPTI_ACTIVITY_KIND_MEMCPY")
        kinds = np.stack([rows[key] for key in ("copyKind", "srcKind", "dstKind")], axis=1)

        def describe(kind: int, source: int, target: int) -> str:
            text = f"Memcpy {_COPY_KINDS.get(kind, 'Unknown')}"
            ends = _MEMORY_KINDS.get(source), _MEMORY_KINDS.get(target)
            return f"{text} ({ends[0]} -> {ends[1]})" if None not in ends else text

        name = self._described(kinds, describe)
        self._add_device(Category.MEMCPY, rows, name, integers={"bytes": _known(rows["bytes"])})

    def _read_sets(self) -> None:
        rows = self._rows("CUPTI_ACTIVITY_KIND_MEMSET")

        def describe(kind: int) -> str:
            return f"Memset ({_MEMORY_KINDS[kind]})" if kind in _MEMORY_KINDS else "Memset"

        name = self._described(rows["memKind"][:, np.newaxis], describe)
        self._add_device(Category.MEMSET, rows, name, integers={"bytes": _known(rows["bytes"])})

    def _described(self, kinds: Ints, describe: Callable[..., str]) -> Ints:
        if not len(kinds):
            return _no_ints()
        distinct, inverse = _distinct_rows(kinds)
        numbers = [self.names.intern(describe(*row)) for row in distinct.tolist()]
        return np.array(numbers, dtype=np.int64)[inverse]

    def _read_graphs(self) -> None:
        """One row per launch of a whole CUDA graph: what ``--cuda-graph-trace=graph`` records instead of kernels."""
        rows = self._rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
        count = len(rows["start"])
        if not count:
            return
        name = self._described(
            np.where(rows["graphId"] == _MISSING, rows["graphExecId"], rows["graphId"])[:, np.newaxis],
            lambda graph: f"CUDA graph {graph}" if graph != _MISSING else "CUDA graph",
        )
        self._add_device(Category.KERNEL, rows, name)
        self._note(
            "warning",
            "whole-graphs",
            f"{count} launches of CUDA graphs were recorded as one block each, without their kernels: gaps inside "
            "count as busy, and communication inside is missing. Record with --cuda-graph-trace=node.",
            count,
        )

    def _read_syncs(self) -> None:
        rows = self._rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")
        records = self._rows("CUPTI_ACTIVITY_KIND_CUDA_EVENT")
        kinds = np.stack([_is_valid(rows["streamId"]), _is_valid(rows["eventId"])], axis=1).astype(np.int64)
        kind = self._described(kinds, lambda stream, event: _SYNC_KINDS[bool(stream), bool(event)])
        found = _match_records(rows, records)
        hit = found >= 0
        at = np.maximum(found, 0)
        waits = {"wait_on_stream": "streamId", "wait_on_record_correlation": "correlationId"}
        integers = {
            fact: np.where(hit, _known(records[column])[at], -1) if len(records["eventId"]) else np.full(len(hit), -1)
            for fact, column in waits.items()
        }
        self._add_device(Category.SYNC, rows, kind, integers=integers, texts={"sync_kind": kind})

    def _read_host(self, table: str, category: Category) -> None:
        rows = self._rows(table)
        count = len(rows["start"])
        if not count:
            return
        name = self.names.of_ids(rows["nameId"])
        name = np.where(name < 0, self.names.intern(f"({table.lower()})"), name)
        known = {"correlation": _correlation(rows)} if category is Category.RUNTIME else {}
        self._add_host(category, rows, name, **known)

    def _add_host(self, category: Category | Column, rows: Rows, name: Ints, **facts: Any) -> None:
        """Calls and ranges of a thread; ``facts`` as in _Events."""
        self._add(category, rows, name, pid=_pid(rows["globalTid"]), tid=_tid(rows["globalTid"]), **facts)

    def _read_nvtx(self) -> None:
        if not {"start", "end"} <= self.database.columns.get("NVTX_EVENTS", frozenset()):
            return
        open_count = marks = 0
        for rows, texts in self.database.with_text("NVTX_EVENTS", _NVTX_COLUMNS, "text"):
            kind = rows["eventType"]
            name = self.names.of_ids(rows["textId"])
            is_range = np.isin(kind, _NVTX_RANGES) & (rows["start"] != _MISSING)
            closed = is_range & (rows["end"] >= rows["start"])
            open_count += int((is_range & ~closed).sum())
            marks += int((kind == _NVTX_MARK).sum())
            self._add_ranges({key: values[closed] for key, values in rows.items()}, name[closed], closed, texts)
        if open_count:
            self._note(
                "info", "open-ranges", f"{open_count} NVTX ranges that were not closed were left out.", open_count
            )
        if marks:
            self._note("info", "nvtx-marks", f"{marks} NVTX marks, which have no duration, were left out.", marks)

    def _add_ranges(self, rows: Rows, name: Ints, closed: NDArray[np.bool_], texts: list[str | None]) -> None:
        count = len(name)
        if not count:
            return
        category = np.full(count, int(Category.ANNOTATION), dtype=np.int8)
        sequence = np.full(count, -1, dtype=np.int64)
        shapes = np.full(count, -1, dtype=np.int64)
        named = name.copy()
        for at, row in enumerate(np.flatnonzero(closed).tolist()):
            text = texts[row]
            if text is None:
                text = self.names.texts[name[at]] if name[at] >= 0 else "(unnamed range)"
            operator = _split_operator(text)
            if operator is None:
                named[at] = self.names.intern(text)
                continue
            category[at] = int(Category.CPU_OP)
            named[at] = self.names.intern(operator[0])
            sequence[at] = operator[1]
            if operator[2]:
                shapes[at] = self.names.intern(operator[2].replace(" ", ""))
        self._add_host(category, rows, named, integers={"sequence_number": sequence}, texts={"shapes": shapes})


def _split_operator(text: str) -> tuple[str, int, str] | None:
    """(name, sequence number or -1, sizes or '') of a range that torch.autograd.profiler.emit_nvtx wrote, else None.

    It writes ``name, seq = 1, op_id = 2, sizes = [[3, 4]], input_op_ids = [(5,0)]``, all but the name only if known.
    """
    rest, _, sizes = text.partition(", input_op_ids = ")[0].partition(", sizes = ")
    rest, has_op, op = rest.partition(", op_id = ")
    name, has_seq, seq = rest.partition(", seq = ")
    if not (has_op or has_seq or name.startswith("aten::")):
        return None
    if (has_op and not op.isdecimal()) or (has_seq and not (seq.isdecimal() and len(seq) < 19)):
        return None
    return name, int(seq) if has_seq else -1, sizes


def _no_rows(columns: Sequence[str]) -> Rows:
    return {name: _no_ints() for name in columns}


def _correlation(rows: Rows) -> Ints:
    """0 joins nothing: copies that the driver makes on its own have it."""
    values = rows["correlationId"]
    return np.where(values <= 0, -1, values)


def _is_valid(ids: Ints) -> NDArray[np.bool_]:
    """Whether a row has a stream, or an event."""
    return np.asarray((ids >= 0) & (ids != _INVALID))


def _match_records(syncs: Rows, records: Rows) -> Ints:
    """For each wait for an event, the row of its record, -1 if unknown.

    Newer files number each record of an event. Older ones have only the event, which may be recorded many times: then
    the last record before the wait is meant, and correlation numbers grow with the order of the calls in a process.
    """
    found = np.full(len(syncs["start"]), -1, dtype=np.int64)
    waits = _is_valid(syncs["eventId"])
    if not len(records["eventId"]) or not waits.any():
        return found
    pids, wait_pids = _pid(records["globalPid"]), _pid(syncs["globalPid"])
    numbered = waits & (syncs["eventSyncId"] > 0)
    by_number = {
        (pid, number): row
        for row, (pid, number) in enumerate(zip(pids.tolist(), records["eventSyncId"].tolist(), strict=True))
        if number > 0
    }
    for at in np.flatnonzero(numbered).tolist():
        found[at] = by_number.get((int(wait_pids[at]), int(syncs["eventSyncId"][at])), -1)
    rest = waits & (found < 0) & (syncs["correlationId"] > 0)
    order = np.lexsort((records["correlationId"], records["eventId"], pids))
    sorted_keys = list(
        zip(
            pids[order].tolist(),
            records["eventId"][order].tolist(),
            records["correlationId"][order].tolist(),
            strict=True,
        )
    )
    for at in np.flatnonzero(rest).tolist():
        key = (int(wait_pids[at]), int(syncs["eventId"][at]), int(syncs["correlationId"][at]))
        place = bisect_left(sorted_keys, key) - 1
        if place >= 0 and sorted_keys[place][:2] == key[:2]:
            found[at] = order[place]
    return found


# What the file says about itself


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpus:
    """Graphics cards of the machine, and the numbers by which processes call them."""

    cards: Mapping[int, DeviceFacts]
    ordinals: Mapping[int, Mapping[int, int]]
    """Card by the CUDA number of a device, by pid."""

    def facts(self, pid: int) -> dict[int, DeviceFacts]:
        """Facts by the device number of a process."""
        chosen = self.ordinals.get(pid) or {card: card for card in self.cards}
        return {
            ordinal: replace(self.cards[card], index=ordinal)
            for ordinal, card in sorted(chosen.items())
            if card in self.cards
        }


_GPU_COLUMNS = ("id", "cuDevice", "totalMemory", "smCount")


def _read_gpus(database: _Database) -> _Gpus:
    cards: dict[int, DeviceFacts] = {}
    by_id: dict[int, int] = {}
    for rows, names in database.with_text("TARGET_INFO_GPU", _GPU_COLUMNS, "name"):
        for at, name in enumerate(names):
            fact = {key: _or_none(int(values[at])) for key, values in rows.items()}
            card = fact["id"] if fact["id"] is not None else len(cards)
            by_id[fact["cuDevice"] if fact["cuDevice"] is not None else card] = card
            cards[card] = DeviceFacts(
                index=card,
                name=name or None,
                sm_count=fact["smCount"],
                total_bytes=fact["totalMemory"],
            )
    ordinals: dict[int, dict[int, int]] = {}
    rows = database.integers("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"))
    for card, ordinal, pid in zip(*(rows[key].tolist() for key in ("gpuId", "cudaId", "pid")), strict=True):
        if _MISSING not in (card, ordinal, pid):
            ordinals.setdefault(pid & 0xFFFFFF, {})[ordinal] = card
    if not ordinals and by_id != {card: card for card in cards}:
        return _Gpus(cards={number: cards[card] for number, card in by_id.items()}, ordinals={})
    return _Gpus(cards=cards, ordinals=ordinals)


def _or_none(value: int) -> int | None:
    return None if value == _MISSING or value < 0 else value


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    """The export as a whole."""

    host: str | None
    unix_base_ns: int | None
    rank: int | None
    world_size: int | None


def _read_about(database: _Database) -> _About:
    export = dict(_pairs(database, "META_DATA_EXPORT")) or dict(_pairs(database, "EXPORT_META_DATA"))
    capture = list(_pairs(database, "META_DATA_CAPTURE"))
    system = dict(_pairs(database, "TARGET_INFO_SYSTEM_ENV"))
    # The environment is only read for a rank: it can contain passwords.
    environment: dict[str, int] = {}
    for name, value in capture:
        if name.endswith(":ENVIRONMENT_VARIABLE"):
            _keep_number(environment, value)
    for assignment in system.get("DeviceEnvironment", "").split(";"):
        _keep_number(environment, assignment)
    session = database.integers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"]
    unix_base_ns = _or_none(int(session[0])) if len(session) else None
    if export.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        unix_base_ns = 0
    shift = export.get("EXPORT_PARAM_TIME_SHIFT", "0")
    if unix_base_ns is not None and re.fullmatch(r"-?\d{1,18}", shift):
        unix_base_ns -= int(shift)
    return _About(
        host=system.get("Hostname") or None,
        unix_base_ns=unix_base_ns,
        rank=next((environment[name] for name in _ENV_RANK if name in environment), None),
        world_size=next((environment[name] for name in _ENV_WORLD_SIZE if name in environment), None),
    )


def _pairs(database: _Database, table: str) -> Iterator[tuple[str, str]]:
    """(name, value) of a table of names and values, both text."""
    names = [text or "" for _, texts in database.with_text(table, (), "name") for text in texts]
    values = [text or "" for _, texts in database.with_text(table, (), "value", _MAX_VALUE) for text in texts]
    yield from zip(names, values, strict=False)


def _keep_number(environment: dict[str, int], assignment: str) -> None:
    name, _, value = assignment.partition("=")
    value = value.strip('"')
    if name in _ENV_RANK + _ENV_WORLD_SIZE and value.isascii() and value.isdigit() and len(value) < 8:
        environment.setdefault(name, int(value))


_LOST = re.compile(
    r"(?i)\b(?:not all (?:CUDA|NVTX)|no (?:CUDA|NVTX) events|dropped|lost|CUPTI.*(?:error|fail)|CUDA.*fail)"
)


def _note_diagnostics(database: _Database, notes: list[TraceNote]) -> None:
    """nsys's own complaints, as far as they are about lost events."""
    seen: set[str] = set()
    for rows, texts in database.with_text("DIAGNOSTIC_EVENT", ("severity",), "text"):
        for severity, text in zip(rows["severity"].tolist(), texts, strict=True):
            first = (text or "").strip().splitlines()[:1]
            if not first or severity not in (2, 3) or first[0] in seen or len(seen) >= 5:
                continue
            if _LOST.search(first[0]):
                seen.add(first[0])
                notes.append(
                    TraceNote(level="warning", code="nsys-diagnostic", message=f"nsys reports: {first[0][:300]}")
                )


# Events -> traces


def read_nsys(path: Path) -> tuple[TraceColumns, ...]:
    """One trace per process of the export that used a GPU, in the order of their first device.

    An export without any device work gives one trace of its busiest process. Raises RecordingError, in one line, for
    a report in NVIDIA's own format and for a database that nsys did not write.
    """
    if path.name.lower().endswith(REPORT_SUFFIXES):
        target = path.with_suffix(".sqlite")
        raise RecordingError(
            f"{path} is a report in Nsight Systems' own format, which only nsys reads. Export it with: "
            f"nsys export --type sqlite --output {shlex.quote(str(target))} {shlex.quote(str(path))}"
        )
    try:
        with path.open("rb") as file:
            header = file.read(100)
        if not is_sqlite(header):
            raise RecordingError(f"{path} is not an SQLite database, so it is not an nsys export.")
        page_bytes, pages_count = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
        if path.stat().st_size < max(100, page_bytes * pages_count):  # sqlite reads the missing part of a page as zeros
            raise RecordingError(f"{path} is truncated. Export it again.")
        database = _Database(path)
        try:
            return _read(database, path)
        finally:
            database.close()
    except (sqlite3.Error, OSError, OverflowError, UnicodeDecodeError) as error:  # the last from a message of sqlite
        raise RecordingError(f"{path} cannot be read as an nsys export: {error}. Export it again.") from error


def _read(database: _Database, path: Path) -> tuple[TraceColumns, ...]:
    if not database.columns.keys() & (_COLUMNS.keys() | {"NVTX_EVENTS"}):
        raise RecordingError(
            f"{path} is a database without nsys event tables; create one with nsys export --type sqlite."
        )
    about = _read_about(database)
    reader = _Reader(database)
    reader.read_events()
    _note_diagnostics(database, reader.notes)
    if not reader.events:
        raise RecordingError(f"{path} is an nsys export without events; record with --trace=cuda,nvtx.")
    pids, left_out = _choose_processes(reader)
    _note_gaps(reader, left_out)
    return tuple(_build_trace(reader, about, pid, path, alone=len(pids) == 1) for pid in pids)


_DEVICE_WORK = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


def _choose_processes(reader: _Reader) -> tuple[list[int], int]:
    """The processes that become traces, and the number of events of all others."""
    counts: dict[int, int] = {}
    first_device: dict[int, tuple[int, int]] = {}
    best: dict[int, int] = {}
    for events in reader.events:
        for pid in np.unique(events.pid).tolist():
            mine = events.pid == pid
            counts[pid] = counts.get(pid, 0) + int(mine.sum())
            kind = int(events.category[0])
            rank = 3 if kind in _DEVICE_WORK else 2 if kind == Category.RUNTIME else 1
            best[pid] = max(best.get(pid, 0), rank)
            if rank == 3:
                here = (int(events.device[mine].min()), int(events.start_ns[mine].min()))
                first_device[pid] = min(first_device.get(pid, here), here)
    if first_device:
        chosen = sorted(first_device, key=lambda pid: (first_device[pid], pid))
    else:
        top = max(best.values())
        chosen = [min((pid for pid in counts if best[pid] == top), key=lambda pid: (-counts[pid], pid))]
    if -1 in chosen:  # the file does not say whose device work it is: all of it becomes one trace
        return [-1], 0
    return chosen, sum(count for pid, count in counts.items() if pid not in chosen)


def _note_gaps(reader: _Reader, left_out: int) -> None:
    found = reader.table_rows
    device = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
    if not any(found.get(f"CUPTI_ACTIVITY_KIND_{name}") for name in device):
        reader._note("warning", "no-device-events", "The export contains no GPU work; record with --trace=cuda,nvtx.")
    if not found.get("CUPTI_ACTIVITY_KIND_RUNTIME"):
        reader._note("warning", "no-runtime-events", "The export has no CUDA calls, so launches cannot be judged.")
    if left_out:
        reader._note(
            "info", "other-processes", f"{left_out} events of processes without GPU work were left out.", left_out
        )


def _build_trace(reader: _Reader, about: _About, pid: int, path: Path, *, alone: bool) -> TraceColumns:
    parts = [(events, _rows_of(events, pid)) for events in reader.events]
    parts = [(events, rows) for events, rows in parts if len(rows)]

    def column(name: str) -> Column:
        return np.concatenate([getattr(events, name)[rows] for events, rows in parts])

    start_ns = column("start_ns")
    epoch_ns = int(start_ns.min())
    device, pids, tids, category = column("device"), column("pid"), column("tid"), column("category")
    if pid == -1:  # device work without a process belongs to the only process, if there is just one
        owners = np.unique(pids[pids >= 0])
        pids = np.where((pids < 0) & (len(owners) == 1), owners[0] if len(owners) else -1, pids)
    on_device = tids < 0
    everywhere = np.ones(len(pids), dtype=np.bool_)
    stream_keys = np.stack([device, column("context"), column("stream")], axis=1)
    stream, streams = _intern_rows(stream_keys, on_device & (stream_keys[:, 2] >= 0))
    # A stream is a track of its own: below zero, so that no host thread has its number.
    thread, threads = _intern_rows(np.stack([pids, np.where(on_device, -2 - stream, tids)], axis=1), everywhere)
    process, processes = _intern_rows(pids[:, np.newaxis], everywhere)
    stream_labels = tuple(str(number) for _, _, number in streams)
    name, names = _used(reader.names, column("name"))
    sparse = _sparse_columns(parts, reader.names)
    rank = about.rank if alone else None  # the environment is the first process's
    facts = TraceFacts(
        source=path.name,
        format="nsys",
        rank=rank,
        rank_source="unknown" if rank is None else "environment",
        world_size=about.world_size,
        host=about.host,
        time_unit_ns=1,
        epoch_ns=epoch_ns,
        unix_base_ns=about.unix_base_ns,
        devices=tuple(reader.gpu.facts(pid).values()),
        process_groups={},
        has_shapes="shapes" in sparse,
        has_stacks=False,
        has_sync=bool((category == Category.SYNC).any()),
    )
    return assemble_trace(
        facts=facts,
        notes=reader.notes,
        columns={
            "start_ns": start_ns - epoch_ns,
            "duration_ns": column("end_ns") - start_ns,
            "name": name,
            "category": category,
            "process": process,
            "thread": thread,
            "device": np.where(on_device, device, -1),
            "stream": stream,
            "correlation": column("correlation"),
        },
        names=names,
        processes=tuple(str(owner) for (owner,) in processes),
        thread_labels=tuple(str(tid) if tid >= 0 else _stream_track(-2 - tid, stream_labels) for _, tid in threads),
        stream_labels=stream_labels,
        memory=None,
        sparse=sparse,
    )


def _sparse_columns(parts: list[tuple[_Events, Column]], names: _Names) -> dict[str, SparseColumn]:
    """The facts that only some events have; rows count the events of all parts in their order."""
    rows_of: dict[str, list[Ints]] = {}
    values_of: dict[str, list[NDArray[Any]]] = {}
    begin = 0
    for events, rows in parts:
        for facts in (events.integers, events.numbers, events.texts):
            for name, values in facts.items():
                mine = values[rows]
                known = np.flatnonzero(~np.isnan(mine) if facts is events.numbers else mine != -1)
                if len(known):
                    rows_of.setdefault(name, []).append(known + begin)
                    values_of.setdefault(name, []).append(mine[known])
        begin += len(rows)
    columns: dict[str, SparseColumn] = {}
    for name, found in rows_of.items():
        at, together = np.concatenate(found), np.concatenate(values_of[name])
        if name in SPARSE_TEXTS:
            numbers, table = _used(names, together.astype(np.int64))
            columns[name] = SparseColumn(rows=at, values=numbers, table=table)
        else:
            columns[name] = SparseColumn(rows=at, values=together)
    return columns


def _distinct_rows(keys: Column) -> tuple[Column, Ints]:
    """The distinct rows in order, and which of them each row is; one sort per column, much faster than sorting rows."""
    group = np.zeros(len(keys), dtype=np.int64)
    for column in keys.T:
        values, place = np.unique(column, return_inverse=True)
        _, first, group = np.unique(group * len(values) + place.reshape(-1), return_index=True, return_inverse=True)
        group = group.reshape(-1)
    return keys[first], group


def _rows_of(events: _Events, pid: int) -> Column:
    return np.arange(len(events.pid)) if pid == -1 else np.flatnonzero(events.pid == pid)


def _intern_rows(keys: Column, chosen: NDArray[np.bool_]) -> tuple[Ints, list[tuple[int, ...]]]:
    """Number of each chosen row among the distinct ones (-1 for others), and these in order."""
    numbers = np.full(len(keys), -1, dtype=np.int64)
    if not chosen.any():
        return numbers, []
    distinct, inverse = _distinct_rows(keys[chosen])
    numbers[chosen] = inverse
    return numbers, [tuple(row) for row in distinct.tolist()]


def _used(names: _Names, numbers: Ints) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """The same names numbered among those that occur."""
    distinct, inverse = np.unique(numbers, return_inverse=True)
    return inverse.reshape(-1).astype(np.int32), tuple(names.texts[number] for number in distinct.tolist())


def _stream_track(stream: int, labels: Sequence[str]) -> str:
    return f"stream {labels[stream]}" if stream >= 0 else "gpu"


NSYS = TraceFormat(
    id="nsys",
    suffixes=(*SQLITE_SUFFIXES, *REPORT_SUFFIXES),
    sniff=is_sqlite,
    read=lambda path, progress: read_nsys(path),
)
