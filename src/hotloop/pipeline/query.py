"""Traces and an SQL query -> the answer's columns and rows, from a database that the query may only read.

The columns of one trace after the other are copied into a DuckDB file in a temporary folder, texts as numbers; views
show them with their texts. The file is then opened again for reading alone, without access to other files, to Python's
variables or to settings. So the memory that is needed is that of one trace, however many ranks there are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hotloop.analyze.timeline.anatomy import find_host_phases, split_steps
from hotloop.analyze.timeline.classes import CLASS_NAMES
from hotloop.analyze.timeline.partition import DeviceCover, cover_devices
from hotloop.analyze.timeline.reduce import Groundwork, describe_steps, lay_groundwork
from hotloop.analyze.timeline.steps import DeviceSteps, assign_device_work
from hotloop.core.errors import TraceError, UsageError
from hotloop.core.phases import PHASES
from hotloop.core.trace import Category, Trace
from hotloop.trace.inputs import find_traces, read_trace_file
from hotloop.trace.source import Progress

if TYPE_CHECKING:
    import duckdb

Column = NDArray[Any]

TABLES = ("events", "files", "kernels", "steps")

MEMORY_LIMIT = "2GiB"
"""What DuckDB may hold before it goes on in its temporary folder."""

FETCH_ROWS = 10_000
TEXTS_BATCH = 50_000

ON_THE_DEVICE = (Category.SYNC, Category.DEVICE_ANNOTATION)
"""Drawn on the device, launched by nothing: which step they belong to is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a query gave. Rows are fetched while they are read."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def query_traces(
    paths: Sequence[str | Path],
    sql: str,
    *,
    definitions: str = "default",
    progress: Progress | None = None,
    cache_folder: Path | None = None,
) -> Iterator[Answer]:
    """The answer to one SELECT over all traces that ``paths`` mean. The database is gone after the ``with`` block.

    Raises UsageError for SQL that makes no sense or that does more than read, and TraceError for unreadable traces.
    """
    duckdb = _import_duckdb()
    _check_query(sql)
    with tempfile.TemporaryDirectory(prefix="hotloop-sql-") as folder:
        place = str(Path(folder) / "traces.duckdb")
        connection = duckdb.connect(place, config={"memory_limit": MEMORY_LIMIT})
        try:
            _store_traces(connection, paths, definitions, progress, cache_folder)
        finally:
            connection.close()
        connection = duckdb.connect(
            place,
            read_only=True,
            config={
                "memory_limit": MEMORY_LIMIT,
                "enable_external_access": "false",
                "python_enable_replacements": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "lock_configuration": "true",
            },
        )
        try:
            try:
                cursor = connection.execute(sql)
            except duckdb.Error as error:
                raise _tell_error(error) from None
            yield Answer(columns=tuple(str(c[0]) for c in cursor.description or ()), rows=_fetch_rows(cursor))
        finally:
            connection.close()


def _import_duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise UsageError("--sql needs duckdb, which is not installed: pip install 'hotloop[sql]'") from None
    return duckdb


def _check_query(sql: str) -> None:
    """Before a trace is read: exactly one statement, and one that only reads."""
    duckdb = _import_duckdb()
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise _tell_error(error) from None
    kinds = [statement.type for statement in statements]
    if len(kinds) != 1 or kinds[0] not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        raise UsageError(
            f"--sql takes one SELECT, and this is {_name_kinds(kinds)}; the traces can only be read. Tables: "
            + ", ".join(TABLES)
        )


def _name_kinds(kinds: Sequence[Any]) -> str:
    if not kinds:
        return "nothing"
    return str(kinds[0]).rsplit(".", 1)[-1] if len(kinds) == 1 else f"{len(kinds)} statements"


def _tell_error(error: Exception) -> UsageError:
    """DuckDB's words without its drawing of the place, on one line."""
    words = str(error).split("\n\nLINE ", 1)[0].split("\nLINE ", 1)[0]
    return UsageError(f"--sql: {' '.join(words.split())[:400]} (tables: {', '.join(TABLES)})")


def _fetch_rows(cursor: Any) -> Iterator[tuple[Any, ...]]:
    duckdb = _import_duckdb()
    while True:
        try:
            rows = cursor.fetchmany(FETCH_ROWS)
        except duckdb.Error as error:
            raise _tell_error(error) from None
        if not rows:
            return
        yield from rows


# ---- from traces to tables


def _store_traces(
    connection: duckdb.DuckDBPyConnection,
    paths: Sequence[str | Path],
    definitions: str,
    progress: Progress | None,
    cache_folder: Path | None,
) -> None:
    connection.execute(_SCHEMA)
    store = _Store(connection)
    errors = []
    for file in find_traces(paths).files:
        try:
            traces = read_trace_file(file, progress=progress, cache_folder=cache_folder)
        except TraceError as error:
            errors.append(error)
            continue
        for trace in traces:
            store.add(trace, lay_groundwork(trace, definitions))
        del traces
    # An answer over some of the ranks would look like one over all of them, and there is no report to say it in.
    if errors:
        raise errors[0]
    connection.execute(_VIEWS)


class _Store:
    """Appends traces to the tables; numbers of events and of texts go on from one trace to the next."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._events_count = 0
        self._texts_count = 0

    def add(self, trace: Trace, ground: Groundwork) -> None:
        rank = trace.facts.rank
        links, steps = ground.links, ground.steps
        covers = cover_devices(trace, links, ground.classes)
        has_steps = steps.source != "whole trace"
        step = np.full(len(trace.start_ns), -1, dtype=np.int64)
        seen: DeviceSteps | None = None
        if has_steps:
            numbers = np.array([*steps.index, -1], dtype=np.int64)
            found = steps.find_step(trace.start_ns)
            found[np.isin(trace.category, [int(c) for c in ON_THE_DEVICE])] = -1
            step = numbers[found]
            step[links.device_rows] = -1
            for cover in covers:
                assigned = assign_device_work(trace, links, cover.work, steps)
                step[links.device_rows[cover.work]] = numbers[assigned.of_work]
                seen = assigned if seen is None else seen
        first = self._events_count
        names = self._add_texts(trace.names)
        rows, shapes, table = trace.texts("shapes")
        shape = _scatter(len(step), rows, shapes + self._add_texts(table))
        self._append(
            "stored.events",
            rank,
            id=np.arange(first, first + len(step), dtype=np.int64),
            name=trace.name.astype(np.int64) + names,
            category=trace.category,
            start_ns=trace.start_ns,
            duration_ns=trace.duration_ns,
            step=step,
            process=_offset(trace.process, self._add_texts(trace.processes)),
            thread=_offset(trace.thread, self._add_texts(trace.thread_labels)),
            device=trace.device,
            stream=_offset(trace.stream, self._add_texts(trace.stream_labels)),
            correlation=trace.correlation,
            external_id=trace.external_id,
            shapes=shape,
        )
        self._add_work(trace, ground, first)
        if has_steps:
            self._add_steps(trace, ground, covers[0] if covers else None, seen)
        facts = trace.facts
        self._connection.execute(
            "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                rank,
                _encodable(facts.source),
                facts.format,
                None if facts.host is None else _encodable(facts.host),
                facts.world_size,
                next((_encodable(d.name) for d in facts.devices if d.name), None),
                steps.source if has_steps else None,
                len(step),
                facts.epoch_ns,
                facts.unix_base_ns,
            ],
        )
        self._events_count += len(step)

    def _add_work(self, trace: Trace, ground: Groundwork, first: int) -> None:
        links, rows = ground.links, ground.links.device_rows
        count = len(trace.start_ns)
        operator = np.full(len(rows), -1, dtype=np.int64)
        known = links.op_place >= 0
        operator[known] = links.ranges.rows[links.op_place[known]]
        columns: dict[str, Column] = {
            "id": rows + first,
            "kind": ground.classes.kind,
            "launch_id": _offset(links.launch_row, first),
            "operator_id": _offset(operator, first),
        }
        holders, values = trace.integers("bytes")
        columns["bytes"] = _scatter(count, holders, values)[rows]
        for fact in ("grid", "block"):
            holders, indices, table = trace.texts(fact)
            columns[fact] = _scatter(count, holders, indices + self._add_texts(table))[rows]
        holders, ratios = trace.numbers("occupancy_ratio")
        occupancy = np.full(count, np.nan)
        occupancy[holders] = ratios
        columns["occupancy_ratio"] = occupancy[rows]
        self._append("stored.work", trace.facts.rank, **columns)

    def _add_steps(self, trace: Trace, ground: Groundwork, cover: DeviceCover | None, seen: DeviceSteps | None) -> None:
        phases = split_steps(find_host_phases(trace, ground.links, ground.steps), ground.steps)
        rows = []
        for window in describe_steps(ground.steps, phases, cover, seen):
            part = window.partition
            device: tuple[int | None, ...] = (None,) * 5
            if part is not None:
                device = (part.window_ns, part.compute_ns, part.exposed_comm_ns, part.exposed_mem_ns, part.idle_ns)
            at = (window.host_start_ns, window.host_end_ns, window.host_ns, window.device_start_ns)
            rows.append((trace.facts.rank, window.index, window.is_complete, *at, *device, *window.phases_ns))
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._connection.executemany(f"INSERT INTO steps VALUES ({marks})", rows)

    def _add_texts(self, texts: Sequence[str]) -> int:
        """The number of the first of them."""
        first = self._texts_count
        for at in range(0, len(texts), TEXTS_BATCH):
            batch = [_encodable(text) for text in texts[at : at + TEXTS_BATCH]]
            self._connection.execute(
                "INSERT INTO stored.texts SELECT unnest($1), unnest($2)",
                [list(range(first + at, first + at + len(batch))), batch],
            )
        self._texts_count += len(texts)
        return first

    def _append(self, table: str, rank: int | None, **columns: Column) -> None:
        if len(columns["id"]) == 0:
            return
        dense = {name: np.ascontiguousarray(column) for name, column in columns.items()}
        self._connection.register("batch", dense)
        listed = ", ".join(
            "CASE WHEN isnan(occupancy_ratio) THEN NULL ELSE occupancy_ratio END"
            if name == "occupancy_ratio"
            else name
            if name in _NEVER_UNKNOWN
            else f"nullif({name}, -1)"
            for name in dense
        )
        self._connection.execute(f"INSERT INTO {table} SELECT $1, {listed} FROM batch", [rank])
        self._connection.unregister("batch")


_NEVER_UNKNOWN = frozenset({"id", "name", "category", "kind", "start_ns", "duration_ns"})


def _scatter(count: int, rows: Column, values: Column) -> Column:
    """A dense column of a sparse fact; -1 where it is unknown."""
    column = np.full(count, -1, dtype=np.int64)
    column[rows] = values
    return column


def _offset(numbers: Column, first: int) -> Column:
    """Numbers of one trace as numbers of all; -1 stays."""
    return np.where(numbers >= 0, numbers.astype(np.int64) + first, -1)


def _encodable(text: str) -> str:
    """The text without lone surrogates, which no database takes."""
    return text.encode("utf-8", "replace").decode()


_PHASE_COLUMNS = ", ".join(f"{phase}_ns BIGINT" for phase in PHASES)

_SCHEMA = f"""
CREATE SCHEMA stored;
CREATE TABLE stored.texts (id BIGINT, text VARCHAR);
CREATE TABLE stored.events (
  rank INTEGER, id BIGINT, name BIGINT, category TINYINT, start_ns BIGINT, duration_ns BIGINT, step BIGINT,
  process BIGINT, thread BIGINT, device INTEGER, stream BIGINT, correlation BIGINT, external_id BIGINT, shapes BIGINT);
CREATE TABLE stored.work (
  rank INTEGER, id BIGINT, kind TINYINT, launch_id BIGINT, operator_id BIGINT, bytes BIGINT, grid BIGINT, block BIGINT,
  occupancy_ratio DOUBLE);
CREATE TABLE files (
  rank INTEGER, file VARCHAR, format VARCHAR, host VARCHAR, world_size INTEGER, device_name VARCHAR, steps_by VARCHAR,
  events_count BIGINT, epoch_ns BIGINT, unix_base_ns BIGINT);
CREATE TABLE steps (
  rank INTEGER, step BIGINT, is_complete BOOLEAN, start_ns BIGINT, end_ns BIGINT, host_ns BIGINT,
  device_start_ns BIGINT, device_ns BIGINT, compute_ns BIGINT, exposed_comm_ns BIGINT, exposed_mem_ns BIGINT,
  idle_ns BIGINT, {_PHASE_COLUMNS});
"""

_CATEGORY = "CASE e.category " + " ".join(f"WHEN {int(c)} THEN '{c.name.lower()}'" for c in Category) + " END"
_KIND = "CASE w.kind " + " ".join(f"WHEN {at} THEN '{name}'" for at, name in enumerate(CLASS_NAMES)) + " END"

_VIEWS = f"""
CREATE VIEW events AS
SELECT e.id, e.rank, n.text AS name, {_CATEGORY} AS category, e.start_ns, e.duration_ns, e.step,
  p.text AS process, t.text AS thread, e.device, s.text AS stream, e.correlation, e.external_id, h.text AS shapes
FROM stored.events e LEFT JOIN stored.texts n ON n.id = e.name LEFT JOIN stored.texts p ON p.id = e.process
LEFT JOIN stored.texts t ON t.id = e.thread LEFT JOIN stored.texts s ON s.id = e.stream
LEFT JOIN stored.texts h ON h.id = e.shapes;
CREATE VIEW kernels AS
SELECT e.id, e.rank, n.text AS name, {_CATEGORY} AS category, {_KIND} AS kind, e.start_ns, e.duration_ns, e.step,
  e.device, s.text AS stream, w.launch_id, ln.text AS launch, l.start_ns AS launch_start_ns,
  e.start_ns - l.start_ns AS launch_delay_ns, w.operator_id, opn.text AS operator, w.bytes, g.text AS grid,
  b.text AS block, w.occupancy_ratio
FROM stored.work w JOIN stored.events e ON e.id = w.id LEFT JOIN stored.texts n ON n.id = e.name
LEFT JOIN stored.texts s ON s.id = e.stream LEFT JOIN stored.events l ON l.id = w.launch_id
LEFT JOIN stored.texts ln ON ln.id = l.name LEFT JOIN stored.events op ON op.id = w.operator_id
LEFT JOIN stored.texts opn ON opn.id = op.name LEFT JOIN stored.texts g ON g.id = w.grid
LEFT JOIN stored.texts b ON b.id = w.block;
"""
