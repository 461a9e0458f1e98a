"""Tuning -> what its goal adds to the report: throughput, memory and cost of every arm, and a plot of speed and memory.

Nothing here computes a result: ratios and bounds come from the report, this turns them into words and places on a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotloop.core.findings import Value
from hotloop.core.tuning import Trial, Tuning
from hotloop.report import text as t
from hotloop.report.tables import Table

UNKNOWN = t.UNKNOWN
WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 18, 46
TICKS = 5
_RATE = {"token": "tokens_per_s", "sample": "samples_per_s", "step": "steps_per_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point of the plot in pixels; bars are cut at the edges of the plot."""

    number: int
    name: str
    standing: str
    x: float
    y: float
    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Speed-up to the right, memory saving upwards; ``ticks`` are places and their labels."""

    marks: tuple[Mark, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    unchanged: tuple[float, float]
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


def describe_ratio(goal: str, trial: Trial) -> str:
    """The trial's ratio in the words of the goal, with its interval."""
    better, worse = {"memory": (" smaller", " larger"), "cost": (" cheaper", " dearer")}.get(goal, ("", ""))
    return _words(*goal_ratio(goal, trial), better, worse)


def _words(ratio: float | None, low: float | None, high: float | None, better: str, worse: str) -> str:
    """A ratio with its interval. With words for both directions nothing is '0.97x smaller': it is 1.03x larger."""
    if not ratio:
        return UNKNOWN
    turned = bool(worse) and ratio < 1
    if turned:
        ratio, low, high = 1 / ratio, 1 / high if high else None, 1 / low if low else None
    bounds = "" if low is None or high is None else f" ({low:.2f}–{high:.2f})"
    return f"{ratio:.2f}x{worse if turned else better}{bounds}"


def goal_ratio(goal: str, trial: Trial) -> tuple[float | None, float | None, float | None]:
    """Ratio and bounds by which the goal judges, above 1 where the trial is better."""
    if goal in ("memory", "cost"):
        held = trial.memory if goal == "memory" else trial.cost
        ratio, low, high = (_number(held, key) for key in ("saving_ratio", "low_ratio", "high_ratio"))
        return ratio, low, high
    return trial.speedup_ratio, trial.low_ratio, trial.high_ratio


def longest_ratio(tuning: Tuning) -> float:
    """The largest ratio of the goal, at least 1: the length of the longest bar."""
    return max([1.0, *(goal_ratio(tuning.goal, trial)[0] or 0.0 for trial in tuning.trials)])


def describe_measured(trial: Trial, unit: str) -> str:
    """Throughput, time per unit, peak memory and cost in one line; empty when nothing was measured."""
    if not trial.measured:
        return ""
    parts = [
        t.format_rate(_number(trial.measured, _RATE[unit]), f"{unit}s"),
        f"{t.format_duration(_time_per_unit(trial, unit))} per {unit}",
        f"peak {_peak(trial)}",
    ]
    cost = _describe_cost(trial, unit)
    if cost != UNKNOWN:
        parts.append(f"cost {cost}")
    return ", ".join(part for part in parts if not part.startswith(UNKNOWN))


def describe_memory(trial: Trial) -> str:
    """The comparison of peaks with its interval; empty when there is none."""
    ratio = _number(trial.memory, "saving_ratio")
    if ratio is None:
        return ""
    low, high = _number(trial.memory, "low_ratio"), _number(trial.memory, "high_ratio")
    return f"peak memory {_words(ratio, low, high, ' smaller', ' larger')}: {trial.memory.get('verdict')}"


def describe_side(goal: str, trial: Trial) -> str:
    """What the goal does not judge by itself: the other half of a trade."""
    if goal == "pareto":
        return describe_memory(trial)
    if goal in ("memory", "cost") and trial.speedup_ratio is not None:
        return f"speed {describe_ratio('speed', trial)} of before"
    return ""


def work_unit(tuning: Tuning) -> str:
    """The unit that every measured arm counted: tokens, else samples, else steps."""
    held = [one.measured for one in (tuning.reference, *tuning.trials) if one is not None and one.measured]
    for unit in ("token", "sample"):
        if held and all(_number(one, _RATE[unit]) is not None for one in held):
            return unit
    return "step"


def goal_tables(tuning: Tuning) -> tuple[Table, ...]:
    """What every arm measured; and with the goal pareto where each one stands."""
    tables = []
    if tuning.reference is not None and tuning.reference.measured:
        tables.append(_tell_measured(tuning, tuning.reference))
    if tuning.pareto:
        tables.append(_tell_standings(tuning))
    return tuple(tables)


def _tell_measured(tuning: Tuning, reference: Trial) -> Table:
    unit = work_unit(tuning)
    priced = tuning.price_per_hour is not None
    rows = []
    for trial in (reference, *tuning.trials):
        if not trial.measured:
            rows.append((trial.id, *[trial.verdict.value, UNKNOWN, UNKNOWN, UNKNOWN, *([UNKNOWN] if priced else [])]))
            continue
        first = trial is reference
        row = [
            trial.id,
            t.format_rate(_number(trial.measured, _RATE[unit]), f"{unit}s"),
            t.format_duration(_time_per_unit(trial, unit)),
            _peak(trial),
            "1" if first else describe_ratio("speed", trial),
        ]
        if priced:
            value = _number(trial.cost, _cost_key(unit))
            row.append(UNKNOWN if value is None else t.format_number(value))
        rows.append(tuple(row))
    header = ["configuration", "throughput", f"time per {unit}", "peak memory per rank", "speed-up (interval)"]
    cost = "cost per 1,000 steps" if unit == "step" else f"cost per million {unit}s"
    note = f"Means over the processes of each; speed-ups are relative to {reference.id}, in pairs."
    return Table(title="Measured", note=note, header=tuple(header + [cost] * priced), rows=tuple(rows))


def _tell_standings(tuning: Tuning) -> Table:
    rows = []
    for number, one in enumerate(tuning.pareto):
        rows.append(
            (
                str(number),
                str(one.get("id")),
                str(one.get("standing")) + (f" (by {one['by']})" if one.get("by") else ""),
                _with_bounds(one, "speedup"),
                _with_bounds(one, "saving"),
            )
        )
    return Table(
        title="Speed and memory",
        note="Front: nothing is better in one and no worse in the other. Bounds of a row hold together.",
        header=("point", "candidate", "standing", "speed-up", "memory saving"),
        rows=tuple(rows),
    )


def plot_points(points: Sequence[Mapping[str, Value]]) -> Plot | None:
    """Where the points of a pareto tuning lie on the page; None with fewer than two."""
    if len(points) < 2:
        return None
    xs = [_number(one, "speedup_ratio") or 1.0 for one in points]
    ys = [_number(one, "saving_ratio") or 1.0 for one in points]
    across, up = _Axis(xs, LEFT, WIDTH - RIGHT), _Axis(ys, HEIGHT - BOTTOM, TOP)
    marks = tuple(
        Mark(
            number=number,
            name=str(one.get("id")),
            standing=str(one.get("standing")).replace(" ", "-"),
            x=across.place(x),
            y=up.place(y),
            left=across.place(_number(one, "speedup_low_ratio") or x),
            right=across.place(_number(one, "speedup_high_ratio") or x),
            top=up.place(_number(one, "saving_high_ratio") or y),
            bottom=up.place(_number(one, "saving_low_ratio") or y),
        )
        for number, (one, x, y) in enumerate(zip(points, xs, ys, strict=True))
    )
    return Plot(marks=marks, x_ticks=across.ticks(), y_ticks=up.ticks(), unchanged=(across.place(1.0), up.place(1.0)))


class _Axis:
    """Ratios on a logarithmic axis, so that twice and half lie equally far from 1."""

    def __init__(self, values: Sequence[float], start: int, end: int) -> None:
        low, high = min(1.0, *values), max(1.0, *values)
        pad = max(0.03, 0.15 * math.log(high / low))
        self._low, self._high = math.log(low) - pad, math.log(high) + pad
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        share = (math.log(max(value, 1e-9)) - self._low) / (self._high - self._low)
        return round(self._start + min(1.0, max(0.0, share)) * (self._end - self._start), 1)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        low, high = math.exp(self._low), math.exp(self._high)
        for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0):
            count = math.floor(high / step) - math.ceil(low / step) + 1
            if count <= TICKS:
                first = math.ceil(low / step)
                return tuple(
                    (self.place(step * (first + i)), f"{step * (first + i):.2f}".rstrip("0").rstrip("."))
                    for i in range(max(0, count))
                )
        return ((self.place(1.0), "1"),)


def _time_per_unit(trial: Trial, unit: str) -> float | None:
    rate = _number(trial.measured, _RATE[unit])
    return None if not rate else 1e9 / rate


def _peak(trial: Trial) -> str:
    peak = _number(trial.measured, "rank_peak_bytes") or _number(trial.measured, "peak_bytes")
    return t.format_bytes(peak)


def _describe_cost(trial: Trial, unit: str) -> str:
    key = _cost_key(unit)
    value = _number(trial.cost, key)
    return UNKNOWN if value is None else f"{t.format_number(value)} {key.replace('_', ' ').replace('1000', '1,000')}"


def _cost_key(unit: str) -> str:
    return "per_1000_steps" if unit == "step" else f"per_million_{unit}s"


def _with_bounds(one: Mapping[str, Value], name: str) -> str:
    ratio, low, high = (_number(one, f"{name}{part}_ratio") for part in ("", "_low", "_high"))
    if ratio is None or low is None or high is None:
        return UNKNOWN
    return "1" if low == high == 1.0 else f"{ratio:.2f}x ({low:.2f}–{high:.2f})"


def _number(held: Mapping[str, Value], key: str) -> float | None:
    value = held.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
