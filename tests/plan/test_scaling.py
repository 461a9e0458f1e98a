"""Curves over GPU counts."""

from __future__ import annotations

import pytest

from hotloop.core.errors import UsageError
from hotloop.plan.search import scaling_curve

from .build_plan import DEVICE, IDEAL, make_workload


def test_weak_scaling_keeps_each_devices_work() -> None:
    points = scaling_curve(make_workload(), DEVICE, [16, 8, 64], efficiency=IDEAL)
    assert [(point.gpus, point.global_batch) for point in points] == [(8, 64), (16, 128), (64, 512)]
    assert points[0].efficiency_ratio == 1
    assert 1 >= points[1].efficiency_ratio >= points[2].efficiency_ratio > 0.5
    assert points[2].tokens_per_s == pytest.approx(64 * points[2].step.tokens_per_s_per_gpu)


def test_strong_scaling_keeps_the_batch_and_leaves_out_what_it_does_not_divide() -> None:
    points = scaling_curve(make_workload(micro_batch=2), DEVICE, [8, 16, 24, 32, 64], weak=False, efficiency=IDEAL)
    assert [point.gpus for point in points] == [8, 16, 32]
    assert {point.global_batch for point in points} == {64}
    assert points[2].step.mid_ns < points[0].step.mid_ns


def test_no_fitting_count_is_an_error() -> None:
    with pytest.raises(UsageError, match="choose multiples of 8"):
        scaling_curve(make_workload(tp=8), DEVICE, [4, 12])
