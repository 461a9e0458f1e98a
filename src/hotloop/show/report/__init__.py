"""A typed report -> a Document (views) -> text (renderers). Nothing here computes a result.

A kind of report is one file in views/, a format is one file in renderers/; the catalogues find both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hotloop.core.catalogue import Catalogue
from hotloop.core.decode import decode_contract, encode_contract
from hotloop.core.errors import InvariantError, RecordingError, UsageError

from .document import Document, Renderer, Surface, View, renderer

__all__ = ["RENDERERS", "VIEWS", "Document", "Renderer", "Surface", "View", "read_report_json", "render", "renderer"]

RENDERERS: Catalogue[Renderer] = Catalogue(Renderer, "hotloop.show.report.renderers")
VIEWS: Catalogue[View] = Catalogue(View, "hotloop.show.report.views")


def render(format_id: str, report: Any, surface: Surface | None = None, **known: Any) -> str:
    """The report as text of one format. ``surface`` or its fields by name say where it is shown.

    Raises UsageError for an unknown format, or a format that does not draw this kind of report.
    """
    renderer = RENDERERS[format_id]
    surface = Surface(**known) if surface is None else replace(surface, **known)
    view = next((view for view in VIEWS.values() if isinstance(report, view.type)), None)
    if view is None:
        raise InvariantError(f"no view renders a {type(report).__name__}")
    if renderer.kinds and view.id not in renderer.kinds:
        fitting = ", ".join(one.id for one in RENDERERS.values() if not one.kinds or view.id in one.kinds)
        only = " and ".join(renderer.kinds)
        raise UsageError(f"{format_id} draws only reports of {only}; one of {view.id} can be drawn as {fitting}")
    document = view.describe(report, replace(surface, top=max(surface.top, renderer.least_rows)))
    known_by_all = {"kind": view.id, "subject": report, "version": report.tool_version}
    return renderer.draw(replace(document, **known_by_all, data=partial(_write_json, view, report)), surface)


def _write_json(view: View, report: Any) -> Mapping[str, Any]:
    return encode_contract(view.schema, report, **view.first(report)) if view.write is None else view.write(report)


def read_report_json(content: Any) -> Any:
    """The typed report that this JSON holds, whatever its kind.

    Raises RecordingError where it cannot be drawn, and says which reports can.
    """
    schema = content.get("schema") if isinstance(content, Mapping) else None
    for view in VIEWS.values():
        if schema == view.schema:
            return decode_contract(view.type, content) if view.read is None else view.read(content)
    known = ", ".join(view.schema for view in VIEWS.values())
    raise RecordingError(f"its schema is {str(schema)[:80]!r}, which cannot be rendered; known: {known}")
