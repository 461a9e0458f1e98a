"""Steps after an event (a save, a restart of workers) -> by how much longer than undisturbed ones they compute."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hotloop.core.analysis import RankAnalysis

COMPUTE_FIELDS = ("forward_ns", "backward_ns", "optimizer_ns")
FEWEST_EVENTS = 2
STANDARD_ERRORS = 2.0


def aftermath_ns(rank: RankAnalysis, events: str, fields: Iterable[str] = COMPUTE_FIELDS) -> float:
    """Mean ns per step by which ``fields`` take longer in the steps that an event of this column slows down.

    After an event the caches hold something else, pages are copied or fetched anew, and what was written goes to the
    disk. The mean of the first step after the events is compared with that of the undisturbed steps (those in the later
    half of the way to the next event), then that of the second, until one no longer differs by more than its noise. So
    a slowdown after a part of the events counts as what it costs, and a single long step does not. 0.0 where fewer than
    FEWEST_EVENTS say it.
    """
    happened = rank.columns.get(events, ())
    work = [sum(values) for values in zip(*(rank.columns[name] for name in fields), strict=True)]
    starts = [step for step, count in enumerate(happened) if count > 0]
    excess = excess_after(work, starts)
    return sum(excess) * len(starts) / len(work) if work else 0.0


def excess_after(work: Sequence[float], starts: Sequence[int]) -> tuple[float, ...]:
    """By how much the step of an event, the one after it and so on take longer than undisturbed ones, in the mean.

    >>> steps = [10, 10, 10, 10, 10, 10, 40, 20, 10, 10, 10, 10, 40, 20, 10, 10, 10, 10, 40, 20, 10, 10, 10, 10]
    >>> excess_after(steps, [6, 12, 18])
    (30.0, 10.0)
    """
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    if len(starts) < FEWEST_EVENTS:
        return ()
    reach = int(statistics.median(gaps)) // 2
    calm = [value for step, value in enumerate(work) if _since(step, starts) >= max(1, reach)]
    if len(calm) < FEWEST_EVENTS:
        return ()
    undisturbed, calm_error = statistics.fmean(calm), _squared_error(calm)
    found: list[float] = []
    for offset in range(reach):
        after = [work[start + offset] for start in starts if start + offset < len(work)]
        if len(after) < FEWEST_EVENTS:
            break
        excess = statistics.fmean(after) - undisturbed
        if excess <= STANDARD_ERRORS * math.sqrt(_squared_error(after) + calm_error):
            break
        found.append(excess)
    return tuple(found)


def _since(step: int, starts: Sequence[int]) -> int:
    """Steps since the last event; as many as there can be before the first one."""
    before = bisect_right(starts, step) - 1
    return step - starts[before] if before >= 0 else step + 1_000_000


def _squared_error(values: Sequence[float]) -> float:
    """Of the mean: outliers count in it as they do in the mean."""
    return statistics.variance(values) / len(values)
