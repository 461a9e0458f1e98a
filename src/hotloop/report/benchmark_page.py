"""BenchmarkResult -> one HTML page with its tables and plots; computes no number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotloop.core.benchmarks import BenchmarkResult, Row
from hotloop.core.findings import Value

from .benchmark import head_of, show_value
from .plots import Bar, Line, draw_bars, draw_lines
from .static_page import hash_source, read_asset
from .text import clean

Draw = Callable[[Sequence[Row]], list[str]]


def render_benchmark_html(result: BenchmarkResult) -> str:
    """A page without script; every text is escaped, by jinja2 or where the plots are drawn."""
    from jinja2 import DictLoader, Environment, StrictUndefined
    from markupsafe import Markup

    def show(value: Any) -> Any:
        return value if isinstance(value, Markup) or not isinstance(value, str) else clean(value)

    name = "benchmark.html.j2"
    environment = Environment(
        loader=DictLoader({name: read_asset("templates", name)}),
        autoescape=True,
        finalize=show,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css = read_asset("static", "report.css")
    told = [(head_of(key), show_value(key, value)) for key, value in (*result.machine.items(), *result.facts.items())]
    return environment.get_template(name).render(
        policy=Markup(f"default-src 'none'; style-src {hash_source(css)}; base-uri 'none'; form-action 'none'"),
        css=Markup(css),
        version=result.tool_version,
        benchmark=result.benchmark,
        subject=result.subject,
        facts=told,
        parts=[_describe_table(table) for table in result.tables if table],
        plots=[Markup(svg) for svg in draw_benchmark(result) if svg],
        notes=list(result.notes),
    )


def draw_benchmark(result: BenchmarkResult) -> list[str]:
    """The plots of this kind of benchmark, as SVG; one that lacks its columns is left out."""
    draw = _DRAW.get(result.benchmark, [])
    return [svg for table, one in zip(result.tables, draw, strict=False) for svg in one(table)]


def _describe_table(rows: Sequence[Row]) -> dict[str, Any]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return {
        "header": [head_of(name) for name in columns],
        "rows": [[show_value(name, row.get(name)) for name in columns] for row in rows],
    }


def _bars(title: str, column: str, label: Callable[[Row], str], style: Callable[[Row], str]) -> Draw:
    def draw(rows: Sequence[Row]) -> list[str]:
        bars = [
            Bar(
                label=label(row),
                value=_number(row.get(column)),
                shown=show_value(column, row.get(column)),
                style=style(row),
            )
            for row in rows
        ]
        return [_titled(title, draw_bars(title, bars))]

    return draw


def _titled(title: str, svg: str) -> str:
    return svg and f"<figcaption>{title}</figcaption>{svg}"


def _scaling(rows: Sequence[Row]) -> list[str]:
    ranks = [_number(row.get("ranks")) for row in rows]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < 2 or len(known) != len(rows):
        return []
    ideal = Line(name="ideal", style="base", values=[rank / known[0] for rank in known])
    measured = Line(name="measured", style="own", values=[_number(row.get("speedup")) for row in rows])
    lines = [ideal, measured]
    if any("speedup_unsynced" in row for row in rows):
        values = [_number(row.get("speedup_unsynced")) for row in rows]
        lines.append(Line(name="without gradient sync", style="other", values=values))
    title = "speed-up by number of ranks"
    plots = [_titled(title, draw_lines(title, known, lines, x_name="ranks", from_zero=True))]
    steps = []
    for row in rows:
        for column, style, what in (("step_min_ns", "own", ""), ("step_unsynced_ns", "other", ", no sync")):
            if column in row:
                label = f"{show_value('ranks', row.get('ranks'))} ranks{what}"
                shown = show_value(column, row.get(column))
                steps.append(Bar(label=label, value=_number(row.get(column)), shown=shown, style=style))
    return [*plots, _titled("time per step", draw_bars("time per step", steps))]


def _name_arm(row: Row) -> str:
    pinned = ", pinned" if row.get("pinned") else ""
    return f"{row.get('workers')} workers, prefetch {row.get('prefetch')}{pinned}"


def _own(row: Row) -> str:
    return "own"


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


_DRAW: Mapping[str, list[Draw]] = {
    "train": [
        _bars("median time of each part, alone", "median_ns", lambda row: str(row.get("part")), _own),
        _bars("memory", "size_bytes", lambda row: str(row.get("memory")), _own),
    ],
    "loader": [
        _bars(
            "batches a second (grey: as the loader is now)",
            "batches_per_s",
            _name_arm,
            lambda row: "base" if row.get("present") else "own",
        )
    ],
    "scaling": [_scaling],
    "gemm": [
        _bars("GFLOP/s", "gflops_per_s", lambda row: f"{row.get('product')} {row.get('dtype')}", _own),
        _bars("all products of a step", "per_step_ns", lambda row: str(row.get("dtype")), _own),
    ],
}
