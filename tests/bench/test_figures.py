"""Sizes, rates and launches -> what the tables of the small benchmarks state."""

from __future__ import annotations

from typing import Any

import pytest

from hotloop.core.benchmarks import ScalingRun
from hotloop.measure.bench.figures import judge_scaling, summarize_scaling


def launch(ranks: int, step_ns: float, **changes: Any) -> ScalingRun:
    known: dict[str, Any] = {"unit": "sample", "units_per_step": 8.0 * ranks, "exposed_ns": 4.0, "threads": 1}
    return ScalingRun(ranks=ranks, step_ns=step_ns, **{**known, **changes})


def test_a_model_too_small_for_its_ranks_is_stated() -> None:
    runs = [launch(1, 2e6, exposed_ns=0.0, latency_ns=0.0), launch(4, 4e6, exposed_ns=3.2e6, latency_ns=1e6)]
    (said,) = judge_scaling(runs, summarize_scaling(runs)[0])
    assert said.startswith("model too small for 4 ranks: efficiency 50%")
    assert "at least 1 ms) exceeds its computation (0.8 ms)" in said


@pytest.mark.parametrize(
    "changes",
    [
        {"latency_ns": 0.7e6},  # computes longer than that: a slow link or a slow rank
        {"latency_ns": None},
        {"exposed_ns": None},
        {"step_ns": 2.5e6},  # 80 % efficient
    ],
)
def test_other_reasons_and_unknown_ones_are_not(changes: dict[str, Any]) -> None:
    known = {"step_ns": 4e6, "exposed_ns": 3.2e6, "latency_ns": 1e6, **changes}
    runs = [launch(1, 2e6, exposed_ns=0.0), launch(4, known.pop("step_ns"), **known)]
    assert judge_scaling(runs, summarize_scaling(runs)[0]) == []


def test_weak_and_strong_scaling_are_told_apart() -> None:
    rows, kind, _ = summarize_scaling(
        [
            launch(1, 10e6, units_per_step=8, exposed_ns=1e6),
            launch(2, 11e6, units_per_step=16, exposed_ns=1e6),
            launch(2, 12e6, units_per_step=16, exposed_ns=1e6),
        ]
    )
    assert kind == "weak"
    assert rows[1]["speedup"] == pytest.approx(20 / 11)
    assert rows[1]["efficiency_ratio"] == pytest.approx(10 / 11)
    assert rows[1]["efficiency_without_sync_ratio"] == pytest.approx(1.0)
    assert rows[1]["n"] == 2
    rows, kind, _ = summarize_scaling(
        [launch(1, 10e6, units_per_step=8, exposed_ns=1e6), launch(2, 6e6, units_per_step=8, exposed_ns=None)]
    )
    assert kind == "strong"
    assert rows[1]["efficiency_ratio"] == pytest.approx(10 / 12)
    assert rows[1]["exposed_comm_ns"] is None
    assert (
        summarize_scaling(
            [launch(1, 10e6, units_per_step=None, exposed_ns=1e6), launch(2, 10e6, units_per_step=None, exposed_ns=1e6)]
        )[1]
        == "unknown"
    )
