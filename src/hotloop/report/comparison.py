"""Comparison -> the text of `hotloop diff` and its JSON; computes no number but ratios."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotloop.core.comparison import Comparison, DiffSide, GrowthSplit, UnitChange, comparison_to_json
from hotloop.core.errors import InvariantError
from hotloop.core.graph import DiffRow, DiffTerm, DiffTerms
from hotloop.core.plain import to_ascii
from hotloop.report import text as t

NUMBERS_WIDTH = 56
"""Columns of a row of kernels or operators that its name leaves to the numbers."""
SHAPES_WIDTH = 20
TERM_TEXT = {
    "input_wait": "waiting for input",
    "h2d": "copies to the device",
    "compute": "compute",
    "exposed_comm": "communication, not hidden",
    "exposed_mem": "copies, not hidden",
    "idle": "device idle",
    "wait": "wait (arriving early)",
    "transfer": "transfer, not hidden",
    "overlap_slowdown": "overlap slow-down",
    "unmatched_comm": "communication, not matched",
}
REST_TEXT = {"compute": "own work else", "copies": "copies", "idle": "nothing ran"}

Style = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class _Unit:
    """One unit for all times of a table, so that they can be compared by eye."""

    name: str
    ns: float
    digits: int

    def show(self, value_ns: float, *, sign: bool = False) -> str:
        text = f"{value_ns / self.ns:{'+' if sign else ''},.{self.digits}f}"
        # What rounds to nothing has no direction.
        return text.lstrip("+-") if not text.strip("+-0.,") else text


def render_comparison_json(comparison: Comparison) -> str:
    """The comparison as indented JSON of schema hotloop.diff/1; a number that JSON has no form for is refused."""
    try:
        return json.dumps(comparison_to_json(comparison), allow_nan=False, indent=1)
    except ValueError as error:
        raise InvariantError(f"the comparison holds a number that is not finite: {error}") from error


def render_comparison(
    comparison: Comparison, *, width: int = 100, color: bool = False, unicode: bool = True, top: int = 10
) -> str:
    """The comparison as lines for a person: warnings, the whole change, its terms by size, what changed most."""
    style: Style = _paint if color else _plain
    width = max(60, width)
    lines = [
        f"before  {_describe(comparison.before)}",
        f"after   {_describe(comparison.after)}",
        "",
    ]
    for message in comparison.warnings:
        lines += _wrap(style("! ", "33") + t.clean(message), width, "  ")
    if comparison.warnings:
        lines.append("")
    lead = comparison.lead
    unit = _choose_unit(max(lead.before_ns, lead.after_ns))
    headline = f"{lead.name} {_short(lead, unit)}" if comparison.is_same else _headline(lead, unit)
    lines.append(style(headline, "1"))
    if comparison.per_unit is not None:
        lines.append(style(_unit_line(comparison.per_unit), "1"))
    if comparison.is_same:
        lines += ["", "nothing changed: every term is 0"]
    else:
        if comparison.step is not None:
            lines += _tell_terms("STEP", "by phase of the host, mean per step", comparison.step, unit, style)
        if comparison.device is not None:
            note = f"mean of a step's window on the device; {_short(comparison.device.whole, unit)}"
            lines += _tell_terms("DEVICE", note, comparison.device, unit, style)
        if comparison.growth is not None:
            lines += _tell_growth(comparison.growth, unit, style, width)
        lines += _tell_rows("KERNELS", comparison.kernels, top, style, width)
        lines += _tell_rows("OPERATORS", comparison.ops, top, style, width)
    if comparison.notes:
        lines += ["", style("NOTES", "1")]
        for message in comparison.notes:
            lines += _wrap("   " + t.clean(message), width, "   ")
    out = "\n".join(line.rstrip() for line in lines) + "\n"
    return out if unicode else to_ascii(out)


def _plain(text: str, code: str) -> str:
    return text


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _describe(side: DiffSide) -> str:
    noun = "rank" if side.ranks_count == 1 else "ranks"
    steps = t.format_counted(side.steps_count, "step")
    each = " each" if side.ranks_count > 1 else ""
    where = "" if side.device is None or side.kind == "traces" else f", on {t.clean(side.device)}"
    return f"{t.clean(side.name)} ({side.ranks_count} {noun}, {steps}{each}{where})"


def _choose_unit(value_ns: float) -> _Unit:
    for limit, ns, name in ((1e3, 1.0, "ns"), (1e6, 1e3, "µs"), (1e10, 1e6, "ms")):
        if value_ns < limit:
            return _Unit(name, ns, 0 if name == "ns" else 1 if value_ns / ns >= 100 else 2)
    return _Unit("s", 1e9, 2)


def _ratio(before: float, after: float) -> str:
    if before <= 0 or before == after:
        return ""
    if after >= 10 * before:
        return f" ({after / before:,.0f} times)"
    change = (after - before) / before * 100
    return f" ({change:+.0f}%)" if abs(change) >= 9.5 else f" ({change:+.1f}%)"


def _interval(delta: float, half: float | None, unit: _Unit) -> str:
    if half is None:
        return "no interval"
    return f"{unit.show(delta - half, sign=True)} to {unit.show(delta + half, sign=True)}"


def _headline(whole: DiffTerm, unit: _Unit) -> str:
    text = f"{whole.name} {_short(whole, unit)}"
    if whole.half_width_ns is None:
        return text + " [no interval: fewer than two steps on a side]"
    text += f" [95% {_interval(whole.delta_ns, whole.half_width_ns, unit)}]"
    return text if whole.is_certain or not whole.delta_ns else text + "  not certain"


def _short(whole: DiffTerm, unit: _Unit) -> str:
    change = unit.show(whole.delta_ns, sign=True)
    return (
        f"{unit.show(whole.before_ns)} -> {unit.show(whole.after_ns)} {unit.name}, {change} {unit.name}"
        f"{_ratio(whole.before_ns, whole.after_ns)}"
    )


def _unit_line(change: UnitChange) -> str:
    unit = _choose_unit(max(change.before_ns, change.after_ns))
    unit = _Unit(unit.name, unit.ns, unit.digits + 1)
    text = (
        f"per {change.unit} {unit.show(change.before_ns)} -> {unit.show(change.after_ns)} {unit.name},"
        f" {unit.show(change.delta_ns, sign=True)} {unit.name}{_ratio(change.before_ns, change.after_ns)}"
    )
    if change.half_width_ns is None:
        return text
    text += f" [95% {_interval(change.delta_ns, change.half_width_ns, unit)}]"
    return text if abs(change.delta_ns) > change.half_width_ns else text + "  not certain"


def _tell_terms(title: str, note: str, terms: DiffTerms, unit: _Unit, style: Style) -> list[str]:
    rows = [_term_row(term, unit, TERM_TEXT) for term in _by_size(terms.terms)]
    left_out = [
        TERM_TEXT.get(term.name, t.clean(term.name)) for term in terms.terms if not (term.before_ns or term.after_ns)
    ]
    lines = ["", f"{style(title, '1')}  {note}", *_columns(("", "before", "after", "change", "95%", ""), rows, unit)]
    if left_out:
        lines.append(f"   0 on both sides: {', '.join(left_out)}")
    return lines


def _by_size(terms: Sequence[DiffTerm]) -> list[DiffTerm]:
    seen = [term for term in terms if term.before_ns or term.after_ns]
    return sorted(seen, key=lambda term: -abs(term.delta_ns))


def _term_row(term: DiffTerm, unit: _Unit, names: dict[str, str]) -> tuple[str, ...]:
    half = term.half_width_ns
    certain = "" if half is None or term.is_certain else "same" if not term.delta_ns and not half else "not certain"
    return (
        names.get(term.name, t.clean(term.name).replace("_", " ")),
        unit.show(term.before_ns),
        unit.show(term.after_ns),
        unit.show(term.delta_ns, sign=True),
        "-" if half is None else _interval(term.delta_ns, half, unit),
        certain,
    )


def _tell_growth(growth: GrowthSplit, unit: _Unit, style: Style, width: int) -> list[str]:
    what = "backward and the communication behind it" if growth.window == "backward" else growth.window
    note = f"the {what}, mean over ranks: {_short(growth.change.whole, unit)}"
    rows = []
    for term in growth.change.terms:
        rows.append(_term_row(term, unit, TERM_TEXT))
    rows += [_term_row(part, unit, {**TERM_TEXT, **REST_TEXT}) for part in _by_size(growth.rest.terms)]
    inner = len(growth.change.terms)
    rows = [row if i < inner else ("  of it " + row[0], *row[1:]) for i, row in enumerate(rows)]
    lines = ["", f"{style('RANKS', '1')}  {note}"]
    lines += _columns(("", "before", "after", "change", "95%", ""), rows, unit)
    for message in growth.notes:
        lines += _wrap("   " + t.clean(message), width, "   ")
    return lines


def _tell_rows(title: str, rows: Sequence[DiffRow], top: int, style: Style, width: int) -> list[str]:
    moved = [row for row in rows if row.delta_ns]
    if not rows:
        return []
    if not moved:
        return ["", f"{style(title, '1')}  no change in {t.format_counted(len(rows), 'name')}"]
    unit = _choose_unit(max(max(r.before_ns or 0.0, r.after_ns or 0.0) for r in moved[:top]))
    cells = []
    for row in moved[:top]:
        room = max(24, width - NUMBERS_WIDTH)
        name = t.shorten(row.name, room - SHAPES_WIDTH - 1 if row.shapes else room)
        if row.shapes:
            name += " " + t.shorten(row.shapes, SHAPES_WIDTH)
        cells.append(
            (
                name,
                "-" if row.before_ns is None else unit.show(row.before_ns),
                "-" if row.after_ns is None else unit.show(row.after_ns),
                unit.show(row.delta_ns, sign=True),
                f"{_calls(row.before_count)} -> {_calls(row.after_count)}",
                row.status,
            )
        )
    note = f"largest change first, {len(cells)} of {len(moved)}; mean time per step, no interval"
    header = ("", "before", "after", "change", "calls", "")
    return ["", f"{style(title, '1')}  {note}", *_columns(header, cells, unit)]


def _calls(count: float | None) -> str:
    return "-" if count is None else f"{count:,.4g}"


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]], unit: _Unit) -> list[str]:
    """Aligned cells: the first and the last column stand left, the others right."""
    titles = [header[0], *(f"{h} {unit.name}" if h == "before" else h for h in header[1:])]
    table = [titles, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(titles))]
    last = len(titles) - 1
    return [
        "   "
        + "  ".join(cell.ljust(widths[i]) if i in (0, last) else cell.rjust(widths[i]) for i, cell in enumerate(row))
        for row in table
    ]
