"""Report -> text: terminal lines, one HTML page, or the JSON contract. Renderers compute no number."""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.core.catalogue import Catalogue
from hotloop.core.report import Report

from .check_renderer import CheckRenderer, CheckSurface
from .renderer import Renderer, Surface, renderer

__all__ = [
    "CHECK_RENDERERS",
    "RENDERERS",
    "CheckRenderer",
    "CheckSurface",
    "Renderer",
    "Surface",
    "render_html",
    "render_json",
    "render_terminal",
    "renderer",
]

RENDERERS: Catalogue[Renderer] = Catalogue(Renderer, "hotloop.report.renderers")
CHECK_RENDERERS: Catalogue[CheckRenderer] = Catalogue(CheckRenderer, "hotloop.report.renderers")


def render_terminal(
    report: Report,
    *,
    width: int,
    color: bool,
    unicode: bool = True,
    manuals: Mapping[str, str] | None = None,
    top: int = 10,
    folder: str = "",
) -> str:
    """The report as lines of text, at most ``width`` columns wide (commands are never broken).

    ``color`` adds terminal colours; without it the text is plain. ``unicode`` False gives ASCII only.
    ``manuals`` maps a rule's id to its manual; its advice stands beside the fix. ``top`` cuts a trace's tables.
    Files below ``folder`` are named relative to it.
    """
    surface = Surface(width=width, color=color, unicode=unicode, manuals=manuals or {}, top=top, folder=folder)
    return RENDERERS["terminal"].render(report, surface)


def render_html(report: Report, *, manuals: Mapping[str, str] | None = None, folder: str = "") -> str:
    """The report as one HTML page that loads nothing from anywhere.

    ``manuals`` maps a rule's id to its manual in Markdown, shown under its findings: what to do open, the rest
    folded. Files below ``folder`` are named relative to it.
    """
    return RENDERERS["html"].render(report, Surface(manuals=manuals or {}, folder=folder))


def render_json(report: Report) -> str:
    """The report as the JSON text of schema hotloop.report/1."""
    return RENDERERS["json"].render(report, Surface())
