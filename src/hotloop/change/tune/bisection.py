"""Changes in order, and whether some of them together are slow -> the smallest set of changes that is slow alone."""

from __future__ import annotations

from collections.abc import Callable

IsSlow = Callable[[frozenset[int]], bool | None]
"""Positions of changes -> whether a run with only these is slow; None if that is unknown."""


def find_first(last: int, is_slow: Callable[[int], bool | None]) -> tuple[int, int]:
    """The largest count that is known to be fast and the smallest that is known to be slow: one apart if the first
    slow count was found. 0 is fast and ``last`` is slow. A count whose answer is unknown is skipped, as by git bisect.

    >>> find_first(12, lambda count: count >= 8)
    (7, 8)
    """
    fast, slow = 0, last
    unknown: set[int] = set()
    while untried := [count for count in range(fast + 1, slow) if count not in unknown]:
        count = min(untried, key=lambda one: abs(2 * one - fast - slow))
        answer = is_slow(count)
        if answer is None:
            unknown.add(count)
        elif answer:
            slow = count
        else:
            fast = count
    return fast, slow


def find_culprit(
    count: int, is_slow: IsSlow, most: int, found: frozenset[int] = frozenset()
) -> tuple[frozenset[int], bool]:
    """The smallest set of at most ``most`` changes that is slow alone, and True; else the suspects, and False.

    The first ``count`` changes together with those ``found`` are slow. The change that turns the first changes slow
    belongs to the set. If it is not slow alone, it stays, and the next member is one of the changes before it
    (QuickXplain, Junker 2004, with prefixes instead of halves). A member takes about log2(count) + 1 looks.
    """
    fast, slow = find_first(count, lambda first: is_slow(found | frozenset(range(first))))
    if slow - fast > 1:
        return found | frozenset(range(fast, slow)), False
    found |= {slow - 1}
    answer = is_slow(found)
    if answer is False and slow > 1 and len(found) < most:
        return find_culprit(slow - 1, is_slow, most, found)
    return found, answer is True
