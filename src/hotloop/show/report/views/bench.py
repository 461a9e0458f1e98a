"""bench: the tables of a benchmark -> the same with their plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hotloop.core.benchmarks import BENCH_SCHEMA, BenchmarkResult, Row
from hotloop.core.decode import read_number
from hotloop.show.report.document import (
    Bar,
    Bars,
    Block,
    Detail,
    Document,
    Paragraph,
    Section,
    Surface,
    Table,
    View,
    write,
)
from hotloop.show.report.text import clean, format_scalar

UNITS = ("_ns", "_bytes_per_s", "_bytes", "_ratio", "_per_s")

Draw = Callable[[Sequence[Row]], list[Block]]


def describe_benchmark(result: BenchmarkResult, surface: Surface) -> Document:
    """The measurements and their machine; a section for each table, with its plots before it."""
    facts = [
        f"{head_of(name)} {format_scalar(name, value)}"
        for name, value in (*result.machine.items(), *result.facts.items())
    ]
    draw = [*_DRAW.get(result.benchmark, []), *[_draw_nothing] * len(result.tables)]
    sections = [
        Section(title="", blocks=(*plots(table), _list_table(table)))
        for table, plots in zip(result.tables, draw, strict=False)
        if table
    ]
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


def _draw_nothing(rows: Sequence[Row]) -> list[Block]:
    return []


def _bars(title: str, column: str, label: Callable[[Row], str], style: Callable[[Row], str]) -> Draw:
    def draw(rows: Sequence[Row]) -> list[Block]:
        return [
            Bars(title=title, rows=tuple(_bar(row, column, label(row), style(row)) for row in rows), detail=Detail.FULL)
        ]

    return draw


def _bar(row: Row, column: str, label: str, style: str) -> Bar:
    return Bar(
        label=label, value=read_number(row.get(column)), shown=format_scalar(column, row.get(column)), style=style
    )


def _scaling(rows: Sequence[Row]) -> list[Block]:
    steps = [_bar(row, "step_min_ns", f"{format_scalar('ranks', row.get('ranks'))} ranks", "own") for row in rows]
    return [Bars(title="time per step", rows=tuple(steps), detail=Detail.FULL)]


def _name_arm(row: Row) -> str:
    pinned = ", pinned" if row.get("pinned") else ""
    return f"{row.get('workers')} workers, prefetch {row.get('prefetch')}{pinned}"


def _own(row: Row) -> str:
    return "own"


_DRAW: Mapping[str, list[Draw]] = {
    "train": [
        _bars("median time of each part, measured separately", "median_ns", lambda row: str(row.get("part")), _own),
        _bars("memory", "size_bytes", lambda row: str(row.get("memory")), _own),
    ],
    "loader": [
        _bars(
            "batches per second (gray: the current loader)",
            "batches_per_s",
            _name_arm,
            lambda row: "base" if row.get("present") else "own",
        )
    ],
    "scaling": [_scaling],
    "comm": [
        _bars(
            "bus bandwidth by message",
            "bus_bytes_per_s",
            lambda row: f"{row.get('collective')} {format_scalar('message_bytes', row.get('message_bytes'))}",
            _own,
        )
    ],
}

BENCH = View(id="bench", type=BenchmarkResult, schema=BENCH_SCHEMA, describe=describe_benchmark)
