"""check-text: the Check as lines for a person: the verdict, a table of what was judged, and what is not known."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from hotloop.core.check import Check, Judged, Verdict, say_change
from hotloop.report.check_renderer import CheckSurface, check_renderer, show_value, title_of
from hotloop.report.text import clean

COLORS = {Verdict.PASS: "32", Verdict.REGRESSION: "31", Verdict.INCONCLUSIVE: "33"}
ZERO_PHASE_RATIO = 0.0005
"""Phases below this share of the step on both sides are left out of the table when they passed."""


@check_renderer("check-text", "the check as lines of text")
def render_check_text(check: Check, surface: CheckSurface) -> str:
    lines = [_paint(_headline(check), COLORS[check.verdict], surface)]
    lines += _wrap(f"noise: {check.noise}", surface)
    for warning in check.warnings:
        lines += _wrap(f"! {warning}", surface)
    compared = [one for one in check.judged if one.kind == "baseline"]
    if compared:
        worse = f"worse by ({check.confidence_ratio:.0%})"
        rows = [("", "baseline", "this run", worse, "allowed", "verdict")]
        rows += [_row(one) for one in compared if not _is_nothing(one, compared)]
        lines += ["", *_table(rows, surface, [one for one in compared if not _is_nothing(one, compared)])]
        lines += _wrap("phases: as fractions of the baseline's step; rates: as time per unit", surface)
    budgets = [one for one in check.judged if one.kind == "budget"]
    if budgets:
        rows = [("budget", "limit", "this run", "over by", "", "verdict")]
        rows += [(one.name, *_row(one)[1:4], "", one.verdict.value) for one in budgets]
        lines += ["", *_table(rows, surface, budgets)]
    told = [one for one in check.judged if one.verdict is not Verdict.PASS and (one.decides or _is_regression(one))]
    if told:
        lines.append("")
    for one in told:
        place = "" if one.where is None else f" ({clean(one.where.file)}:{one.where.line})"
        lines += _wrap(f"{title_of(one)}: {one.reason}{place}", surface)
    for name, reason in check.skipped:
        lines += _wrap(f"not judged: {name}: {reason}", surface)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _headline(check: Check) -> str:
    worst = [one for one in check.judged if _is_regression(one)]
    text = f"{check.verdict.value}: {', '.join(check.runs)}"
    if check.baseline is not None:
        text += f" against {check.baseline}"
    if worst:
        text += f": {', '.join(title_of(one) for one in worst[:4])}"
    return clean(text)


def _is_regression(one: Judged) -> bool:
    return one.verdict is Verdict.REGRESSION


def _is_nothing(one: Judged, all_judged: list[Judged]) -> bool:
    step = next((other for other in all_judged if other.id == "step_ns"), None)
    if not one.id.startswith("phase/") or _is_regression(one) or step is None or not step.reference:
        return False
    return max(one.value or 0.0, one.reference or 0.0) < ZERO_PHASE_RATIO * step.reference


def _row(one: Judged) -> tuple[str, str, str, str, str, str]:
    change = "unknown" if one.change_ratio is None else say_change(one.change_ratio)
    if one.low_ratio is not None and one.high_ratio is not None and one.high_ratio > one.low_ratio:
        change += f" [{say_change(one.low_ratio)} to {say_change(one.high_ratio)}]"
    allowed = "" if one.tolerance_ratio is None else f"{one.tolerance_ratio:+.0%}"
    return (
        title_of(one),
        show_value(one.name, one.reference),
        show_value(one.name, one.value),
        change,
        allowed,
        one.verdict.value,
    )


def _table(rows: Sequence[tuple[str, ...]], surface: CheckSurface, judged: list[Judged]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        color = COLORS[judged[number - 1].verdict] if number else ""
        cells.append(_paint(row[-1], color, surface))
        lines.append("  ".join(cells))
    return lines


def _paint(text: str, color: str, surface: CheckSurface) -> str:
    return f"\x1b[{color}m{text}\x1b[0m" if surface.color and color else text


def _wrap(text: str, surface: CheckSurface) -> list[str]:
    return textwrap.wrap(
        clean(text), max(60, surface.width), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
