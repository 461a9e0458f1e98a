"""check-json: the Check as its stable contract, hotloop.check/1."""

from __future__ import annotations

import json

from hotloop.core.check import Check, check_to_json
from hotloop.core.errors import InvariantError
from hotloop.report.check_renderer import CheckSurface, check_renderer


@check_renderer("check-json", "the check's contract for other programs")
def render_check_json(check: Check, surface: CheckSurface) -> str:
    """Indented JSON; a number that JSON has no form for is refused."""
    try:
        return json.dumps(check_to_json(check), allow_nan=False, indent=1)
    except ValueError as error:
        raise InvariantError(f"the check holds a number that is not finite: {error}") from error
