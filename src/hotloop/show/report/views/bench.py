"""bench: a benchmark's result -> its tables, its machine and its notes."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.benchmarks import BENCH_SCHEMA, BenchmarkResult, Row
from hotloop.show.report.document import Document, Paragraph, Section, Surface, Table, View, write
from hotloop.show.report.text import clean, format_scalar

UNITS = ("_ns", "_bytes_per_s", "_bytes", "_ratio", "_per_s")


def describe_benchmark(result: BenchmarkResult, surface: Surface) -> Document:
    """The measurements and their machine; a section for each table."""
    facts = [
        f"{head_of(name)} {format_scalar(name, value)}"
        for name, value in (*result.machine.items(), *result.facts.items())
    ]
    sections = [Section(title="", blocks=(_list_table(table),)) for table in result.tables if table]
    notes = tuple(Paragraph(text=write(clean(note)), indent=0, hang=2) for note in result.notes)
    return Document(
        title=clean(f"{result.benchmark}: {result.subject}"),
        lead=tuple(
            Paragraph(text=write(clean(text)), indent=0, hang=2)
            for text in (*result.verdict, *([" · ".join(facts)] if facts else []))
        ),
        sections=(*sections, *((Section(title="", blocks=notes),) if notes else ())),
    )


def head_of(name: str) -> str:
    """A column's name for a reader, without its unit."""
    for unit in UNITS:
        if name.endswith(unit):
            name = name.removesuffix(unit) + ("/s" if unit == "_per_s" else "")
    return clean(name.replace("_", " "))


def _list_table(rows: Sequence[Row]) -> Table:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    words = [all(isinstance(row.get(name), str | bool | None) for row in rows) for name in columns]
    return Table(
        header=tuple(head_of(name) for name in columns),
        rows=tuple(tuple(format_scalar(name, row.get(name)) for name in columns) for row in rows),
        left=frozenset(at for at, is_word in enumerate(words) if is_word),
        shrinks=False,
    )


BENCH = View(id="bench", type=BenchmarkResult, schema=BENCH_SCHEMA, describe=describe_benchmark)
