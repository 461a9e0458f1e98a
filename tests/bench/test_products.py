from __future__ import annotations

import pytest

from hotloop.bench.figures import ScalingRun, find_products, parse_sizes, summarize_scaling
from hotloop.core.errors import UsageError


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


def run(ranks: int, step_ms: float, samples: float | None, exposed_ms: float | None = 1.0) -> ScalingRun:
    exposed = None if exposed_ms is None else exposed_ms * 1e6
    return ScalingRun(
        ranks=ranks, step_ns=step_ms * 1e6, unit="sample", units_per_step=samples, exposed_ns=exposed, threads=1
    )


def test_weak_and_strong_scaling_are_told_apart() -> None:
    rows, kind, _ = summarize_scaling([run(1, 10, 8), run(2, 11, 16), run(2, 12, 16)])
    assert kind == "weak"
    assert rows[1]["speedup"] == pytest.approx(20 / 11)
    assert rows[1]["efficiency_ratio"] == pytest.approx(10 / 11)
    assert rows[1]["efficiency_without_sync_ratio"] == pytest.approx(1.0)
    assert rows[1]["n"] == 2
    rows, kind, _ = summarize_scaling([run(1, 10, 8), run(2, 6, 8, None)])
    assert kind == "strong"
    assert rows[1]["efficiency_ratio"] == pytest.approx(10 / 12)
    assert rows[1]["exposed_comm_ns"] is None
    assert summarize_scaling([run(1, 10, None), run(2, 10, None)])[1] == "unknown"
