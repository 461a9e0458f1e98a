"""Renderer: a way to draw a Document, in one file under renderers/. The decorator turns a function into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What is known beside the report. The caller reads terminal and environment, never a view or a renderer."""

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
