"""json: the Report as its stable contract, hotloop.report/1."""

from __future__ import annotations

import json

from hotloop.core.errors import InvariantError
from hotloop.core.report import Report, report_to_json
from hotloop.report.renderer import Surface, renderer


@renderer("json", "the report contract for other programs", suffix=".json")
def render_json(report: Report, surface: Surface) -> str:
    """The report as indented JSON; a number that JSON has no form for is refused."""
    try:
        return json.dumps(report_to_json(report), allow_nan=False, indent=1)
    except ValueError as error:
        raise InvariantError(f"the report holds a number that is not finite: {error}") from error
