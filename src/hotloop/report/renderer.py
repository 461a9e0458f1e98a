"""Renderer: a way to draw a Report, in one file. The decorator turns a function into a frozen Renderer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hotloop.core.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What a renderer may know beside the report. The caller reads terminal and environment, never the renderer."""

    width: int = 80
    """Columns of the terminal."""
    color: bool = False
    unicode: bool = True
    """False where the stream cannot carry more than ASCII."""
    manuals: Mapping[str, str] = field(default_factory=dict)
    """Rule id -> its manual in Markdown."""
    top: int = 10
    """Rows of a trace's long tables."""
    folder: str = ""
    """The reader's working directory: files below it are named relative to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """``render`` is pure: the same report and surface give the same text. ``suffix`` is the usual file ending."""

    id: str
    summary: str
    suffix: str
    render: Callable[[Report, Surface], str]


def renderer(renderer_id: str, summary: str, *, suffix: str) -> Callable[[Callable[[Report, Surface], str]], Renderer]:
    """Make a Renderer of a function."""

    def make(render: Callable[[Report, Surface], str]) -> Renderer:
        return Renderer(id=renderer_id, summary=summary, suffix=suffix, render=render)

    return make
