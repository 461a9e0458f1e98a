"""Forecasts and the measurements of trials -> .hotloop/history.jsonl, and from there into later reports."""

from __future__ import annotations

import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

from hotloop.core.tuning import Tuning

from .statistics import LEAST_PAIRS

NAME = "history.jsonl"
_MOST_BYTES = 4 << 20
_MOST_LINES = 1_000
"""Only the newest count."""


def remember_forecasts(tuning: Tuning, history: Path) -> None:
    """Append the forecast error of every measured trial with a forecast.

    The error is forecast minus measured saving, both as fractions of the time per unit.
    """
    lines = []
    for trial in tuning.trials:
        forecast = trial.forecast.get("mid_ratio")
        if isinstance(forecast, float) and trial.speedup_ratio and trial.n >= LEAST_PAIRS:
            error = forecast - (1.0 - 1.0 / trial.speedup_ratio)
            entry = {"technique": trial.id, "forecast_ratio": forecast, "error_ratio": error, "wall_s": time.time()}
            lines.append(json.dumps(entry) + "\n")
    if lines:
        with history.open("a", encoding="utf-8") as file:
            file.write("".join(lines))


def read_history(history: Path) -> dict[str, Any]:
    """``n`` and ``median_abs_error`` of past forecasts (None without any). Lines that say nothing are left out."""
    try:
        with history.open("rb") as file:
            file.seek(max(0, history.stat().st_size - _MOST_BYTES))  # the first line may be cut off: it says nothing
            lines = file.read(_MOST_BYTES).splitlines()[-_MOST_LINES:]
    except OSError:
        lines = []
    errors = []
    for line in lines:
        try:
            error = json.loads(line)["error_ratio"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(error, float) and math.isfinite(error):
            errors.append(abs(error))
    return {"n": len(errors), "median_abs_error": statistics.median(errors) if errors else None}
