"""markdown: a report for pull requests and issues: verdict and findings open, everything else folded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape

from hotloop.show.report.document import (
    Bars,
    Block,
    Card,
    Command,
    Detail,
    Document,
    Pairs,
    Paragraph,
    Place,
    Row,
    Section,
    Shares,
    Span,
    Surface,
    Table,
    Text,
    cell_text,
    renderer,
    select,
)
from hotloop.show.report.text import below_folder, clean, shorten

MOST_LENGTH = 60_000
"""GitHub refuses a comment of more than 65,536 characters."""
STRONG = ("strong", "high", "medium", "best", "bad")
LOSES, SAVES = ("you lose", "at stake"), ("fix saves", "could save")

NamePlace = Callable[[Place], str]


@renderer("markdown", "Markdown for pull requests and issues", suffix=".md")
def draw_markdown(document: Document, surface: Surface) -> str:
    """GitHub's Markdown. Names of the user's program stay text: they make no markup, link or mention."""

    def name(place: Place) -> str:
        return f"{below_folder(below_folder(place.file, document.root), surface.folder)}:{place.line}"

    parts = [f"## {_escape(document.title)}"]
    parts += [_paragraph(one) for one in document.lead]
    if document.only_line is not None:
        parts.append(_escape(document.only_line))
    if document.command:
        outcome = "" if document.outcome is None else f" · {_escape(document.outcome.text)}"
        parts.append(f"{_code(shorten(document.command, 300))}{outcome} · hotloop {_escape(document.version)}")
    parts += [_paragraph(one) for one in document.intro]
    left_out, length = [], sum(map(len, parts))
    for section in select(document.sections, Detail.BRIEF):
        text = _draw_section(section, name)
        if length + len(text) > MOST_LENGTH:
            left_out.append(section.title.lower() or "a table")
            continue
        length += len(text)
        parts.append(text)
    if left_out:
        parts.append(f"Left out because a comment would be too long: {_escape(', '.join(left_out))}.")
    if document.next_command:
        parts.append(f"Next: {_code(document.next_command)}")
    return _join(parts) + "\n"


def _draw_section(section: Section, name: NamePlace) -> str:
    blocks = select(section.blocks, Detail.BRIEF)
    cards = [block for block in blocks if isinstance(block, Card)]
    drawn = [_draw_summary(cards, name)] if cards else []
    drawn = [_escape(section.note), *drawn, *(_draw_block(block, name) for block in blocks)]
    if not section.title:
        return _join(drawn)
    if cards:
        return _join([f"### {_escape(section.title)}", *drawn])
    return _fold(section.title, drawn)


def _draw_block(block: Block, name: NamePlace) -> str:
    match block:
        case Paragraph():
            return _paragraph(block)
        case Card():
            return _draw_card(block, name)
        case Table():
            rows = [[_escape(cell_text(cell)) for cell in row] for row in block.rows]
            return _table([_escape(head) for head in block.header], rows, block.left)
        case Shares():
            return _draw_shares(block, name)
        case Bars():
            rows = [
                [_escape(row.label), _escape(row.mark), _escape(row.shown), "<br>".join(map(_spans, row.notes))]
                for row in block.rows
            ]
            return _table(["", "", _escape(block.title), ""], rows, frozenset({0, 1, 3}))
        case _:
            raise NotImplementedError(f"Markdown does not draw a {type(block).__name__}")


def _draw_summary(cards: Sequence[Card], name: NamePlace) -> str:
    """One row a finding: how serious it is, what it costs, what its fix saves, and where."""
    rows = []
    for card in cards:
        cells = {row.label: _draw_content(row, name).partition("<br>")[0] for row in card.rows}
        loses, saves = (next((cells[key] for key in keys if key in cells), "") for keys in (LOSES, SAVES))
        title = f"{_escape(card.title)} ({_code(card.rule)})"
        rows.append([str(card.number), _escape(card.label), title, loses, saves, cells.get("where", "")])
    return _table(["#", "severity", "finding", "costs", "a fix saves", "where"], rows, frozenset(range(1, 6)))


def _draw_card(card: Card, name: NamePlace) -> str:
    lines = [f"- **{_escape(row.label)}**: {_draw_content(row, name)}" for row in card.rows]
    return _fold(f"{card.number}. {card.title}", ["\n".join(lines), card.advice])


def _draw_content(row: Row, name: NamePlace) -> str:
    match row.content:
        case Pairs(items=items):
            return " · ".join(f"{_escape(label)} {_escape(value)}" for label, value in items)
        case Command(text=text):
            return _code(text)
        case parts:
            places = [_draw_place(one, name) for one in parts if isinstance(one, Place)]
            return "<br>".join(places) + _spans(tuple(one for one in parts if isinstance(one, Span)))


def _draw_place(place: Place, name: NamePlace) -> str:
    inside = f" in {_code(place.function)}" if place.function else ""
    return f"{_escape(place.share)} {_code(name(place))}{inside}".strip()


def _draw_shares(block: Shares, name: NamePlace) -> str:
    rows = [
        [
            _escape(row.name),
            _escape(row.share),
            _escape(row.amounts[0]),
            "<br>".join([*(_draw_place(one, name) for one in row.places), _escape(row.note)]).removesuffix("<br>"),
        ]
        for row in block.rows
    ]
    return _table(["", "share", block.header[0], ""], rows, frozenset({0, 3}))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], left: frozenset[int]) -> str:
    marks = ["---" if at in left else "--:" for at in range(len(header))]
    safe = [[re.sub(r"(?<!\\)[|]", r"\|", cell) for cell in cells] for cells in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, marks, *safe))


def _fold(title: str, parts: Iterable[str]) -> str:
    """Folded parts under a title, which is HTML: Markdown's escapes would be shown literally."""
    summary = re.sub(r"([@#])(?=\w)", r"\1<!-- -->", escape(clean(title), quote=False))
    return f"<details><summary>{summary}</summary>\n\n{_join(parts)}\n\n</details>"


def _join(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part)


def _paragraph(block: Paragraph) -> str:
    label = () if block.label is None else (Span(f"{block.label.text.strip()} ", block.label.tone),)
    return _spans((*label, *block.text))


def _spans(text: Text) -> str:
    return "".join(
        f"**{_escape(span.text)}**{' ' * span.text.endswith(' ')}"
        if span.tone in STRONG and span.text.strip()
        else f"{' ' * span.text.startswith(' ')}{_escape(span.text)}{' ' * span.text.endswith(' ')}"
        for span in text
    )


def _escape(text: str) -> str:
    """Text that stays text: no markup, no link, and nobody is notified.

    >>> _escape("a*b|c <img> @team #12 https://x.y")
    'a\\\\*b\\\\|c &lt;img&gt; @<!-- -->team \\\\#<!-- -->12 https:<!-- -->//x.y'
    """
    safe = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", escape(clean(text), quote=False))
    safe = re.sub(r"^(\s*)([-+>=]|\d+[.)])(?=\s|$)", r"\1\\\2", safe)
    return re.sub(r"([@#])(?=\w)", r"\1<!-- -->", safe).replace("://", ":<!-- -->//").replace("www.", "www<!-- -->.")


def _code(text: str) -> str:
    """A code span that no backtick inside can end."""
    held = clean(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", held)), default=0))
    space = " " if len(fence) > 1 or not held else ""
    return f"{fence}{space}{held}{space}{fence}"
