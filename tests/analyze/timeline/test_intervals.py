from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hotloop.evidence.analyze.timeline.intervals import (
    Intervals,
    clip,
    cover_windows,
    find_gaps,
    intersect,
    overlap_pieces,
    subtract,
    unite,
    unite_sets,
)

Pairs = list[tuple[int, int]]
pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def make(found: Pairs) -> Intervals:
    return unite(np.array([a for a, _ in found], dtype=np.int64), np.array([b for _, b in found], dtype=np.int64))


def instants(found: Pairs | Intervals) -> set[int]:
    """The oracle: every whole nanosecond by itself."""
    listed = found if isinstance(found, list) else zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
    return {t for a, b in listed for t in range(a, b)}


def assert_is_set(a: Intervals) -> None:
    assert a.start_ns.dtype == a.end_ns.dtype == np.int64
    assert np.all(a.end_ns > a.start_ns)
    assert np.all(a.start_ns[1:] > a.end_ns[:-1])


@given(pairs)
def test_a_union_holds_every_instant_once(found: Pairs) -> None:
    a = make(found)
    assert_is_set(a)
    assert instants(a) == instants(found)
    assert a.total_ns == len(instants(found))


@given(pairs, pairs)
def test_the_algebra_is_that_of_sets(one: Pairs, two: Pairs) -> None:
    a, b = make(one), make(two)
    x, y = instants(one), instants(two)
    for result, expected in (
        (intersect(a, b), x & y),
        (subtract(a, b), x - y),
        (unite_sets(a, b), x | y),
        (find_gaps(a, 5, 30), set(range(5, 30)) - x),
        (clip(a, 5, 30), x & set(range(5, 30))),
    ):
        assert_is_set(result)
        assert instants(result) == expected


@given(pairs, pairs)
def test_coverage_of_windows_is_counted_exactly(found: Pairs, windows: Pairs) -> None:
    low = np.array([a for a, _ in windows], dtype=np.int64)
    high = np.array([b for _, b in windows], dtype=np.int64)
    covered = cover_windows(make(found), low, high)
    assert covered.tolist() == [len(instants(found) & set(range(a, b))) for a, b in windows]


@given(pairs, pairs)
def test_pieces_know_where_they_come_from(one: Pairs, two: Pairs) -> None:
    a, b = make(one), make(two)
    pieces = overlap_pieces(a, b)
    assert np.all(pieces.length_ns > 0)
    for source, index in ((a, pieces.of_a), (b, pieces.of_b)):
        assert np.all((source.start_ns[index] <= pieces.start_ns) & (pieces.end_ns <= source.end_ns[index]))
    assert int(pieces.length_ns.sum()) == len(instants(one) & instants(two))
