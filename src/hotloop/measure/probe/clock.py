"""Calls -> their times, several arms taking turns, so that a machine that slows down meanwhile slows all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

SHORT_NS = 100_000
"""Calls shorter than this are timed several in a row."""


def time_call(call: Callable[[], object], repeats: int, clock: Callable[[], int] | None = None) -> float:
    """Nanoseconds per call over ``repeats`` calls in a row.

    With one thread its CPU time is taken, which leaves out what other processes on the machine take; else wall time.
    """
    if clock is None:
        clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    start_ns = clock()
    for _ in range(repeats):
        call()
    return (clock() - start_ns) / repeats


def time_arms(arms: dict[str, Callable[[], object]], budget_s: float, most: int = 15) -> dict[str, list[float]]:
    """Times of every arm in ns, the arms taking turns, until the budget is spent (at least two rounds)."""
    begin_s = time.perf_counter()
    repeats: dict[str, int] = {}
    for name, call in arms.items():
        call()
        repeats[name] = max(1, min(20, int(SHORT_NS / max(time_call(call, 1), 1.0))))
    times: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for turn in range(most):
        if turn >= 2 and time.perf_counter() - begin_s > budget_s:
            break
        shift = turn % len(order)
        for name in order[shift:] + order[:shift]:
            times[name].append(time_call(arms[name], repeats[name]))
    return times


def middle(values: Sequence[float]) -> float:
    """Mean of the lower half: other load on the machine only ever adds time."""
    ordered = sorted(values)
    return statistics.fmean(ordered[: max(1, (len(ordered) + 1) // 2)])
