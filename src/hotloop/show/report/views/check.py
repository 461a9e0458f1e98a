"""check: what was judged against a baseline and limits -> a verdict, a table of it, and what is not known."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.check import CHECK_SCHEMA, Check, CheckVerdict, Judged, format_change
from hotloop.show.report.document import Block, Cell, Document, Paragraph, Section, Surface, Table, View, write
from hotloop.show.report.judged import show_value, title_of
from hotloop.show.report.text import UNKNOWN, clean

TONES = {CheckVerdict.PASS: "good", CheckVerdict.REGRESSION: "bad", CheckVerdict.INCONCLUSIVE: "fair"}
ZERO_PHASE_RATIO = 0.0005
"""Phases below this share of the step on both sides are left out of the table when they passed."""


def describe_check(check: Check, surface: Surface) -> Document:
    sections = []
    compared = [one for one in check.judged if one.kind == "baseline"]
    if compared:
        worse = f"worse by ({check.confidence_ratio:.0%})"
        rows = tuple(_row(one) for one in compared if not _is_nothing(one, compared))
        note = Paragraph(text=write("phases as fractions of the baseline's step; rates as time per unit"), indent=0)
        sections.append(_section(("", "baseline", "this run", worse, "allowed", "verdict"), rows, note))
    budgets = [one for one in check.judged if one.kind == "budget"]
    if budgets:
        rows = tuple((clean(one.name), *_row(one)[1:4], "", _row(one)[5]) for one in budgets)
        sections.append(_section(("budget", "limit", "this run", "over by", "", "verdict"), rows))
    reasons = [
        _paragraph(f"{title_of(one)}: {one.reason}" + ("" if one.where is None else f" ({_place(one)})"))
        for one in check.judged
        if one.verdict is CheckVerdict.REGRESSION or (one.verdict is CheckVerdict.INCONCLUSIVE and one.decides)
    ]
    reasons += [_paragraph(f"not judged: {one.id}: {one.reason}") for one in check.skipped]
    if reasons:
        sections.append(Section(title="", blocks=tuple(reasons)))
    return Document(
        title=_headline(check),
        tone=TONES[check.verdict],
        lead=tuple(_paragraph(note) for note in (f"noise: {check.noise}", *(f"! {w}" for w in check.warnings))),
        sections=tuple(sections),
    )


def _section(header: tuple[str, ...], rows: Sequence[tuple[str | Cell, ...]], *notes: Block) -> Section:
    table = Table(header=header, rows=tuple(rows), left=frozenset({0, len(header) - 1}), shrinks=False)
    return Section(title="", blocks=(table, *notes))


def _paragraph(text: str) -> Paragraph:
    return Paragraph(text=write(clean(text)), indent=0, hang=2)


def _place(one: Judged) -> str:
    return "" if one.where is None else f"{clean(one.where.file)}:{one.where.line}"


def _headline(check: Check) -> str:
    worst = [one for one in check.judged if one.verdict is CheckVerdict.REGRESSION]
    text = f"{check.verdict.value}: {', '.join(check.runs)}"
    if check.baseline is not None:
        text += f" against {check.baseline}"
    if worst:
        text += f": {', '.join(title_of(one) for one in worst[:4])}"
    return clean(text)


def _is_nothing(one: Judged, all_judged: list[Judged]) -> bool:
    step = next((other for other in all_judged if other.id == "step_ns"), None)
    if not one.id.startswith("phase/") or one.verdict is CheckVerdict.REGRESSION or step is None or not step.reference:
        return False
    return max(one.value or 0.0, one.reference or 0.0) < ZERO_PHASE_RATIO * step.reference


def _row(one: Judged) -> tuple[str | Cell, ...]:
    change = UNKNOWN if one.change_ratio is None else format_change(one.change_ratio)
    if one.low_ratio is not None and one.high_ratio is not None and one.high_ratio > one.low_ratio:
        change += f" [{format_change(one.low_ratio)} to {format_change(one.high_ratio)}]"
    return (
        clean(title_of(one)),
        show_value(one.name, one.reference),
        show_value(one.name, one.value),
        change,
        "" if one.tolerance_ratio is None else f"{one.tolerance_ratio:+.0%}",
        Cell(text=one.verdict.value, tone=TONES[one.verdict]),
    )


CHECK = View(
    id="check",
    type=Check,
    schema=CHECK_SCHEMA,
    describe=describe_check,
    first=lambda check: {"verdict": check.verdict.value},
)
