"""terminal: a report as lines for a terminal or a log: the verdict first, the next command last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hotloop.core.plain import to_ascii
from hotloop.show.report.document import (
    Bars,
    Block,
    Card,
    Cell,
    Command,
    Detail,
    Document,
    Pairs,
    Paragraph,
    Place,
    Section,
    Shares,
    Span,
    Surface,
    Table,
    cell_text,
    renderer,
    select,
)
from hotloop.show.report.text import below_folder, blank_controls, shorten, shorten_middle

if TYPE_CHECKING:
    from rich.text import Text as Styled

EVIDENCE_LINES = 2
SHOWN_PLACES = 3
MINIMUM_WIDTH = 40
NAME_WIDTH = 30
"""Columns that a table's names keep where the table is too wide."""
INDENT = "   "
LABEL_WIDTH = 11
BAR_WIDTH = 24

STYLES = {
    "strong": "bold",
    "dim": "dim",
    "high": "bold red",
    "medium": "bold yellow",
    "low": "cyan",
    "info": "dim",
    "best": "bold green",
    "good": "green",
    "fair": "yellow",
    "bad": "red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The few signs that are not letters."""

    bar: str
    """Eighths of a cell, the full cell last."""
    ellipsis: str


UNICODE_GLYPHS = Glyphs(bar="▏▎▍▌▋▊▉█", ellipsis="…")
ASCII_GLYPHS = Glyphs(bar="#", ellipsis="...")


@dataclass(frozen=True, slots=True)
class Page:
    """Lines in the making, with the width and signs of the surface."""

    width: int
    glyphs: Glyphs
    wrap: Callable[[Styled, int], Iterable[Styled]]
    folder: str = ""
    lines: list[Styled] = field(default_factory=list)

    def add(self, *parts: Span) -> None:
        """One line that is never broken."""
        self.lines.append(_style(parts))

    def paragraph(self, *parts: Span, head: str = "", tone: str = "dim", hang: int = 0) -> None:
        """Parts broken to the width after ``head``; further lines are indented below it, by ``hang`` columns more."""
        room = max(20, self.width - len(head) - hang)
        for i, line in enumerate(self.wrap(_style(parts), room)):
            self.lines.append(_style((Span(head, tone) if i == 0 else Span(" " * (len(head) + hang)),)) + line)


@renderer("terminal", "text for a terminal or a log", suffix=".txt")
def draw_terminal(document: Document, surface: Surface) -> str:
    """The report as text ending in a newline; colors only where the surface has them."""
    from io import StringIO

    from rich.console import Console

    width = max(MINIMUM_WIDTH, surface.width)
    stream = StringIO()
    console = Console(
        file=stream,
        width=width,
        height=100,  # with both sizes given, rich asks neither the terminal nor the environment
        color_system="standard" if surface.color else None,
        no_color=not surface.color,
        force_terminal=surface.color,
        force_jupyter=False,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    page = Page(
        width=width,
        glyphs=UNICODE_GLYPHS if surface.unicode else ASCII_GLYPHS,
        wrap=lambda body, columns: body.wrap(console, columns),
        folder=surface.folder,
    )
    _draw_document(page, document)
    for line in page.lines:
        line.rstrip()
        console.print(line, soft_wrap=True, end="\n")
    out = stream.getvalue()
    return out if surface.unicode else to_ascii(out)


def _style(parts: Iterable[Span]) -> Styled:
    from rich.text import Text

    return Text.assemble(*((blank_controls(span.text), STYLES.get(span.tone, "")) for span in parts))


def _draw_document(page: Page, document: Document) -> None:
    if document.only_line is not None:
        page.add(Span(document.only_line, "strong"))
        return
    for block in document.intro:
        _draw_paragraph(page, block)
    if document.intro:
        page.add()
    page.paragraph(Span(document.title, document.tone))
    for block in document.lead:
        _draw_paragraph(page, block)
    if document.names_tool:
        _draw_tool(page, document)
    for section in select(document.sections, Detail.BRIEF):
        _draw_section(page, section)
    if document.next_command is not None:
        page.add()
        page.add(Span(f"{document.next_label}: ", "dim"), Span(document.next_command, "strong"))


def _draw_tool(page: Page, document: Document) -> None:
    parts = [f"hotloop {document.version}"]
    if document.command:
        parts.append(shorten(document.command, max(30, page.width - 30), page.glyphs.ellipsis))
    if document.outcome is not None:
        page.paragraph(Span(" · ".join(parts) + " · ", "dim"), document.outcome)
    else:
        page.paragraph(Span(" · ".join(parts), "dim"))


def _draw_section(page: Page, section: Section) -> None:
    blocks = select(section.blocks, Detail.BRIEF)
    page.add()
    if section.title or section.note:
        note = f"  {section.note}" if section.note else ""
        page.paragraph(Span(section.title.upper(), "strong"), Span(note, "dim"))
    for at, block in enumerate(blocks):
        if isinstance(block, Paragraph) and at and isinstance(blocks[at - 1], Card):
            page.add()
        _draw_block(page, block)


def _draw_block(page: Page, block: Block) -> None:
    match block:
        case Paragraph():
            _draw_paragraph(page, block)
        case Card():
            _draw_card(page, block)
        case Table():
            _draw_table(page, block)
        case Shares():
            _draw_shares(page, block)
        case Bars():
            _draw_bars(page, block)
        case _:
            raise NotImplementedError(f"a terminal does not draw a {type(block).__name__}")


def _draw_paragraph(page: Page, block: Paragraph) -> None:
    head = " " * block.indent + ("" if block.label is None else block.label.text)
    if not block.wraps:
        page.add(Span(head), *block.text)
        return
    tone = "dim" if block.label is None else block.label.tone
    page.paragraph(*block.text, head=head, tone=tone, hang=block.hang)


def _draw_card(page: Page, card: Card) -> None:
    page.add()
    page.paragraph(
        Span(f"{card.label}  ", card.severity),
        Span(card.title, "strong"),
        Span(f" [{card.rule}]" if card.rule else "", "dim"),
        head=f"{card.number}. ".ljust(len(INDENT)),
    )
    for row in card.rows:
        head = INDENT + row.label.ljust(LABEL_WIDTH)
        match row.content:
            case Pairs(items=items):
                page.paragraph(Span(_fit_pairs(page, items)), head=head)
            case Command(text=text):
                page.add(Span(head, "dim"), Span(text))
            case parts:
                places = [one for one in parts if isinstance(one, Place)]
                for i, place in enumerate(places[:SHOWN_PLACES]):
                    _draw_place(page, head if i == 0 else " " * len(head), place)
                spans = [one for one in parts if isinstance(one, Span)]
                if spans:
                    page.paragraph(*spans, head=head)


def _draw_place(page: Page, head: str, place: Place) -> None:
    """A line of the user's code; a file too deep for the width is shortened in its middle, before its name."""
    room = page.width - len(head)
    function = place.function
    inside = f" in {shorten(function, room // 2 - 4, page.glyphs.ellipsis)}" if function else ""
    name = f"{below_folder(place.file, page.folder)}:{place.line}"
    shown = shorten_middle(name, room - len(inside), page.glyphs.ellipsis)
    page.add(Span(head, "dim"), Span(shown, "strong"), Span(inside, "dim"))


def _fit_pairs(page: Page, pairs: Sequence[tuple[str, str]]) -> str:
    """As much of the evidence as a few lines hold, and how much more there is."""
    room = (page.width - len(INDENT) - LABEL_WIDTH) * EVIDENCE_LINES - 20  # less what "+N more" and uneven breaks take
    between = " · "
    shown: list[str] = []
    for label, value in pairs:
        item = f"{label} {value}"
        if shown and len(between.join([*shown, item])) > room:
            break
        shown.append(item)
    more = f"{between}+{len(pairs) - len(shown)} more" if len(shown) < len(pairs) else ""
    return shorten(between.join(shown), room + 12, page.glyphs.ellipsis) + more


def _draw_shares(page: Page, block: Shares) -> None:
    for row in block.rows:
        head = f"{INDENT}{row.name.ljust(14)}{row.share.rjust(6)}{row.amounts[0].rjust(10)}  "
        cells = _draw_bar(row.ratio, page.width - len(head), page.glyphs.bar)
        page.add(Span(head, "" if row.ratio else "dim"), Span(cells))
        page.lines[-1].stylize("yellow" if row.name == "input_wait" else "blue", len(head))
        for place in row.places:
            _draw_place(page, f"     {place.share.rjust(5)} ", place)
        if row.note:
            page.paragraph(Span(row.note, "dim"), head=" " * 5)


def _draw_bar(ratio: float, width: int, eighths: str) -> str:
    """A bar of ``width`` cells at ratio 1, in eighths of a cell where there are signs for them; never empty above 0."""
    levels = len(eighths)
    filled = round(min(1.0, max(0.0, ratio)) * width * levels)
    if ratio > 0:
        filled = max(1, filled)
    full, rest = divmod(filled, levels)
    return eighths[-1] * full + (eighths[rest - 1] if rest else "")


def _draw_bars(page: Page, block: Bars) -> None:
    longest = max([1.0, *(row.value or 0.0 for row in block.rows)])
    width = max(len(row.label) for row in block.rows)
    for row in block.rows:
        head = f"{INDENT}{row.label.ljust(width)}  {row.mark.ljust(11)}  "
        bar = _draw_bar((row.value or 0.0) / longest, BAR_WIDTH, page.glyphs.bar).ljust(BAR_WIDTH)
        page.add(Span(head, row.tone), Span(bar), Span(f"  {row.shown}"))
        page.lines[-1].stylize("blue", len(head), len(head) + len(bar))
        for note in row.notes:
            page.paragraph(*note, head=INDENT * 2)


def _draw_table(page: Page, table: Table) -> None:
    from rich.cells import cell_len

    header = [table.header] if any(table.header) and not table.has_words else []
    rows = [[cell_text(cell) for cell in row] for row in (*header, *table.rows)]
    tones = [["dim"] * len(table.header)] * len(header)
    tones += [[cell.tone if isinstance(cell, Cell) else "" for cell in row] for row in table.rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    room = page.width - len(INDENT) if table.shrinks else sum(widths) + 2 * len(widths)
    kept = _choose_columns(table, widths, room)
    missing = [rows[0][i] for i in range(len(widths)) if i not in kept]
    rows, tones = [[row[i] for i in kept] for row in rows], [[row[i] for i in kept] for row in tones]
    widths = [widths[i] for i in kept]
    left = {at for at, i in enumerate(kept) if i in table.left}
    if 0 in left and _table_width(widths) > room:
        least = LABEL_WIDTH if table.has_words else NAME_WIDTH
        widths[0] = max(min(widths[0], least), widths[0] - _table_width(widths) + room)
    shown = len(widths)
    while shown > 2 and _table_width(widths[:shown]) > room and not table.has_words:
        shown -= 1
    for row, row_tones in zip(rows, tones, strict=True):
        first, *more = _fit_name(row[0], widths[0], page, table)
        parts = [Span(INDENT)]
        for i, (cell, tone) in enumerate(zip([first, *row[1:shown]], row_tones, strict=False)):
            padding = " " * (widths[i] - cell_len(cell))
            parts.append(Span("  " * (i > 0) + (cell + padding if i in left else padding + cell), tone))
        page.add(*parts)
        for part in more:
            page.add(Span(f"{INDENT}  {part}"))
    missing += rows[0][shown:]
    if header and missing:
        note = f"more columns in a wider terminal and on the HTML page: {', '.join(missing)}"
        page.paragraph(Span(note, "dim"), head=INDENT)


def _choose_columns(table: Table, widths: Sequence[int], room: int) -> list[int]:
    """The columns that fit: of the optional ones those that matter most, at least one."""
    kept = [i for i in range(len(widths)) if i not in table.optional]
    for i in sorted(table.optional, key=lambda i: -table.optional[i]):
        wanted = [*kept, i]
        if _table_width([widths[k] for k in wanted]) > room and any(k in table.optional for k in kept):
            break
        kept = wanted
    return sorted(kept)


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _fit_name(name: str, width: int, page: Page, table: Table) -> list[str]:
    """A name in the lines that it takes: words are broken, an operator with its shapes is recognizable by its start,
    files and kernels by their ends as well."""
    import textwrap

    if table.has_words:
        return textwrap.wrap(name, width, break_on_hyphens=False) or [""]
    cut = shorten if " [" in name else shorten_middle
    return [name if len(name) <= width else cut(name, width, page.glyphs.ellipsis)]
