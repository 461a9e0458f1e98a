"""diff: why a step takes longer or shorter than it did -> the change, its terms by size, and what changed most."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.comparison import (
    COMPARISON_SCHEMA,
    Comparison,
    DiffSide,
    UnitChange,
)
from hotloop.core.environment import EnvironmentChange
from hotloop.core.graph import DiffRow, DiffTerm, DiffTerms
from hotloop.show.report.document import Document, Paragraph, Section, Surface, Table, View, write
from hotloop.show.report.text import UNKNOWN, TimeUnit, choose_unit, clean, format_counted, format_utilization, shorten

NUMBERS_WIDTH = 56
"""Columns of a row of kernels or operators that its name leaves to the numbers."""
SHAPES_WIDTH = 20
CHANGE_WIDTH = 40
TERM_HEADER = ("", "before", "after", "change", "95%", "")
TERM_TEXT = {
    "input_wait": "waiting for input",
    "h2d": "copies to the device",
    "compute": "compute",
    "exposed_comm": "communication that does not overlap",
    "exposed_mem": "copies that do not overlap",
    "idle": "device idle",
}


def describe_comparison(comparison: Comparison, surface: Surface) -> Document:
    """Warnings, the total change, its terms by size, and the kernels and operators that changed most."""
    lead, step, device = comparison.lead, comparison.step, comparison.device
    unit = choose_unit(max(lead.before_ns, lead.after_ns))
    intro = [
        Paragraph(text=write(f"{name}{_describe(side)}"), indent=0, wraps=False)
        for name, side in (("before  ", comparison.before), ("after   ", comparison.after))
    ]
    warnings = [
        Paragraph(text=write(("! ", "fair"), clean(message)), indent=0, hang=2) for message in comparison.warnings
    ]
    used = [
        format_utilization(one.utilization, with_peak=False)
        for one in (comparison.before, comparison.after)
        if one.utilization
    ]
    if any(used):
        intro.append(Paragraph(text=write(f"used    {' -> '.join(one or UNKNOWN for one in used)}"), indent=0, hang=8))
    sections: list[Section] = []
    if comparison.is_same:
        same = Paragraph(text=write("no change: every term is 0"), indent=0)
        sections.append(Section(title="", blocks=(same,)))
    else:
        if step is not None:
            sections.append(_list_terms("Step", "by host phase, mean per step", step, unit))
        if device is not None:
            note = f"mean of a step's window on the device; {_short(device.whole, unit)}"
            sections.append(_list_terms("Device", note, device, unit))
        sections += _list_rows("Kernels", comparison.kernels, surface.top, surface.width)
        sections += _list_rows("Operators", comparison.ops, surface.top, surface.width)
    if comparison.environment:
        sections.append(Section(title="Environment", blocks=(tabulate_changes(comparison.environment),)))
    if comparison.notes:
        notes = tuple(Paragraph(text=write(clean(message))) for message in comparison.notes)
        sections.append(Section(title="Notes", blocks=notes))
    per_unit = comparison.per_unit
    return Document(
        title=f"{lead.name} {_short(lead, unit)}" if comparison.is_same else _headline(lead, unit),
        tone="strong",
        intro=(*intro, *warnings),
        lead=() if per_unit is None else (Paragraph(text=write((_unit_line(per_unit), "strong")), indent=0),),
        sections=tuple(sections),
    )


def tabulate_changes(changes: Sequence[EnvironmentChange]) -> Table:
    rows = tuple(
        (one.kind, *(shorten(clean(text or "-"), CHANGE_WIDTH) for text in (one.name, one.before, one.after)))
        for one in changes
    )
    return Table(header=("", "name", "before", "after"), rows=rows, left=frozenset({0, 1, 2, 3}))


def _describe(side: DiffSide) -> str:
    noun = "rank" if side.ranks_count == 1 else "ranks"
    steps = format_counted(side.steps_count, "step")
    each = " each" if side.ranks_count > 1 else ""
    where = "" if side.device is None or side.kind == "traces" else f", on {clean(side.device)}"
    return f"{clean(side.name)} ({side.ranks_count} {noun}, {steps}{each}{where})"


def _ratio(before: float, after: float) -> str:
    if before <= 0 or before == after:
        return ""
    if after >= 10 * before:
        return f" ({after / before:,.0f} times)"
    change = (after - before) / before * 100
    return f" ({change:+.0f}%)" if abs(change) >= 9.5 else f" ({change:+.1f}%)"


def _interval(delta: float, half: float | None, unit: TimeUnit) -> str:
    if half is None:
        return "no interval"
    return f"{unit.show(delta - half, sign=True)} to {unit.show(delta + half, sign=True)}"


def _headline(whole: DiffTerm, unit: TimeUnit) -> str:
    text = f"{whole.name} {_short(whole, unit)}"
    if whole.half_width_ns is None:
        return text + " [no interval: fewer than two steps on a side]"
    text += f" [95% {_interval(whole.delta_ns, whole.half_width_ns, unit)}]"
    return text if whole.is_certain or not whole.delta_ns else text + "  not certain"


def _short(whole: DiffTerm, unit: TimeUnit) -> str:
    change = unit.show(whole.delta_ns, sign=True)
    return (
        f"{unit.show(whole.before_ns)} -> {unit.show(whole.after_ns)} {unit.name}, {change} {unit.name}"
        f"{_ratio(whole.before_ns, whole.after_ns)}"
    )


def _unit_line(change: UnitChange) -> str:
    unit = choose_unit(max(change.before_ns, change.after_ns))
    unit = TimeUnit(unit.name, unit.ns, unit.digits + 1)
    text = (
        f"per {change.unit} {unit.show(change.before_ns)} -> {unit.show(change.after_ns)} {unit.name},"
        f" {unit.show(change.delta_ns, sign=True)} {unit.name}{_ratio(change.before_ns, change.after_ns)}"
    )
    if change.half_width_ns is None:
        return text
    text += f" [95% {_interval(change.delta_ns, change.half_width_ns, unit)}]"
    return text if abs(change.delta_ns) > change.half_width_ns else text + "  not certain"


def _list_terms(title: str, note: str, terms: DiffTerms, unit: TimeUnit) -> Section:
    rows = [_term_row(term, unit) for term in _by_size(terms.terms)]
    left_out = [
        TERM_TEXT.get(term.name, clean(term.name)) for term in terms.terms if not (term.before_ns or term.after_ns)
    ]
    nothing = [f"0 on both sides: {', '.join(left_out)}"] if left_out else []
    return _section(title, note, TERM_HEADER, rows, unit, nothing)


def _by_size(terms: Sequence[DiffTerm]) -> list[DiffTerm]:
    seen = [term for term in terms if term.before_ns or term.after_ns]
    return sorted(seen, key=lambda term: -abs(term.delta_ns))


def _term_row(term: DiffTerm, unit: TimeUnit) -> tuple[str, ...]:
    half = term.half_width_ns
    certain = "" if half is None or term.is_certain else "same" if not term.delta_ns and not half else "not certain"
    return (
        TERM_TEXT.get(term.name, clean(term.name).replace("_", " ")),
        unit.show(term.before_ns),
        unit.show(term.after_ns),
        unit.show(term.delta_ns, sign=True),
        "-" if half is None else _interval(term.delta_ns, half, unit),
        certain,
    )


def _list_rows(title: str, rows: Sequence[DiffRow], top: int, width: int) -> list[Section]:
    moved = [row for row in rows if row.delta_ns]
    if not rows:
        return []
    if not moved:
        return [Section(title=title, note=f"no change in {format_counted(len(rows), 'name')}")]
    unit = choose_unit(max(max(r.before_ns or 0.0, r.after_ns or 0.0) for r in moved[:top]))
    room = max(24, width - NUMBERS_WIDTH)
    cells = []
    for row in moved[:top]:
        name = shorten(row.name, room - SHAPES_WIDTH - 1 if row.shapes else room)
        if row.shapes:
            name += " " + shorten(row.shapes, SHAPES_WIDTH)
        cells.append(
            (
                name,
                "-" if row.before_ns is None else unit.show(row.before_ns),
                "-" if row.after_ns is None else unit.show(row.after_ns),
                unit.show(row.delta_ns, sign=True),
                f"{_calls(row.before_count)} -> {_calls(row.after_count)}",
                clean(row.status),
            )
        )
    note = f"{len(cells)} of {len(moved)}, largest change first; mean time per step, no interval"
    return [_section(title, note, ("", "before", "after", "change", "calls", ""), cells, unit)]


def _calls(count: float | None) -> str:
    return "-" if count is None else f"{count:,.4g}"


def _section(
    title: str,
    note: str,
    header: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    unit: TimeUnit,
    notes: Sequence[str] = (),
) -> Section:
    """A table whose first and last columns are words; the head of ``before`` names the unit of all times."""
    heads = tuple(f"{head} {unit.name}" if head == "before" else head for head in header)
    table = Table(header=heads, rows=tuple(rows), left=frozenset({0, len(heads) - 1}), shrinks=False)
    return Section(title=title, note=note, blocks=(table, *(Paragraph(text=write(one)) for one in notes)))


DIFF = View(id="diff", type=Comparison, schema=COMPARISON_SCHEMA, describe=describe_comparison)
