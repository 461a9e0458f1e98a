from __future__ import annotations

import re

import pytest

from hotloop.show.export.points import METRICS, flatten_points

from .live_runs import make_device, make_rank, make_run, snapshot_of


def values(name: str, *ranks: object, **changes: object) -> list[float | int]:
    snapshot = snapshot_of(make_run(*ranks, **changes))  # type: ignore[arg-type]
    return [point.value for point in snapshot.points if point.metric.name == name]


def test_names_and_units_are_those_of_the_conventions() -> None:
    names = {metric.prometheus_name for metric in METRICS}
    assert {
        "hotloop_training_steps_total",
        "hotloop_training_step_duration_seconds",
        "hotloop_training_step_phase_share_ratio",
        "hotloop_process_memory_resident_bytes",
        "hotloop_training_samples_per_second",
        "hw_gpu_utilization_ratio",
        "hw_gpu_memory_usage_bytes",
    } <= names
    assert len(names) == len(METRICS)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names)


def test_the_step_and_its_phases_are_in_seconds_and_sum() -> None:
    assert values("hotloop.training.step.duration") == [pytest.approx(0.010)]
    phases = values("hotloop.training.step.phase.duration")
    assert len(phases) == 9
    assert sum(phases) == pytest.approx(0.010)
    assert sum(values("hotloop.training.step.phase.share")) == pytest.approx(1.0)


def test_what_is_not_known_is_no_point() -> None:
    assert values("hotloop.training.tokens") == []
    assert values("hotloop.training.progress") == []
    assert values("hotloop.training.step.duration", make_rank(window_count=0, window_ns=0, phase_ns=dict.fromkeys(
        make_rank().phase_ns, 0))) == []  # fmt: skip


def test_flat_names_are_plain_and_tell_the_lead_rank_whole() -> None:
    ranks = (make_rank(metrics={"träin/loss\n": 1.0}), make_rank(rank=1, steps_count=7))
    flat = flatten_points(snapshot_of(make_run(*ranks, devices=(make_device(),), steps_total=2468)))
    assert flat["hotloop/step_duration_seconds"] == pytest.approx(0.010)
    assert flat["hotloop/step_duration_seconds/rank_1"] == pytest.approx(0.010)
    assert flat["hotloop/step_phase_share_ratio/input_wait"] == pytest.approx(0.2)
    assert flat["hotloop/metric/tr_in/loss_"] == 1.0
    assert flat["hotloop/progress_ratio"] == 0.5
    assert flat["hw/gpu_utilization_ratio/3"] == 0.5
    assert all(re.fullmatch(r"[A-Za-z0-9_./-]+", name) for name in flat)
