"""The order of the stages: a recorded run -> Report (runs.py), a profiler's files -> Report (traces.py)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .runs import Forecasts as Forecasts
    from .runs import Probe as Probe
    from .runs import no_probe as no_probe
    from .runs import read_report as read_report
    from .runs import report_run as report_run

__all__ = ["Forecasts", "Probe", "no_probe", "read_report", "report_run"]


def __getattr__(name: str) -> Any:
    # Reading a profiler's file needs nothing of what reads a recorded run.
    if name not in __all__:
        raise AttributeError(f"module 'hotloop.pipeline' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module("hotloop.pipeline.runs"), name)
