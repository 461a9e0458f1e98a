"""Curves over GPU counts."""

from __future__ import annotations

from typing import Any

import pytest

from hotloop.ahead.plan.search import scaling_curve
from hotloop.ahead.plan.workload_file import PlanRequest
from hotloop.core.errors import UsageError
from hotloop.core.planning import PlannedScale

from .build_plan import DEVICE, IDEAL, make_workload


def draw_curve(counts: list[int], *, weak: bool = True, **run: Any) -> tuple[PlannedScale, ...]:
    request = PlanRequest(name="small", workload=make_workload(**run), gpu="round", hardware=DEVICE)
    return scaling_curve(request, counts, 10**9, weak=weak, efficiency=IDEAL)


def test_weak_scaling_keeps_each_devices_work() -> None:
    points = draw_curve([16, 8, 64])
    assert [(point.gpus, point.global_batch) for point in points] == [(8, 64), (16, 128), (64, 512)]
    assert points[0].efficiency_ratio == 1
    assert 1 >= points[1].efficiency_ratio >= points[2].efficiency_ratio > 0.5
    assert points[2].tokens_per_s == pytest.approx(512 * 1024 / (points[2].step_ns / 1e9))


def test_strong_scaling_keeps_the_batch_and_leaves_out_what_it_does_not_divide() -> None:
    points = draw_curve([8, 16, 24, 32, 64], weak=False, micro_batch=2)
    assert [point.gpus for point in points] == [8, 16, 32]
    assert {point.global_batch for point in points} == {64}
    assert points[2].step_ns < points[0].step_ns


def test_no_fitting_count_is_an_error() -> None:
    with pytest.raises(UsageError, match="choose multiples of 8"):
        draw_curve([4, 12], tp=8)
