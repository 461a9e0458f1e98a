"""A few measured steps -> the efficiency of this machine and this code: the real times of compute and host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from hotloop.ahead.plan.hardware_files import Efficiency, read_efficiency
from hotloop.ahead.plan.time import predict_step
from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware
from hotloop.core.workload import Workload

STEPS = 12
FACTOR_LIMIT = 50.0
"""A larger correction means that the workload differs from the measured one."""
LEAST_ERROR = 0.05
FEW_ERROR = 0.2
"""With fewer than three rows, nothing shows how well the calibration forecasts: a rule of thumb."""
HOLD = 0.02
"""Keeps a factor unchanged if the rows do not determine it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One optimizer step of a known workload, measured by `hotloop run` or a stopwatch, without input wait."""

    workload: Workload
    hardware: Hardware
    step_ns: float


def calibrate(rows: Sequence[MeasuredStep], efficiency: Efficiency | None = None) -> Efficiency:
    """The efficiency with one factor for compute and one for the host's launches, by relative least squares.

    Fewer than three rows give one factor for both. The range covers four fifths of the rows, each predicted from the
    others. Raises UsageError if no factor explains the rows.
    """
    if not rows:
        raise UsageError("calibration needs at least one measured step: give its workload and its time in ns")
    for row in rows:
        if row.step_ns <= 0:
            raise UsageError(f"a measured step takes {row.step_ns} ns: give a time above 0")
    start = read_efficiency(rows[0].hardware) if efficiency is None else efficiency
    compute, host = _fit(rows, start)
    if not 1 / FACTOR_LIMIT < compute < FACTOR_LIMIT:
        raise UsageError(
            f"measured compute time is {compute:.3g} times the predicted time: check the model, batch and GPU of the "
            "measured run"
        )
    return start.scaled(compute=compute, host=host, error_ratio=_forecast_error(rows, start))


def _fit(rows: Sequence[MeasuredStep], start: Efficiency) -> tuple[float, float]:
    """Factors on compute and host: Gauss-Newton on their logarithms, a weak square holding each near 1."""
    tied = len(rows) < 3

    def errors(x: float, y: float) -> list[float]:
        trial = start.scaled(compute=exp(x), host=exp(y), error_ratio=start.error_ratio)
        return [log(predict_step(row.workload, row.hardware, trial).mid_ns / row.step_ns) for row in rows]

    x = y = 0.0
    now, small = errors(x, y), 1e-4
    for _ in range(STEPS):
        dx = [(b - a) / small for a, b in zip(now, errors(x + small, y + small if tied else y), strict=True)]
        dy = [0.0 if tied else (b - a) / small for a, b in zip(now, errors(x, y + small), strict=True)]
        hold = HOLD**2 if len(rows) > 1 else 1e-9
        xx, yy = sum(a * a for a in dx) + hold, sum(b * b for b in dy) + hold
        xy = sum(a * b for a, b in zip(dx, dy, strict=True))
        gx = sum(a * e for a, e in zip(dx, now, strict=True)) + hold * x
        gy = sum(b * e for b, e in zip(dy, now, strict=True)) + hold * (0.0 if tied else y)
        scale = xx * yy - xy * xy
        x -= max(-1.0, min(1.0, (yy * gx - xy * gy) / scale))
        y = x if tied else y - max(-1.0, min(1.0, (xx * gy - xy * gx) / scale))
        now = errors(x, y)
    return exp(x), exp(y)


def _forecast_error(rows: Sequence[MeasuredStep], start: Efficiency) -> float:
    if len(rows) < 3:
        return min(FEW_ERROR, start.error_ratio)
    left: list[float] = []
    for index, row in enumerate(rows):
        compute, host = _fit([*rows[:index], *rows[index + 1 :]], start)
        trial = start.scaled(compute=compute, host=host, error_ratio=start.error_ratio)
        left.append(abs(log(predict_step(row.workload, row.hardware, trial).mid_ns / row.step_ns)))
    return max(LEAST_ERROR, exp(sorted(left)[-(-4 * len(left) // 5) - 1]) - 1)
