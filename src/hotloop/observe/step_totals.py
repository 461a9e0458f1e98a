"""Finished StepRecords -> what a summary of them says: statistics of every phase, in bounded memory."""

from __future__ import annotations

import math
from collections import deque

from .monitor_summary import MetricSummary, PhaseSummary
from .series import Series
from .spans import Path, PhaseTotals, StepRecord

RECENT = 2048
"""So many of the newest steps are kept whole, for the rules."""


class StepTotals:
    """Steps added one by one. The host's times are complete at once, the device's when they arrive."""

    def __init__(self) -> None:
        self.steps_count = 0
        self.recent: deque[StepRecord] = deque(maxlen=RECENT)
        self._phases: dict[Path, Series] = {}
        self._own_ns: dict[Path, int] = {}
        self._calls: dict[Path, int] = {}
        self._device_ns: dict[Path, int] = {}
        self._device_steps: dict[Path, int] = {}
        self._device_records = 0

    def add(self, record: StepRecord) -> None:
        self.steps_count += 1
        self.recent.append(record)
        for path, totals in record.phases.items():
            series = self._phases.get(path)
            if series is None:
                series = self._phases[path] = Series()
                self._own_ns[path] = self._calls[path] = 0
            series.add(totals.total_ns)
            self._own_ns[path] += totals.own_ns
            self._calls[path] += totals.calls

    def add_device(self, record: StepRecord) -> None:
        """The device times of a record are complete, as far as they will ever be known."""
        self._device_records += 1
        for path, totals in record.phases.items():
            if totals.device_known:
                self._device_ns[path] = self._device_ns.get(path, 0) + totals.device_ns
            else:
                self._device_steps[path] = self._device_steps.get(path, 0) - 1

    def step(self) -> PhaseSummary | None:
        """The step itself; None when there is none."""
        return self._summarize(()) if self.steps_count else None

    def phases(self) -> tuple[PhaseSummary, ...]:
        """Every phase, each followed by those inside it, in the order in which they were first seen."""
        found: list[PhaseSummary] = []

        def visit(parent: Path) -> None:
            for path in self._phases:
                if len(path) == len(parent) + 1 and path[:-1] == parent:
                    found.append(self._summarize(path))
                    visit(path)

        visit(())
        return tuple(found)

    def _summarize(self, path: Path) -> PhaseSummary:
        series, step = self._phases[path], self._phases[()]
        stats = series.stats(self.steps_count - series.count)
        if stats is None:
            raise AssertionError(f"phase {path} without a step")
        device_steps = self._device_records + self._device_steps.get(path, 0)
        known = path in self._device_ns and device_steps > 0
        whole_ns = step.total or 1
        return PhaseSummary(
            path=path,
            calls_count=self._calls[path],
            time_ns=stats,
            own_ns=self._own_ns[path] / self.steps_count,
            share_ratio=series.total / whole_ns,
            own_share_ratio=self._own_ns[path] / whole_ns,
            device_mean_ns=self._device_ns[path] / device_steps if known else None,
            device_steps_count=device_steps if known else 0,
        )


class MetricTotals:
    """Values of the metrics by name."""

    def __init__(self) -> None:
        self._values: dict[str, Series] = {}
        self._last: dict[str, float | None] = {}
        self._nonfinite: dict[str, int] = {}
        self._unknown: dict[str, int] = {}

    def add(self, name: str, value: float | None) -> None:
        """Take a value; None when it could not be read without waiting for the device."""
        series = self._values.setdefault(name, Series())
        if value is None:
            self._unknown[name] = self._unknown.get(name, 0) + 1
        elif math.isfinite(value):
            series.add(value)
            self._last[name] = value
        else:
            self._nonfinite[name] = self._nonfinite.get(name, 0) + 1
            self._last[name] = None

    def summarize(self) -> tuple[MetricSummary, ...]:
        return tuple(
            MetricSummary(
                name=name,
                values=series.stats(),
                last=self._last.get(name),
                nonfinite_count=self._nonfinite.get(name, 0),
                unknown_count=self._unknown.get(name, 0),
            )
            for name, series in self._values.items()
        )


def device_own_ns(record: StepRecord) -> dict[Path, int] | None:
    """The device's time of every phase without the phases inside it; None unless all of it is known."""
    if record.waiting or not all(totals.device_known for totals in record.phases.values()):
        return None
    own = {path: totals.device_ns for path, totals in record.phases.items()}
    for path, totals in record.phases.items():
        if path:
            own[path[:-1]] -= totals.device_ns
    return own


def host_own_ns(record: StepRecord) -> dict[Path, int]:
    """The host's time of every phase without the phases inside it; they sum to the step."""
    own: dict[Path, int] = {path: _own(totals) for path, totals in record.phases.items()}
    return own


def _own(totals: PhaseTotals) -> int:
    return totals.own_ns
