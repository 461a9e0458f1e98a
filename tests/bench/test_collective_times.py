"""How the ranks of bench comm start, and what their times say."""

from __future__ import annotations

from typing import Any

import pytest

from hotloop.core.errors import UsageError
from hotloop.measure.bench.collective_times import (
    fit_collectives,
    plan_launch,
    tabulate_fits,
    tabulate_times,
)


def answer(**changes: Any) -> dict[str, Any]:
    cells = [
        {"collective": "all-reduce", "bytes": size, "times_ns": [1e5 + size, 2e5 + size, 3e5 + size]}
        for size in (1000, 1_000_000, 100_000_000)
    ]
    known = {"cells": cells, "left_out": [], "ranks": 4, "hosts": ["a", "a", "b", "b"]}
    known["backend"] = "nccl"
    return {**known, **changes}


def test_bandwidths_and_the_line_are_of_the_least_times() -> None:
    rows = tabulate_times(answer())
    assert rows[1]["algorithm_bytes_per_s"] == pytest.approx(1e6 / 1.1e6 * 1e9, rel=1e-6)
    assert rows[1]["bus_bytes_per_s"] == pytest.approx(1.5e6 / 1.1e6 * 1e9, rel=1e-6)
    assert (rows[1]["median_ns"], rows[1]["n"]) == (1_200_000, 3)
    (fit,) = tabulate_fits(fit_collectives(answer()), 4)
    assert fit["latency_ns"] == pytest.approx(1e5, rel=0.02)
    assert fit["rate_bytes_per_s"] == pytest.approx(1.5e9, rel=0.01)


def test_ranks_of_this_host() -> None:
    launch = plan_launch({}, None)
    assert launch.is_alone
    assert [one["RANK"] for one in launch.variables] == ["0", "1"]


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "3", "WORLD_SIZE": "8"},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"},
    ],
)
def test_one_rank_of_a_launchers_group(variables: dict[str, str]) -> None:
    launch = plan_launch({**variables, "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}, None)
    assert (launch.is_alone, launch.rank, launch.variables[0]["WORLD_SIZE"]) == (False, 3, "8")


@pytest.mark.parametrize(
    ("variables", "ranks", "said"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, None, "not MASTER_PORT"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, 4, "leave --ranks out"),
        ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, None, "RANK is 'x'"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, None, "nothing is sent"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, None, "export MASTER_ADDR"),
        ({}, 1, "--ranks 1"),
    ],
)
def test_half_a_group_is_refused(variables: dict[str, str], ranks: int | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_launch(variables, ranks)
