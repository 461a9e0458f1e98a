"""Document: what a report says, in parts that every drawer can draw. It holds text and places, never a result.

A view turns a typed report into a document, a renderer turns a document into text. Numbers are already written with
their units; the ratios that remain are lengths of bars and places on plots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Detail(Enum):
    """Which drawers show a part: all; those with little room (a terminal); those with much (a page)."""

    ALWAYS = "always"
    BRIEF = "brief"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Span:
    """Text in one tone: ``strong``, ``dim``, a severity (high, medium, low, info), or how good something is (best,
    good, fair, bad); empty for plain text."""

    text: str
    tone: str = ""


Text = tuple[Span, ...]


def write(*parts: str | tuple[str, str]) -> Text:
    """Spans of strings and of (string, tone); empty ones are left out."""
    spans = (Span(part) if isinstance(part, str) else Span(*part) for part in parts)
    return tuple(span for span in spans if span.text)


def plain(text: Text) -> str:
    """The words of a text without their tones."""
    return "".join(span.text for span in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Running text after a ``label``. ``indent`` are columns of a terminal, ``hang`` those of further lines beyond
    them; without ``wraps`` it stays one line."""

    text: Text
    label: Span | None = None
    indent: int = 3
    hang: int = 0
    wraps: bool = True
    detail: Detail = Detail.ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of the user's code; ``share`` is what it holds of a phase, as text."""

    file: str
    line: int
    function: str
    share: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Evidence: names with their values."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something to type: never broken into lines."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A labeled line of a card."""

    label: str
    content: Text | tuple[Place, ...] | Pairs | Command
    leads: bool = False
    """Whether it is shown next to the verdict as well, if it is about the first finding and there is room."""
    repeats: bool = False
    """Whether the card's advice says the same at length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A forecast to draw next to the cost; ratios in 0..1."""

    low_ratio: float
    mid_ratio: float
    high_ratio: float
    cost_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One finding. ``advice`` is Markdown that stays open, ``manual`` Markdown that is folded."""

    number: int
    severity: str
    label: str
    """Severity and kind in words."""
    title: str
    rule: str
    rows: tuple[Row, ...]
    interval: Interval | None = None
    advice: str = ""
    manual: str = ""
    detail: Detail = Detail.ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell in a tone."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells, the header apart. Columns in ``left`` are words, the others numbers.

    ``optional`` are columns that a narrow drawer leaves out first, with how much each matters.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    left: frozenset[int] = frozenset({0})
    optional: Mapping[int, float] = field(default_factory=dict)
    has_words: bool = False
    """Whether most columns are words: a terminal has no header for them, and long names are broken into lines."""
    shrinks: bool = True
    """Whether a narrow drawer may shorten names and leave columns out, and say so."""
    detail: Detail = Detail.ALWAYS


def cell_text(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of a whole: ``amounts`` are its times; the first is shown next to the share."""

    name: str
    ratio: float
    share: str
    amounts: tuple[str, ...]
    places: tuple[Place, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts that sum to a whole, as bars over the full width. ``header`` names the amounts."""

    header: tuple[str, ...]
    rows: tuple[Share, ...]
    style: str
    """Colors: 'phase' or 'device'."""
    detail: Detail = Detail.ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """``value`` is its length, ``shown`` its text; None is drawn as unknown. ``mark`` is a word in ``tone``."""

    label: str
    value: float | None
    shown: str
    style: str = "own"
    mark: str = ""
    tone: str = ""
    notes: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Values next to each other."""

    title: str
    rows: tuple[Bar, ...]
    detail: Detail = Detail.ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChart:
    """The steps over time, drawn from the report's own data."""

    detail: Detail = Detail.FULL


Block = Paragraph | Card | Table | Shares | Bars | StepChart


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Blocks under a title. Sections of one ``group`` are placed together where there is room for that."""

    title: str
    blocks: tuple[Block, ...] = ()
    note: str = ""
    group: str = ""
    is_folded: bool = False
    detail: Detail = Detail.ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A report to draw: the verdict first, the next command last."""

    title: str
    tone: str = ""
    lead: tuple[Paragraph, ...] = ()
    intro: tuple[Paragraph, ...] = ()
    """Comes before the title in a terminal, after it on a page."""
    command: str | None = None
    """The command that ran, where it is shown; empty where it was not recorded."""
    outcome: Span | None = None
    names_tool: bool = False
    """Whether a terminal shows the version, the command and the outcome as well."""
    sections: tuple[Section, ...] = ()
    next_command: str | None = None
    next_label: str = "Next"
    only_line: str | None = None
    """All that there is to say, where a page would be empty."""
    folder: str = ""
    """Where the recording is."""
    root: str = ""
    """The project's folder: files below it are named relative to it."""
    kind: str = ""
    """The id of the view; ``render`` fills it in, and the next three."""
    subject: Any = None
    """The typed report, for renderers of one kind."""
    version: str = ""
    data: Callable[[], Mapping[str, Any]] = dict
    """Its JSON contract."""


def select(blocks: Sequence[Any], detail: Detail) -> list[Any]:
    """The blocks or sections that a drawer with this much room shows."""
    return [one for one in blocks if one.detail in (Detail.ALWAYS, detail)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """Facts apart from the report. The caller reads terminal and environment, never a view or a renderer."""

    width: int = 80
    """Columns of the terminal."""
    color: bool = False
    unicode: bool = True
    """False where the stream cannot carry more than ASCII."""
    manuals: Mapping[str, str] = field(default_factory=dict)
    """Rule id -> its manual in Markdown."""
    top: int = 10
    """Rows of long tables."""
    folder: str = ""
    """The reader's working directory: files below it are named relative to it."""
    is_strict: bool = False
    """Whether an inconclusive check counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """``draw`` is pure: the same document and surface give the same text. ``suffix`` is the usual file ending."""

    id: str
    summary: str
    suffix: str
    draw: Callable[[Document, Surface], str]
    kinds: tuple[str, ...] = ()
    """The kinds of report that it draws; empty for all."""
    least_rows: int = 0
    """Rows of long tables that it shows in any case."""


def renderer(
    renderer_id: str, summary: str, *, suffix: str, kinds: tuple[str, ...] = (), least_rows: int = 0
) -> Callable[[Callable[[Document, Surface], str]], Renderer]:
    """Make a Renderer of a function."""

    def make(draw: Callable[[Document, Surface], str]) -> Renderer:
        return Renderer(id=renderer_id, summary=summary, suffix=suffix, draw=draw, kinds=kinds, least_rows=least_rows)

    return make


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """``describe`` turns a value of ``type`` into a document.

    Its JSON contract ``schema`` holds the type's fields, and before them ``first``: keys that are no fields. A type
    whose JSON has another form has ``write`` and ``read`` of its own.

    ``read`` raises RecordingError where the JSON is not what the schema says.
    """

    id: str
    type: type
    schema: str
    describe: Callable[[Any, Surface], Document]
    first: Callable[[Any], Mapping[str, Any]] = lambda _: {}
    write: Callable[[Any], Mapping[str, Any]] | None = None
    read: Callable[[Mapping[str, Any]], Any] | None = None
