"""verdict.json: what `hotloop run` leaves of a run's report, for a list of many runs (docs/formats.md)."""

from __future__ import annotations

import json

from .report import Report

VERDICT_FILE = "verdict.json"


def verdict_to_json(report: Report) -> str:
    """The text of the file; the figures are null where no step was seen."""
    step = report.step
    content = {
        "schema": "hotloop.verdict/1",
        "verdict": report.verdict,
        "steps_count": None if step is None else step.count,
        "step_mean_ns": None if step is None else step.mean_ns,
    }
    return json.dumps(content)
