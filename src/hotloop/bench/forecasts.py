"""A recorded process and its usual step -> forecasts of opportunities: measured now, or read again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.core.analysis import Forecast
from hotloop.core.step_times import StepTimes

from .probe import make_forecasts, make_request
from .program import ProbeError, run_probe

TIMEOUT_S = 45.0
FEWEST_STEPS = 5
"""A training with fewer steady steps is not probed."""


def measure_forecasts(
    process: Mapping[str, Any],
    facts: Sequence[Mapping[str, Any]],
    step: StepTimes,
    steady_count: int,
    folder: Path,
    *,
    emit: Callable[[str], None],
    on_begin: Callable[[], None],
) -> dict[str, Forecast]:
    """Measure in a child of the process's interpreter, and keep the result in the run folder.

    ``on_begin`` is called before that, ``emit`` gets what went wrong. Ctrl-C skips it.
    """
    request = make_request(facts, step)
    if request is None or steady_count < FEWEST_STEPS:
        return {}
    on_begin()
    try:
        result = run_probe(request, str(process.get("executable") or sys.executable), TIMEOUT_S)
    except KeyboardInterrupt:
        return {}
    except ProbeError as error:
        emit(f"opportunities were not measured: {error}")
        return {}
    try:
        (folder / "probe.json").write_text(json.dumps({"request": request, "result": result}))
    except OSError as error:
        emit(f"cannot keep the probe's result in {folder}: {error.strerror}")
    return make_forecasts(request, result, step)


def recall_forecasts(recorded: Mapping[str, Any] | None, step: StepTimes) -> dict[str, Forecast]:
    """The forecasts that were measured when the run ended; none when there were none."""
    if not isinstance(recorded, Mapping):
        return {}
    request, result = recorded.get("request"), recorded.get("result")
    if not isinstance(request, Mapping) or not isinstance(result, Mapping):
        return {}
    return make_forecasts(request, result, step)


def recall_cpu_peaks(folder: Path) -> Mapping[str, float]:
    """FLOPs a second of large products by element type, as the probe of this run measured them; empty without one."""
    try:
        peak = json.loads((folder / "probe.json").read_text())["result"]["peak"]["flops_per_s"]
        return {str(kind): float(rate) for kind, rate in peak.items() if rate > 0}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
