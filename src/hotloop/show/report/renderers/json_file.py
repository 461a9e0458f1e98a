"""json: a report as its stable contract, hotloop.report/1 or that of its kind."""

from __future__ import annotations

import json

from hotloop.core.errors import InvariantError
from hotloop.show.report.document import Document, Surface, renderer


@renderer("json", "stable JSON for other programs", suffix=".json")
def draw_json(document: Document, surface: Surface) -> str:
    """The report as indented JSON; a number that JSON has no form for is refused."""
    try:
        return json.dumps(document.data(), allow_nan=False, indent=1)
    except ValueError as error:
        raise InvariantError(f"the report contains a number that is not finite: {error}") from error
