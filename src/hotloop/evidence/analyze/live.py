"""Rows and facts of a growing recording -> LiveRank: its newest steps, measured as a report measures steady ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hotloop.core.live import LiveRank
from hotloop.core.phases import PHASES
from hotloop.core.recording import FIELD, STEP_FIELDS

from .facts import read_count, read_float, read_text
from .partition import find_validation, split_phases
from .segments import BoolColumn, IntColumn, Steps, build_steps
from .units import measure_units

MOST_METRICS = 64
MOST_ROWS_PER_STEP = 16
"""More rows than this per step of the window are not kept, whatever they are."""
_INDEX, _MERGED = FIELD["index"], FIELD["rows_merged"]
_BEFORE_ANY_ROW = np.zeros((0, len(STEP_FIELDS)), dtype=np.int64)


class LiveProcess:
    """The part of a running process that is kept: the newest ``window_count`` steps, and the number before them.

    If more rows come than fit the window, the older ones are counted and dropped.
    """

    def __init__(self, window_count: int) -> None:
        self._window_count = window_count
        self._rows: IntColumn = _BEFORE_ANY_ROW
        self._first_kept = 0  # rows of a smaller index were dropped
        self._steps_before = 0
        self._described: LiveRank | None = None  # of these rows
        self._process: Mapping[str, Any] = {}
        self._device: Mapping[str, Any] = {}
        self._metrics: dict[str, float] = {}
        self._own_metrics: set[str] = set()

    def add(self, rows: IntColumn, facts: Iterable[Mapping[str, Any]]) -> None:
        """``rows`` is n x STEP_FIELDS in any order; a row that is known replaces the version with fewer rows merged."""
        for fact in facts:
            self._add_fact(fact)
        rows = rows[rows[:, _INDEX] >= self._first_kept]
        if not len(rows):
            return
        rows = np.concatenate((self._rows, rows))
        rows = rows[np.lexsort((rows[:, _MERGED], rows[:, _INDEX]))]
        rows = rows[np.append(rows[1:, _INDEX] != rows[:-1, _INDEX], True)]
        if np.array_equal(rows, self._rows):
            return
        self._rows, self._described = rows, None
        if len(self._rows) > 2 * self._window_count:
            self._let_go()

    def _let_go(self) -> None:
        steps = build_steps(self._rows, closed=False)
        window = self._find_window(steps)
        if steps.anchor_index is not None and not window.all():
            # Without an optimizer, nothing is dropped: the backwards may all turn out to belong to the first step.
            self._steps_before += int(steps.weight[~window].sum())
            self._first_kept = int(steps.last_row[~window].max()) + 1
        excess = len(self._rows) - MOST_ROWS_PER_STEP * self._window_count
        if excess > 0 and self._first_kept <= self._rows[excess - 1, _INDEX]:
            self._first_kept = int(self._rows[excess, _INDEX])
            self._steps_before += int(steps.weight[steps.last_row < self._first_kept].sum())
        self._rows = self._rows[self._rows[:, _INDEX] >= self._first_kept]

    def _find_window(self, steps: Steps) -> BoolColumn:
        """The last entries that contain ``window_count`` steps."""
        behind = np.cumsum(steps.weight[::-1])[::-1] - steps.weight
        found: BoolColumn = behind < self._window_count
        return found

    def _add_fact(self, fact: Mapping[str, Any]) -> None:
        kind = fact.get("kind")
        if kind == "process":
            self._process = fact
        elif kind == "memory" and isinstance(fact.get("device"), Mapping):
            self._device = fact["device"]
        elif kind == "metric":
            name, value = read_text(fact, "name"), read_float(fact, "value")
            is_own = fact.get("watched") is not True
            if name is None or value is None or not (is_own or name not in self._own_metrics):
                return  # hotloop does not interpret a loss that the script records
            if name in self._metrics or len(self._metrics) < MOST_METRICS:
                self._metrics[name] = value
                self._own_metrics |= {name} if is_own else set()

    @property
    def end_ns(self) -> int | None:
        """When the newest row ended, since the process's anchor; None before the first."""
        return int(self._rows[-1, FIELD["end_ns"]]) if len(self._rows) else None

    @property
    def anchor_wall_s(self) -> float | None:
        return read_float(self._process, "anchor_wall_s")

    def describe(self, *, age_s: float | None, is_closed: bool) -> LiveRank | None:
        """None before the first row."""
        if not len(self._rows):
            return None
        if self._described is None or self._described.is_closed != is_closed:
            self._described = self._measure(is_closed=is_closed)
        total_bytes = read_count(self._device, "total")
        return replace(
            self._described, age_s=age_s, device_total_bytes=total_bytes or None, metrics=dict(self._metrics)
        )

    def _measure(self, *, is_closed: bool) -> LiveRank:
        steps = build_steps(self._rows, closed=is_closed)
        window = self._find_window(steps)
        validation = find_validation(steps)
        phases = split_phases(steps, validation)
        phase_ns = {name: int(phases[name][window].sum()) for name in PHASES}
        window_count, window_ns = int(steps.weight[window].sum()), sum(phase_ns.values())
        units = None
        if window_count and window_ns:
            units = measure_units(steps, window, validation.is_validating, seeks_drift=False)
        process = self._process

        def rate(per_step: float | None) -> float | None:
            return None if per_step is None else per_step * window_count * 1e9 / window_ns

        return LiveRank(
            rank=read_count(process, "rank"),
            local_rank=read_count(process, "local_rank"),
            host=read_text(process, "host") or "?",
            pid=read_count(process, "pid") or 0,
            restart=read_count(process, "restart") or 0,
            world_size=max(1, read_count(process, "world_size") or 1),
            steps_count=self._steps_before + steps.count,
            window_count=window_count,
            window_ns=window_ns,
            phase_ns=phase_ns,
            samples_per_s=None if units is None else rate(units.samples_per_step),
            tokens_per_s=None if units is None else rate(units.tokens_per_step),
            rss_bytes=self._read_level("rss_bytes"),
            device_allocated_bytes=self._read_level("device_allocated_bytes"),
            device_reserved_bytes=self._read_level("device_reserved_bytes"),
            device_total_bytes=None,
            utilization_ratio=None,
            age_s=None,
            is_closed=is_closed,
        )

    def _read_level(self, name: str) -> int | None:
        level = int(self._rows[-1, FIELD[name]])
        return level if level > 0 else None
