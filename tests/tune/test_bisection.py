"""Bisection with made-up looks: one culprit, several that act together, and looks that cannot be told."""

from __future__ import annotations

import math

import pytest

from hotloop.change.tune.bisection import find_culprit, find_first


@pytest.mark.parametrize("first_slow", range(1, 13))
def test_the_first_slow_count_takes_few_looks(first_slow: int) -> None:
    looks: list[int] = []

    def is_slow(count: int) -> bool:
        looks.append(count)
        return count >= first_slow

    assert find_first(12, is_slow) == (first_slow - 1, first_slow)
    assert len(looks) == len(set(looks)) <= math.ceil(math.log2(12))


@pytest.mark.parametrize(
    ("untold", "expected"), [({6}, (7, 8)), ({7}, (6, 8)), ({5, 6, 7, 8}, (4, 9)), (set(range(1, 12)), (0, 12))]
)
def test_what_cannot_be_told_is_skipped(untold: set[int], expected: tuple[int, int]) -> None:
    assert find_first(12, lambda count: None if count in untold else count >= 8) == expected


@pytest.mark.parametrize(
    ("culprits", "untold", "most", "expected", "is_culprit"),
    [
        ([{12}], [], 20, {12}, True),
        ([{0}], [], 20, {0}, True),
        ([{3, 17}], [], 20, {3, 17}, True),  # slow only together
        ([{3, 9, 17}], [], 20, {3, 9, 17}, True),
        ([{4}, {15}], [], 20, {4}, True),  # each of them is slow: the first
        ([{3, 17}], [], 1, {17}, False),
        ([{12}], [{12}], 20, {12}, False),  # it alone cannot be told
        ([{12}], [set(range(count)) for count in (11, 12, 13)], 20, {10, 11, 12, 13}, False),
    ],
)
def test_the_smallest_set_that_is_slow_alone(
    culprits: list[set[int]], untold: list[set[int]], most: int, expected: set[int], is_culprit: bool
) -> None:
    looks: list[frozenset[int]] = []

    def is_slow(chosen: frozenset[int]) -> bool | None:
        looks.append(chosen)
        return None if chosen in untold else any(culprit <= chosen for culprit in culprits)

    assert find_culprit(20, is_slow, most) == (frozenset(expected), is_culprit)
    assert len(looks) <= (math.ceil(math.log2(20)) + 1) * len(expected) + 2 * len(untold)
