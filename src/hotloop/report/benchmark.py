"""BenchmarkResult -> lines of text or JSON; computes no number."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

from hotloop.core.benchmarks import BenchmarkResult, Row, benchmark_to_json
from hotloop.core.errors import InvariantError
from hotloop.core.findings import Value

from .text import clean, format_bytes, format_duration, format_number, shorten

UNITS = ("_ns", "_bytes", "_ratio", "_per_s")


def render_benchmark_json(result: BenchmarkResult) -> str:
    """Indented JSON of schema hotloop.bench/1; a number that JSON has no form for is refused."""
    try:
        return json.dumps(benchmark_to_json(result), allow_nan=False, indent=1)
    except ValueError as error:
        raise InvariantError(f"the benchmark holds a number that is not finite: {error}") from error


def render_benchmark(result: BenchmarkResult, *, width: int = 100) -> str:
    """Title, machine, tables and notes, for a person."""
    lines = [clean(f"{result.benchmark}: {result.subject}")]
    told = [
        f"{head_of(name)} {show_value(name, value)}" for name, value in (*result.machine.items(), *result.facts.items())
    ]
    lines += _wrap(" · ".join(told), width)
    for table in result.tables:
        if table:
            lines += ["", *_table(table)]
    if result.notes:
        lines.append("")
    for note in result.notes:
        lines += _wrap(note, width)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[head_of(name) for name in columns]]
    cells += [[show_value(name, row.get(name)) for name in columns] for row in rows]
    words = [all(isinstance(row.get(name), str | bool | None) for row in rows) for name in columns]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    return [
        "  ".join(
            cell.ljust(wide) if left else cell.rjust(wide) for cell, wide, left in zip(line, widths, words, strict=True)
        )
        for line in cells
    ]


def head_of(name: str) -> str:
    """A column's name for a reader, without its unit."""
    for unit in UNITS:
        if name.endswith(unit):
            name = name.removesuffix(unit) + ("/s" if unit == "_per_s" else "")
    return clean(name.replace("_", " "))


def show_value(name: str, value: Value) -> str:
    """A value in the unit that its column's name ends in."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith("_ns"):
            return format_duration(value)
        if name.endswith("_bytes"):
            return format_bytes(value)
        if name.endswith("_ratio"):
            return f"{value:.1%}"
        return f"{value:,}" if isinstance(value, int) else format_number(value)
    return shorten(str(value), 60)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(clean(text), max(60, width), subsequent_indent="  ", break_long_words=False)
