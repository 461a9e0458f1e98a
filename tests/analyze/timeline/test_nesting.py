from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hotloop.evidence.analyze.timeline.links import NONE, Nesting, find_outermost, nest


def make(ranges: list[tuple[int, int]], thread: list[int] | None = None) -> Nesting:
    """Ranges as (start, length), sorted the way a trace is."""
    threads = thread or [0] * len(ranges)
    order = sorted(range(len(ranges)), key=lambda i: (ranges[i][0], -ranges[i][1]))
    start = np.array([ranges[i][0] for i in order], dtype=np.int64)
    end = start + np.array([ranges[i][1] for i in order], dtype=np.int64)
    of = np.array([threads[i] for i in order], dtype=np.int32)
    return nest(np.arange(len(ranges), dtype=np.int64), of, start, end)


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Properly nested ranges."""
    found: list[tuple[int, int]] = []

    def grow(low: int, high: int, depth: int) -> None:
        at = low
        while at < high and len(found) < 40:
            start = draw(st.integers(at, high))
            end = draw(st.integers(start, high))
            if end > start:
                found.append((start, end - start))
                if depth < 4 and draw(st.booleans()):
                    grow(start, end, depth + 1)
            at = end + 1

    grow(0, draw(st.integers(0, 60)), 0)
    return found


def naive_parent(n: Nesting, i: int) -> int:
    for j in range(i - 1, -1, -1):
        if n.thread[j] == n.thread[i] and n.end_ns[j] > n.start_ns[i]:
            return j
    return NONE


@given(trees())
def test_the_parent_is_the_latest_range_that_is_still_open(ranges: list[tuple[int, int]]) -> None:
    n = make(ranges)
    assert n.parent.tolist() == [naive_parent(n, i) for i in range(len(n))]


@given(trees())
def test_self_times_of_a_tree_sum_to_its_tops(ranges: list[tuple[int, int]]) -> None:
    n = make(ranges)
    assert int(n.find_self_time().sum()) == int((n.end_ns - n.start_ns)[n.parent < 0].sum())


@given(trees(), st.integers(-1, 61))
def test_the_innermost_range_at_an_instant(ranges: list[tuple[int, int]], time: int) -> None:
    n = make(ranges)
    found = n.find_innermost(np.zeros(1, dtype=np.int32), np.array([time], dtype=np.int64))[0]
    open_ = [i for i in range(len(n)) if n.start_ns[i] <= time < n.end_ns[i]]
    assert found == (max(open_) if open_ else NONE)


@given(trees())
def test_sums_cover_a_range_and_all_below_it(ranges: list[tuple[int, int]]) -> None:
    n = make(ranges)
    value = np.arange(1, len(n) + 1, dtype=np.int64)

    def total(i: int) -> int:
        return int(value[i]) + sum(total(j) for j in range(len(n)) if n.parent[j] == i)

    assert n.sum_inside(value).tolist() == [total(i) for i in range(len(n))]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=25))
def test_any_ranges_end_in_a_tree(ranges: list[tuple[int, int]]) -> None:
    """Overlaps without nesting happen in real files: whatever comes, a parent was open when its child began."""
    n = make(ranges)
    for i, parent in enumerate(n.parent.tolist()):
        if parent != NONE:
            assert parent < i
            assert n.start_ns[parent] <= n.start_ns[i] < n.end_ns[parent]
    assert np.all(n.find_self_time() >= 0)


def test_threads_do_not_enclose_each_other() -> None:
    n = make([(0, 100), (10, 5)], [0, 1])
    assert n.parent.tolist() == [NONE, NONE]
    assert n.find_innermost(np.array([1, 7], dtype=np.int32), np.array([12, 12], dtype=np.int64)).tolist() == [1, NONE]


def test_a_range_without_length_encloses_nothing() -> None:
    n = make([(0, 10), (4, 0), (4, 0), (5, 2)])
    assert n.parent.tolist() == [NONE, 0, 0, 0]


def test_a_child_that_ends_a_tick_late_keeps_its_parent_and_takes_no_neighbour() -> None:
    n = make([(0, 10), (5, 6), (10, 1)])
    assert n.parent.tolist() == [NONE, 0, NONE]
    assert n.sum_inside(np.array([1, 10, 100])).tolist() == [11, 10, 100]


def test_the_nearest_wanted_range_is_found_upwards() -> None:
    n = make([(0, 10), (1, 8), (2, 6), (3, 2)])
    wanted = np.array([True, False, False, False])
    assert n.find_nearest(wanted).tolist() == [0, 0, 0, 0]
    assert n.find_nearest(np.zeros(4, dtype=bool)).tolist() == [NONE] * 4


def test_outermost_of_a_key() -> None:
    n = make([(0, 10), (1, 8), (2, 6), (20, 5)])
    assert find_outermost(n, np.array([7, 3, 7, 7])).tolist() == [True, True, False, True]
