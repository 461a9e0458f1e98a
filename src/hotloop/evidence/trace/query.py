"""Traces and an SQL query -> the result's columns and rows, from a database that the query may only read.

The columns of one trace after the other are copied into a DuckDB file in a temporary folder, texts as numbers; views
show them with their texts. The file is then opened again read-only, without access to other files, to Python's
variables or to settings. The memory needed is therefore that of one trace, however many ranks there are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import TraceError, UsageError
from hotloop.core.phases import PHASES
from hotloop.core.trace import Category, Trace
from hotloop.core.trace_results import EventTables

from .byte_source import Progress
from .inputs import TraceFile, find_traces, read_trace_file

if TYPE_CHECKING:
    import duckdb

Column = NDArray[Any]

TABLES = ("events", "files", "kernels", "steps")

MEMORY_LIMIT = "2GiB"
"""The memory that DuckDB may use before it continues in its temporary folder."""

FETCH_ROWS = 10_000
TEXTS_BATCH = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a query. Rows are fetched while they are read."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def query_traces(
    paths: Sequence[str | Path],
    sql: str,
    tabulate: Callable[[Trace], EventTables],
    kinds: Sequence[str],
    *,
    progress: Progress | None = None,
) -> Iterator[Answer]:
    """The result of one SELECT over all traces that ``paths`` mean. The database is gone after the ``with`` block.

    ``kinds`` are the names of the kinds of device work, by the numbers in EventTables. Raises UsageError for invalid
    SQL or SQL that does more than read, and TraceError for unreadable traces.
    """
    duckdb = _import_duckdb()
    _check_query(sql)
    with tempfile.TemporaryDirectory(prefix="hotloop-sql-") as folder:
        place = str(Path(folder) / "traces.duckdb")
        connection = duckdb.connect(place, config={"memory_limit": MEMORY_LIMIT})
        try:
            _store_traces(connection, tabulate, find_traces(paths).files, progress)
            connection.execute(_VIEWS.format(kind=_name_numbers("w.kind", kinds)))
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
                raise _convert_error(error) from None
            yield Answer(columns=tuple(str(c[0]) for c in cursor.description or ()), rows=_fetch_rows(cursor))
        finally:
            connection.close()


def _import_duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise UsageError("--sql needs duckdb, which is not installed; run: pip install 'hotloop[sql]'") from None
    return duckdb


def _check_query(sql: str) -> None:
    """Before a trace is read: exactly one statement, which only reads."""
    duckdb = _import_duckdb()
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise _convert_error(error) from None
    kinds = [statement.type for statement in statements]
    if len(kinds) != 1 or kinds[0] not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        given = f"{len(kinds)} statements" if len(kinds) > 1 else str(*kinds).rsplit(".", 1)[-1] or "nothing"
        raise UsageError(f"--sql takes one SELECT statement, but this is {given}. Tables: {', '.join(TABLES)}")


def _convert_error(error: Exception) -> UsageError:
    """DuckDB's words without its drawing of the place, on one line."""
    words = str(error).split("\n\nLINE ", 1)[0].split("\nLINE ", 1)[0]
    return UsageError(f"--sql: {' '.join(words.split())[:400]} (tables: {', '.join(TABLES)})")


def _fetch_rows(cursor: Any) -> Iterator[tuple[Any, ...]]:
    duckdb = _import_duckdb()
    while True:
        try:
            rows = cursor.fetchmany(FETCH_ROWS)
        except duckdb.Error as error:
            raise _convert_error(error) from None
        if not rows:
            return
        yield from rows


# ---- from traces to tables


def _store_traces(
    connection: duckdb.DuckDBPyConnection,
    tabulate: Callable[[Trace], EventTables],
    files: Sequence[TraceFile],
    progress: Progress | None,
) -> None:
    connection.execute(_SCHEMA)
    store = _Store(connection)
    errors = []
    for file in files:
        try:
            traces = read_trace_file(file, progress=progress)
        except TraceError as error:
            errors.append(error)
            continue
        for trace in traces:
            store.add(trace, tabulate(trace))
        del traces
    # A result for some of the ranks would look like one for all of them, and there is no report to say so.
    if errors:
        raise errors[0]


class _Store:
    """Appends traces to the tables; numbers of events and of texts continue from one trace to the next."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._events_count = 0
        self._texts_count = 0

    def add(self, trace: Trace, tables: EventTables) -> None:
        rank = trace.facts.rank
        first = self._events_count
        names = self._add_texts(trace.names)
        rows, shapes, table = trace.texts("shapes")
        shape = _scatter(len(trace), rows, shapes + self._add_texts(table))
        self._append(
            "stored.events",
            rank,
            id=np.arange(first, first + len(trace), dtype=np.int64),
            name=trace.name.astype(np.int64) + names,
            category=trace.category,
            start_ns=trace.start_ns,
            duration_ns=trace.duration_ns,
            step=tables.step,
            process=_offset(trace.process, self._add_texts(trace.processes)),
            thread=_offset(trace.thread, self._add_texts(trace.thread_labels)),
            device=trace.device,
            stream=_offset(trace.stream, self._add_texts(trace.stream_labels)),
            correlation=trace.correlation,
            external_id=trace.external_id,
            shapes=shape,
        )
        self._add_work(trace, tables, first)
        if tables.steps:
            marks = ", ".join("?" * (1 + len(tables.steps[0])))
            rows_of_steps = [(rank, *row) for row in tables.steps]
            self._connection.executemany(f"INSERT INTO steps VALUES ({marks})", rows_of_steps)
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
                tables.step_source,
                len(trace),
                facts.epoch_ns,
                facts.unix_base_ns,
            ],
        )
        self._events_count += len(trace)

    def _add_work(self, trace: Trace, tables: EventTables, first: int) -> None:
        rows, count = tables.device_rows, len(trace)
        columns: dict[str, Column] = {
            "id": rows + first,
            "kind": tables.kind,
            "launch_id": _offset(tables.launch_row, first),
            "operator_id": _offset(tables.operator_row, first),
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
    """A dense column of a sparse fact; -1 if it is unknown."""
    column = np.full(count, -1, dtype=np.int64)
    column[rows] = values
    return column


def _offset(numbers: Column, first: int) -> Column:
    """Numbers of one trace as numbers of all; -1 stays."""
    return np.where(numbers >= 0, numbers.astype(np.int64) + first, -1)


def _encodable(text: str) -> str:
    """The text without lone surrogates, which no database accepts."""
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


def _name_numbers(column: str, names: Iterable[str]) -> str:
    """SQL for the name of a number, from 0 on."""
    return f"CASE {column} " + " ".join(f"WHEN {at} THEN '{name}'" for at, name in enumerate(names)) + " END"


_CATEGORY = "CASE e.category " + " ".join(f"WHEN {int(c)} THEN '{c.name.lower()}'" for c in Category) + " END"

_VIEWS = f"""
CREATE VIEW events AS
SELECT e.id, e.rank, n.text AS name, {_CATEGORY} AS category, e.start_ns, e.duration_ns, e.step,
  p.text AS process, t.text AS thread, e.device, s.text AS stream, e.correlation, e.external_id, h.text AS shapes
FROM stored.events e LEFT JOIN stored.texts n ON n.id = e.name LEFT JOIN stored.texts p ON p.id = e.process
LEFT JOIN stored.texts t ON t.id = e.thread LEFT JOIN stored.texts s ON s.id = e.stream
LEFT JOIN stored.texts h ON h.id = e.shapes;
CREATE VIEW kernels AS
SELECT e.id, e.rank, n.text AS name, {_CATEGORY} AS category, {{kind}} AS kind, e.start_ns, e.duration_ns, e.step,
  e.device, s.text AS stream, w.launch_id, ln.text AS launch, l.start_ns AS launch_start_ns,
  e.start_ns - l.start_ns AS launch_delay_ns, w.operator_id, opn.text AS operator, w.bytes, g.text AS grid,
  b.text AS block, w.occupancy_ratio
FROM stored.work w JOIN stored.events e ON e.id = w.id LEFT JOIN stored.texts n ON n.id = e.name
LEFT JOIN stored.texts s ON s.id = e.stream LEFT JOIN stored.events l ON l.id = w.launch_id
LEFT JOIN stored.texts ln ON ln.id = l.name LEFT JOIN stored.events op ON op.id = w.operator_id
LEFT JOIN stored.texts opn ON opn.id = op.name LEFT JOIN stored.texts g ON g.id = w.grid
LEFT JOIN stored.texts b ON b.id = w.block;
"""
