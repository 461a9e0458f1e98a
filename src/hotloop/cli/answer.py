"""The result of an SQL query -> a table to read, CSV or JSON on standard output."""

from __future__ import annotations

import csv
import json
import sys

from hotloop.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TextIO

    from hotloop.evidence.trace.query import Answer

TABLE_ROWS = 50
"""Rows that a table shows without --sql-rows; CSV and JSON are for programs and hold every row."""
CELL_LENGTH = 80


def print_answer(answer: Answer, *, form: str, rows: int | None, stream: TextIO) -> None:
    """Write the result in a form of ANSWER_FORMS. ``rows`` bounds what is written; 0 is all, None the form's own."""
    limit = (TABLE_ROWS if form == "table" else 0) if rows is None else rows
    ANSWER_FORMS[form](answer, _take(answer.rows, limit), stream)
    if limit and next(answer.rows, None) is not None:
        line = "more rows: show more with --sql-rows N, all with --sql-rows 0\n"
        # Next to data for a program, the line must not be mistaken for part of it.
        (stream if form == "table" else sys.stderr).write(line)
    stream.flush()


def _take(rows: Iterator[tuple[Any, ...]], limit: int) -> Iterator[tuple[Any, ...]]:
    """The first ``limit`` rows, or all for 0; the rest stays in ``rows``."""
    from itertools import islice

    return islice(rows, limit) if limit else rows


def _print_table(answer: Answer, rows: Iterator[tuple[Any, ...]], stream: TextIO) -> None:
    held = list(rows)
    numeric = [
        any(row[at] is not None for row in held) and all(row[at] is None or _is_number(row[at]) for row in held)
        for at in range(len(answer.columns))
    ]
    cells = [[_show(name) for name in answer.columns], *([_show(value) for value in row] for row in held)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(answer.columns))]
    for at, line in enumerate(cells):
        placed = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        stream.write("  ".join(placed).rstrip() + "\n")
        if at == 0:
            stream.write("  ".join("-" * width for width in widths) + "\n")
    if not held:
        stream.write("no rows\n")


def _print_csv(answer: Answer, rows: Iterator[tuple[Any, ...]], stream: TextIO) -> None:
    from hotloop.show.report.text import blank_controls

    # A name out of a hostile file must not drive the terminal that the data is looked at in; JSON escapes it instead.
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(blank_controls(name) for name in answer.columns)
    for row in rows:
        writer.writerow(blank_controls(value) if isinstance(value, str) else value for value in row)


def _print_json(answer: Answer, rows: Iterator[tuple[Any, ...]], stream: TextIO) -> None:
    twice = next((name for name in answer.columns if answer.columns.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--sql: two columns are named {twice}, which JSON does not allow; rename one with AS")
    separator = "["
    for row in rows:
        values = [_plain(value) for value in row]
        stream.write(separator + "\n " + json.dumps(dict(zip(answer.columns, values, strict=True)), default=str))
        separator = ","
    stream.write("[]\n" if separator == "[" else "\n]\n")


ANSWER_FORMS = {"table": _print_table, "csv": _print_csv, "json": _print_json}


def _plain(value: Any) -> Any:
    """The value as JSON knows it: no Decimal, and null for what is not finite."""
    from decimal import Decimal
    from math import isfinite

    if isinstance(value, Decimal):
        value = float(value)
    return None if isinstance(value, float) and not isfinite(value) else value


def _is_number(value: Any) -> bool:
    from decimal import Decimal

    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _show(value: Any) -> str:
    from hotloop.show.report.text import shorten

    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".") if 1 <= abs(value) < 1e15 else f"{value:.4g}"
    return shorten(str(value), CELL_LENGTH)
