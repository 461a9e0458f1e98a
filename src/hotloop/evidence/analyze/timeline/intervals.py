"""Columns of starts and ends -> exact algebra on half-open intervals: unions, differences, pieces and coverage.

Everything is int64 nanoseconds. An interval set is ``Intervals``: sorted, disjoint, none empty, none touching the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of instants as sorted, disjoint, half-open intervals [start, end); equal sets have equal arrays."""

    start_ns: Int64s
    end_ns: Int64s

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def total_ns(self) -> int:
        """Nanoseconds in the set."""
        return int(self.end_ns.sum() - self.start_ns.sum())


EMPTY = Intervals(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
"""No instant at all."""


def unite(start_ns: Int64s, end_ns: Int64s) -> Intervals:
    """The union of any intervals, in any order; empty ones (end <= start) count for nothing."""
    full = end_ns > start_ns
    if not full.all():
        start_ns, end_ns = start_ns[full], end_ns[full]
    if len(start_ns) == 0:
        return EMPTY
    if np.any(start_ns[1:] < start_ns[:-1]):
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns[order], end_ns[order]
    reach = np.maximum.accumulate(end_ns)
    new = np.empty(len(start_ns), dtype=bool)
    new[0] = True
    np.greater(start_ns[1:], reach[:-1], out=new[1:])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(start_ns)) - 1
    return Intervals(start_ns[first], reach[last])


def unite_sets(*sets: Intervals) -> Intervals:
    """The union of interval sets."""
    return unite(np.concatenate([s.start_ns for s in sets]), np.concatenate([s.end_ns for s in sets]))


@dataclass(frozen=True, slots=True)
class Pieces:
    """Meetings of intervals of two sets, none empty."""

    start_ns: Int64s
    end_ns: Int64s
    of_a: Int64s
    """Index of each in the first set."""
    of_b: Int64s

    @property
    def length_ns(self) -> Int64s:
        return self.end_ns - self.start_ns


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """What is in both sets."""
    pieces = overlap_pieces(a, b)
    return Intervals(pieces.start_ns, pieces.end_ns)


def overlap_pieces(a: Intervals, b: Intervals) -> Pieces:
    """Every non-empty meeting of an interval of ``a`` with one of ``b``.

    Neither needs to be merged: intervals may touch the next of their own set, but not overlap it.
    """
    first = np.searchsorted(b.end_ns, a.start_ns, side="right")
    last = np.searchsorted(b.start_ns, a.end_ns, side="left")
    count = np.maximum(last - first, 0)
    of_a = np.repeat(np.arange(len(a), dtype=np.int64), count)
    before = np.cumsum(count) - count
    of_b = np.arange(len(of_a), dtype=np.int64) - np.repeat(before, count) + np.repeat(first, count)
    start = np.maximum(a.start_ns[of_a], b.start_ns[of_b])
    return Pieces(start, np.minimum(a.end_ns[of_a], b.end_ns[of_b]), of_a, of_b)


def find_gaps(a: Intervals, low_ns: int, high_ns: int) -> Intervals:
    """The part of the window [low, high) that is not in the set."""
    inside = clip(a, low_ns, high_ns)
    start = np.concatenate([np.array([low_ns], dtype=np.int64), inside.end_ns])
    end = np.concatenate([inside.start_ns, np.array([high_ns], dtype=np.int64)])
    full = end > start
    return Intervals(start[full], end[full])


def cut(a: Intervals, b: Intervals) -> Pieces:
    """The parts of each interval of ``a`` that are not in ``b``; ``of_b`` is the gap of ``b`` around each part."""
    low_ns, high_ns = (int(a.start_ns[0]), int(a.end_ns[-1])) if len(a) else (0, 0)
    return overlap_pieces(a, find_gaps(b, low_ns, high_ns))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """What is in ``a`` and not in ``b``."""
    pieces = cut(a, b)
    return Intervals(pieces.start_ns, pieces.end_ns)


def clip(a: Intervals, low_ns: int, high_ns: int) -> Intervals:
    """The part of the set inside the window [low, high)."""
    first = int(np.searchsorted(a.end_ns, low_ns, side="right"))
    last = int(np.searchsorted(a.start_ns, high_ns, side="left"))
    if first >= last:
        return EMPTY
    return Intervals(np.maximum(a.start_ns[first:last], low_ns), np.minimum(a.end_ns[first:last], high_ns))


def cover_windows(a: Intervals, low_ns: Int64s, high_ns: Int64s) -> Int64s:
    """Nanoseconds of the set in every window [low, high); windows may overlap, an empty one has 0."""
    if len(a) == 0:
        return np.zeros(len(low_ns), dtype=np.int64)
    total = np.zeros(len(a) + 1, dtype=np.int64)
    np.cumsum(a.end_ns - a.start_ns, out=total[1:])
    covered = _measure_before(a, total, high_ns) - _measure_before(a, total, low_ns)
    return np.where(high_ns > low_ns, covered, 0)


def sum_groups(group: NDArray[np.integer], values: NDArray[np.integer], count: int) -> Int64s:
    """The sum of the values of each of ``count`` groups; an entry of a group below 0 is left out."""
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, group[group >= 0], values[group >= 0])
    return total


def _measure_before(a: Intervals, total: Int64s, time_ns: Int64s) -> Int64s:
    """Nanoseconds of the set before each instant, from the running total of its lengths."""
    index = np.searchsorted(a.start_ns, time_ns, side="right") - 1
    held = np.maximum(index, 0)
    inside = np.minimum(time_ns, a.end_ns[held]) - a.start_ns[held]
    result: Int64s = np.where(index < 0, 0, total[held] + inside)
    return result
