"""stragglers: what uneven work costs a pipeline training, by kind of operation, stage, rank and worker."""

from __future__ import annotations

from hotloop.core.stragglers import (
    STRAGGLERS_SCHEMA,
    Slowdown,
    StragglerReport,
    stragglers_from_json,
    stragglers_to_json,
)
from hotloop.report.document import Bar, Bars, Detail, Document, LinePlot, Paragraph, PlotLine, Section, Table, write
from hotloop.report.renderer import Surface
from hotloop.report.text import clean, format_count, format_duration, format_percent
from hotloop.report.view import View

MAX_ROWS = 12
MIN_RATIO = 1.001
"""Kinds of operations that cost less than this are one line."""


def describe_stragglers(report: StragglerReport, surface: Surface) -> Document:
    what = (
        f"{format_count(report.step_count)} steps of {format_count(report.worker_count)} workers, "
        f"{format_count(report.operation_count)} operations"
    )
    if report.left_out_steps:
        what += f"; left out: {len(report.left_out_steps)} steps whose sends and receives do not match"
    gap = report.launch_slowdown_ratio - 1
    facts = (
        f"recorded {format_duration(report.recorded_ns)} a step, replayed {format_duration(report.replayed_ns)} "
        f"(without the gaps before operations: {format_percent(gap)}), "
        f"{format_duration(report.even_ns)} without stragglers: {report.slowdown_ratio:.3f}x"
    )
    parts = [
        f"{name} {_share(ratio)}"
        for name, ratio in (
            (
                f"the slowest {len(report.slowest_workers)} of {report.worker_count} workers",
                report.slowest_workers_ratio,
            ),
            ("the last stage", report.last_stage_ratio),
        )
        if ratio is not None
    ]
    lead = [what, facts] + (
        [f"Part of the slowdown that goes when they are as fast as the others: {'; '.join(parts)}"] if parts else []
    )
    return Document(
        kind="stragglers",
        subject=report,
        data=lambda: stragglers_to_json(report),
        version=report.tool_version,
        title=clean(report.verdict),
        tone=report.severity.value,
        lead=tuple(Paragraph(text=write(clean(text)), indent=0, hang=2) for text in lead),
        sections=(
            Section(
                title="what these operations alone add to the step", blocks=(_bars(report.by_operation, "", MIN_RATIO),)
            ),
            Section(title="pipeline stages alone", blocks=(_bars(report.by_stage, "stage "),)),
            Section(title="data-parallel ranks alone", blocks=(_bars(report.by_dp_rank, "rank "),)),
            Section(title="slowest workers", blocks=(_list_workers(report),)),
            Section(title="steps", blocks=(_plot_steps(report),), detail=Detail.FULL),
        ),
    )


def _share(ratio: float) -> str:
    return f"{round(ratio * 100)}%"


def _bars(slowdowns: tuple[Slowdown, ...], prefix: str, least_ratio: float = 0.0) -> Bars:
    """What each adds to the step; one that is shorter than without stragglers has no bar."""
    shown = [one for one in slowdowns if one.slowdown_ratio >= least_ratio][:MAX_ROWS] or list(slowdowns[:1])
    rows = [
        Bar(label=clean(prefix + one.name), value=max(0.0, one.slowdown_ratio - 1), shown=_longer(one)) for one in shown
    ]
    rest = slowdowns[len(shown) :]
    if rest:
        rows.append(Bar(label=f"{len(rest)} more", value=0.0, shown=f"{_longer(rest[0])} or less"))
    return Bars(title="", rows=tuple(rows))


def _longer(one: Slowdown) -> str:
    return f"{(one.slowdown_ratio - 1) * 100:+.1f}%"


def _list_workers(report: StragglerReport) -> Table:
    rows = [(str(one.rank), str(one.dp_rank), str(one.stage), f"{one.slowdown_ratio:.3f}x") for one in report.by_worker]
    return Table(
        header=("rank", "data-parallel rank", "stage", "slowdown"), rows=tuple(rows[:MAX_ROWS]), left=frozenset()
    )


def _plot_steps(report: StragglerReport) -> LinePlot:
    return LinePlot(
        title="slowdown of each step",
        alt="slowdown of each replayed step, in order",
        x=[one.step for one in report.steps],
        lines=(PlotLine(name="slowdown", style="own", values=[one.slowdown_ratio for one in report.steps]),),
        x_name="step",
    )


STRAGGLERS = View(
    id="stragglers",
    type=StragglerReport,
    schema=STRAGGLERS_SCHEMA,
    describe=describe_stragglers,
    read=stragglers_from_json,
)
