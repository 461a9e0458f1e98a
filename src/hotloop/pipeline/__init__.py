"""The order of the stages: a recorded run -> Report (runs.py), a profiler's files -> Report (traces.py)."""

from __future__ import annotations

from .runs import Forecasts, Probe, no_probe, read_report, report_run

__all__ = ["Forecasts", "Probe", "no_probe", "read_report", "report_run"]
