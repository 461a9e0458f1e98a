"""Calibration finds the factors that made the times, and says what it cannot find."""

from __future__ import annotations

import pytest

from hotloop.ahead.plan.calibrate import MeasuredStep, calibrate
from hotloop.ahead.plan.time import predict_step

from .build_plan import DEVICE, IDEAL, make_workload

START = IDEAL.scaled(compute=1.0, host=1.0, error_ratio=0.25)


def measured(compute: float, host: float, batches: tuple[int, ...]) -> list[MeasuredStep]:
    true = START.scaled(compute=compute, host=host, error_ratio=0.0)
    workloads = [make_workload(micro_batch=batch, gpus=1) for batch in batches]
    return [
        MeasuredStep(workload=one, hardware=DEVICE, step_ns=predict_step(one, DEVICE, true).mid_ns) for one in workloads
    ]


def test_one_row_scales_compute() -> None:
    rows = measured(2.0, 1.0, (4,))
    after = calibrate(rows, START)
    assert after.compute_factor == pytest.approx(2.0, rel=1e-3)
    assert after.basis == "calibrated"
    assert predict_step(rows[0].workload, DEVICE, after).mid_ns == pytest.approx(rows[0].step_ns, rel=1e-3)


def test_three_rows_tell_compute_from_the_host() -> None:
    from dataclasses import replace

    slow = replace(START, host_ns=2e6)
    true = slow.scaled(compute=1.5, host=3.0, error_ratio=0.0)
    workloads = [make_workload(micro_batch=batch, gpus=1) for batch in (1, 2, 16, 64)]
    rows = [MeasuredStep(workload=w, hardware=DEVICE, step_ns=predict_step(w, DEVICE, true).mid_ns) for w in workloads]
    after = calibrate(rows, slow)
    assert after.compute_factor == pytest.approx(1.5, rel=0.03)
    assert after.host_factor == pytest.approx(3.0, rel=0.03)


def test_the_range_is_what_the_rows_forecast_of_each_other() -> None:
    rows = measured(1.2, 1.0, (1, 2, 4, 8, 16))
    assert calibrate(rows, START).error_ratio == 0.05
    noisy = [
        MeasuredStep(workload=row.workload, hardware=DEVICE, step_ns=row.step_ns * factor)
        for row, factor in zip(rows, (0.8, 1.3, 0.8, 1.3, 1.0), strict=True)
    ]
    assert calibrate(noisy, START).error_ratio > 0.2
