"""html: a report as one page that needs no network, no server and no trust in the names that it shows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from hotloop.core.errors import InvariantError
from hotloop.show.report.document import Card, Cell, Detail, Document, Place, Row, Section, Surface, renderer, select
from hotloop.show.report.manual import manual_to_html
from hotloop.show.report.plots import draw_bars
from hotloop.show.report.text import below_folder, blank_controls

TITLE_LENGTH = 66
"""Characters of a finding's title; this many fit two lines of a narrow screen. The rest goes below it."""
CLAUSES = re.compile(r"; |: |, (?=\D)| (?=\()| (?=because )| (?=and )")
"""Where a title may end."""


@renderer("html", "one self-contained page", suffix=".html", least_rows=50)
def draw_html(document: Document, surface: Surface) -> str:
    """The report as an HTML document.

    Names from the user's program reach the page in three ways only: as text escaped by jinja2 or where a plot is drawn,
    as text of a manual escaped by manual_to_html, and as JSON in a data block in which ``<``, ``>`` and ``&`` are
    written as \\u escapes.
    """
    from jinja2 import DictLoader, Environment, StrictUndefined
    from markupsafe import Markup

    def show(value: Any) -> Any:
        return value if isinstance(value, Markup) or not isinstance(value, str) else blank_controls(value)

    def show_place(place: Place) -> str:
        return f"{below_folder(below_folder(place.file, document.root), surface.folder)}:{place.line}"

    def shorten_paths(text: str) -> str:
        return text.replace(document.root.rstrip("/") + "/", "") if document.root else text

    name = "report.html.j2"
    environment = Environment(
        loader=DictLoader({name: _read_asset("templates", name)}),
        autoescape=True,
        finalize=show,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "kind": lambda block: type(block).__name__,
        "capital": lambda text: text[:1].upper() + text[1:],
        "share": lambda ratio: f"{ratio * 100:.2f}%",
        "place": show_place,
        "near": shorten_paths,
        "manual": lambda text: Markup(manual_to_html(text)),
        "bars": lambda block: Markup(draw_bars(block.title, block.rows)),
        "headline": lambda title: _split_title(shorten_paths(title)),
    }
    environment.tests["cell"] = lambda value: isinstance(value, Cell)
    environment.tests["places"] = lambda value: isinstance(value, tuple) and isinstance(value[0], Place)
    css, script = _read_asset("static", "report.css"), _read_asset("static", "report.js")
    policy = (
        f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(css)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    return environment.get_template(name).render(
        document=document,
        groups=_group_sections(document.sections),
        answers=_find_answers(document),
        full=lambda blocks: select(blocks, Detail.FULL),
        policy=Markup(policy),
        css=Markup(css),
        script=Markup(script),
        data=Markup(_embed_json(document)),
    )


def _embed_json(document: Document) -> str:
    """The report's JSON with every character escaped that HTML could read as markup."""
    # The tables of a trace are part of the page; the script draws none of them.
    data = {key: value for key, value in document.data().items() if key != "trace"}
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise InvariantError(f"the report contains a number that is not finite: {error}") from error
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _group_sections(sections: Sequence[Section]) -> list[tuple[str, str, list[Section]]]:
    """(title, anchor, sections) of each group, which is placed where its last section is."""
    groups: dict[str, list[Section]] = {}
    for number, section in enumerate(select(sections, Detail.FULL)):
        key = section.group or section.title or f" {number}"
        groups[key] = [*groups.pop(key, []), section]
    return [
        (title.strip() if not title.startswith(" ") else "", re.sub(r"[^a-z]+", "-", title.lower()).strip("-"), held)
        for title, held in groups.items()
    ]


def _find_answers(document: Document) -> list[Row]:
    """The first finding's place, fix and forecast, to show next to the verdict."""
    blocks = (block for section in select(document.sections, Detail.BRIEF) for block in section.blocks)
    first = next((block for block in blocks if isinstance(block, Card)), None)
    return [] if first is None else [row for row in first.rows if row.leads]


def _split_title(title: str) -> tuple[str, str]:
    """The clauses of a title that fit two lines of a narrow screen, and what is left of it."""
    if len(title) <= TITLE_LENGTH:
        return title, ""
    ends = [match for match in CLAUSES.finditer(title) if match.start() <= TITLE_LENGTH]
    if ends:
        return title[: ends[-1].start()], title[ends[-1].end() :]
    end = title.rfind(" ", 0, TITLE_LENGTH)
    end = end if end > 0 else TITLE_LENGTH
    return f"{title[:end]} …", f"… {title[end:].strip()}"


def _read_asset(*parts: str) -> str:
    return resources.files("hotloop.show.report").joinpath(*parts).read_text(encoding="utf-8")


def _hash_source(content: str) -> str:
    """The CSP source that allows exactly this inline element."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"
