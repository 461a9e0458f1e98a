"""How the ranks of bench comm start, and what their times say."""

from __future__ import annotations

from typing import Any

import pytest

from hotloop.core.errors import UsageError
from hotloop.measure.bench.collective_times import (
    describe_slow_pairs,
    fit_collectives,
    judge_pairs,
    plan_launch,
    tabulate_fits,
    tabulate_pairs,
    tabulate_times,
)


def answer(**changes: Any) -> dict[str, Any]:
    cells = [
        {"collective": "all-reduce", "bytes": size, "times_ns": [1e5 + size, 2e5 + size, 3e5 + size]}
        for size in (1000, 1_000_000, 100_000_000)
    ]
    known = {"cells": cells, "left_out": [], "pairs": [], "pairs_left": 0, "ranks": 4, "hosts": ["a", "a", "b", "b"]}
    known["backend"] = "nccl"
    return {**known, "pair_bytes": {"small": 1024, "large": 1_000_000}, **changes}


def pairs(*slow: tuple[int, int], ranks: int = 4, factor: float = 4.0) -> list[dict[str, Any]]:
    return [
        {
            "first": first,
            "second": second,
            "small_ns": 5e4,
            "large_ns": 1e6 * (factor if (first, second) in slow else 1.0),
        }
        for first in range(ranks)
        for second in range(first + 1, ranks)
    ]


def test_bandwidths_and_the_line_are_of_the_least_times() -> None:
    rows = tabulate_times(answer())
    assert rows[1]["algorithm_bytes_per_s"] == pytest.approx(1e6 / 1.1e6 * 1e9, rel=1e-6)
    assert rows[1]["bus_bytes_per_s"] == pytest.approx(1.5e6 / 1.1e6 * 1e9, rel=1e-6)
    assert (rows[1]["median_ns"], rows[1]["n"]) == (1_200_000, 3)
    (fit,) = tabulate_fits(fit_collectives(answer()), 4)
    assert fit["latency_ns"] == pytest.approx(1e5, rel=0.02)
    assert fit["rate_bytes_per_s"] == pytest.approx(1.5e9, rel=0.01)


BETWEEN = [(first, second) for first in range(4) for second in range(4, 8)]
ONE_WORSE = [
    one | {"large_ns": one["large_ns"] * (3 if (one["first"], one["second"]) == (1, 6) else 1)}
    for one in pairs(*BETWEEN, ranks=8)
]
LATE = [one | {"small_ns": 4e5 if (one["first"], one["second"]) == (0, 3) else 5e4} for one in pairs()]
TWICE = pairs((1, 3), factor=2.5)


@pytest.mark.parametrize(
    ("some", "hosts", "backend", "said"),
    [
        (pairs((1, 3)), "abcd", "nccl", "ranks 1 and 3 (b and d) are slow: 250 MB/s"),
        (pairs((0, 4), (1, 4), (2, 4), (3, 4), ranks=5), "aaaab", "nccl", None),  # pairs between hosts are a kind
        (pairs((0, 4), (1, 4), (2, 4), (3, 4), ranks=5), "aaaaa", "nccl", "all pairs of rank 4 (a) are slow"),
        # one slow rank of three is found although most pairs are slow
        (
            pairs((0, 2), (1, 2), ranks=3),
            "aaa",
            "nccl",
            "all pairs of rank 2 (a) are slow: 250 MB/s to 250 MB/s, 1 GB/s",
        ),
        (LATE, "abcd", "nccl", "ranks 0 and 3 (a and d) are slow"),  # by its latency alone
        (TWICE, "aaaa", "nccl", "ranks 1 and 3 (a) are slow"),
        (TWICE, "aaaa", "gloo", None),  # on shared cores a factor of two says nothing
        (pairs(*BETWEEN, ranks=8), "aaaabbbb", "nccl", None),
        (ONE_WORSE, "aaaabbbb", "nccl", "ranks 1 and 6 (a and b) are slow"),
        (pairs((0, 1), ranks=2), "ab", "nccl", None),  # too few to judge
        (pairs(), "aaaa", "nccl", None),
        ([], "aaaa", "nccl", None),
    ],
)
def test_who_is_slow(some: list[dict[str, Any]], hosts: str, backend: str, said: str | None) -> None:
    found = judge_pairs(answer(pairs=some, hosts=list(hosts), backend=backend))
    told = describe_slow_pairs(found, list(hosts))
    assert (told is None) == (said is None), told
    assert told is None or told.startswith(said or "")
    assert [row["slow"] for row in tabulate_pairs(found, list(hosts))] == [one.is_slow for one in found]


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
