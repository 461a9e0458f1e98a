"""Sizes, rates and launches -> what the tables of the small benchmarks state."""

from __future__ import annotations

import types
from typing import Any

import pytest

from hotloop.attach.unsynced import wrap_forward
from hotloop.bench.figures import (
    find_products,
    judge_scaling,
    parse_rates,
    parse_sizes,
    summarize_scaling,
    tabulate_exchanges,
)
from hotloop.core.benchmarks import ScalingRun
from hotloop.core.errors import UsageError


def launch(ranks: int, step_ns: float, **changes: Any) -> ScalingRun:
    known: dict[str, Any] = {"unit": "sample", "units_per_step": 8.0 * ranks, "exposed_ns": 4.0, "threads": 1}
    return ScalingRun(ranks=ranks, step_ns=step_ns, **{**known, **changes})


def test_a_launch_without_sync_stands_beside_the_computed_time() -> None:
    runs = [launch(1, 10.0), launch(2, 20.0), launch(2, 12.5, is_synced=False), launch(2, 13.0, is_synced=False)]
    (one, two), kind, notes = summarize_scaling(runs)
    assert kind == "weak"
    assert (two["step_min_ns"], two["step_unsynced_ns"], two["n"], two["n_unsynced"]) == (20, 12, 1, 2)
    assert (two["speedup"], two["speedup_unsynced"]) == (pytest.approx(1.0), pytest.approx(1.6))
    assert two["efficiency_unsynced_ratio"] == pytest.approx(0.8)
    assert two["efficiency_without_sync_ratio"] == pytest.approx(0.625)
    assert (one["step_unsynced_ns"], one["n_unsynced"]) == (10, 0)
    assert any("train independently" in note for note in notes)


def test_unsynced_is_unknown_where_it_was_not_launched_and_absent_where_nobody_asked() -> None:
    rows, _, notes = summarize_scaling(
        [launch(1, 10.0), launch(2, 20.0), launch(4, 30.0), launch(2, 9.0, is_synced=False)]
    )
    assert [row["step_unsynced_ns"] for row in rows] == [10, 9, None]
    assert any("does not use DistributedDataParallel" in note for note in notes)
    plain, _, notes = summarize_scaling([launch(1, 10.0), launch(2, 20.0)])
    assert not any("unsynced" in name for row in plain for name in row)
    assert not any("unsynced" in note for note in notes)


def test_every_forward_is_one_without_sync_whatever_the_script_sets() -> None:
    seen = []
    model = types.SimpleNamespace(require_backward_grad_sync=True)
    forward = wrap_forward(lambda self, x: seen.append(self.require_backward_grad_sync) or x)
    for _ in range(2):
        model.require_backward_grad_sync = True  # as scripts that accumulate do
        assert forward(model, 3) == 3
    assert seen == [False, False]


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


def test_products_of_recorded_operators() -> None:
    ops = [
        {"name": "aten::linear", "shapes": [[4, 16, 32], [64, 32], [64]], "count": 2},
        {"name": "aten::mm", "shapes": [[64, 32], [32, 64]], "count": 1},
        {"name": "aten::addmm", "shapes": [[64], [64, 32], [32, 64]], "count": 1},
        {"name": "aten::bmm", "shapes": [[8, 16, 4], [8, 4, 16]], "count": 3},
        {"name": "aten::relu", "shapes": [[64, 32]], "count": 9},
        {"name": "aten::mm", "shapes": [[64, 32], [31, 64]], "count": 1},
    ]
    found, left = find_products(ops)
    assert found == [
        {"b": 1, "m": 64, "k": 32, "n": 64, "count": 4.0},
        {"b": 8, "m": 16, "k": 4, "n": 16, "count": 3.0},
    ]
    assert left == 0


@pytest.mark.parametrize("text", ["", "1x2", "0x1x1", "axbxc", "1x2x3,"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="MxKxN"):
        parse_sizes(text)


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


ROW = {"elements": 1_000_000, "method": "bf16", "compress_ns": 10_000_000, "restore_ns": 6_000_000, "sent_ratio": 0.5}


def test_a_slow_link_wins_and_a_fast_one_loses() -> None:
    (found,) = tabulate_exchanges([ROW], parse_rates("100mbit,10gbit"))
    # 4 MB dense: 320 ms and 3.2 ms; half of it and 16 ms of computing
    assert found["wire_100mbit_ns"] == 160_000_000
    assert found["speedup_100mbit"] == pytest.approx(320 / 176)
    assert found["speedup_10gbit"] == pytest.approx(3.2 / 17.6)


@pytest.mark.parametrize("text", ["fast", "0gbit", "100", "-1mbit", "1gbit,"])
def test_what_is_no_rate_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(UsageError, match="is no rate; give rates such as 100mbit"):
        parse_rates(text)
