"""Step times -> the steady steps: everything after a warm-up prefix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotloop.core.recording import FLAG_DEEP, FLAG_FOREIGN_PROFILER

from .segments import BoolColumn, IntColumn, Steps
from .stats import FloatColumn, per_step_values

MIN_STEADY_COUNT = 10
MAX_WARMUP_RATIO = 0.2
MAX_WARMUP_COUNT = 50
"""The prefix is at most the larger of MAX_WARMUP_RATIO of the steps and this many."""
QUIET_COUNT = 10
"""Compilation has settled once this many steps in a row compile nothing."""
WINDOW_COUNT = 5
"""The step time has settled once the median of this many steps is like the later ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Steady:
    """``mask`` marks the entries that shares, costs and savings are computed over."""

    mask: BoolColumn
    warmup_mask: BoolColumn
    steady_count: int
    warmup_count: int
    deep_count: int
    """Steps left out because their operators were being recorded, or torch.profiler was on."""
    messages: tuple[str, ...]
    """What the reader has to know about the base, in words for the health section."""


def find_steady(steps: Steps) -> Steady:
    """The steady steps of a process that has at least one step."""
    weight, flags = steps.weight, steps.columns["flags"]
    entry_count, count = len(weight), steps.count
    messages: list[str] = []
    # The flags of a block are of many steps: they say nothing about each step.
    profiled = ((flags & FLAG_DEEP) != 0) & ~steps.is_block
    ours = profiled & ((flags & FLAG_FOREIGN_PROFILER) == 0)

    if entry_count == 1:
        if count == 1:
            messages.append("only one step was recorded: every figure includes its start-up costs")
        return _steady(steps, np.ones(1, dtype=np.bool_), 0, messages)

    reach = np.cumsum(weight)
    first_is_long = int(weight[0]) > 1 and int(weight[0]) > MAX_WARMUP_RATIO * count
    least = 0 if first_is_long else 1
    if first_is_long:
        messages.append("the first steps were recorded as one block: warm-up could not be separated")
    limit_count = min(max(MAX_WARMUP_RATIO * count, MAX_WARMUP_COUNT), count - MIN_STEADY_COUNT)
    limit = int(np.searchsorted(reach, limit_count, side="right"))
    if limit <= least:
        prefix = least
    else:
        settled = _end_of_compilation(steps.columns["compile_ns"], least, limit)
        if settled is None:
            messages.append("torch.compile kept recompiling: all steps except the first count as steady")
            prefix = least
        else:
            step_ns = per_step_values(steps.step_ns, weight)
            prefix = _end_of_settling(step_ns, settled, limit)
            without_size = _without_size(step_ns, per_step_values(steps.columns["padded_tokens"], weight))
            if without_size is not None:
                prefix = min(prefix, _end_of_settling(without_size, settled, limit))

    behind = np.arange(entry_count) >= prefix
    base = behind & ~profiled
    if int(weight[base].sum()) < MIN_STEADY_COUNT and (profiled & ~ours).any():
        messages.append("another profiler ran in most steps: every figure includes its cost")
        base = behind & ~ours
    if not base.any():
        messages.append("a profiler ran, or operators were recorded, in every step: every figure includes that cost")
        base = behind
    steady_count = int(weight[base].sum())
    if steady_count < MIN_STEADY_COUNT:
        messages.append(
            f"only {steady_count} steady step{'s were' if steady_count != 1 else ' was'} recorded: "
            "figures may still show start-up costs"
        )
    return _steady(steps, base, prefix, messages)


def _steady(steps: Steps, mask: BoolColumn, prefix: int, messages: list[str]) -> Steady:
    warmup_mask = np.arange(len(mask)) < prefix
    warmup_count = int(steps.weight[warmup_mask].sum())
    return Steady(
        mask=mask,
        warmup_mask=warmup_mask,
        steady_count=int(steps.weight[mask].sum()),
        warmup_count=warmup_count,
        deep_count=int(steps.weight[~mask & ~warmup_mask].sum()),
        messages=tuple(messages),
    )


def _end_of_compilation(compile_ns: IntColumn, least: int, limit: int) -> int | None:
    """First entry from which QUIET_COUNT entries compile nothing; None if there is none up to ``limit``."""
    busy = np.flatnonzero(compile_ns[: limit + QUIET_COUNT] > 0)
    gaps = np.diff(busy, append=limit + QUIET_COUNT + 1)
    quiet = np.flatnonzero(gaps > QUIET_COUNT)
    if not len(busy) or busy[0] > QUIET_COUNT:
        return least  # much later compilation is not warm-up
    if not len(quiet):
        return None
    settled = max(least, int(busy[quiet[0]]) + 1)
    return settled if settled <= limit else None


def _without_size(step_ns: FloatColumn, tokens: FloatColumn) -> FloatColumn | None:
    """Step times as if every step had the median number of tokens, so that batches that shrink do not count as warm-up.

    The time per token is the slope between the smaller and the larger half of the steps, by medians. None if tokens are
    not known in each step, or do not make a step longer.
    """
    if not bool((tokens > 0).all()):
        return None
    middle = float(np.median(tokens))
    small, large = tokens <= middle, tokens > middle
    if not large.any():
        return None
    tokens_more = float(np.median(tokens[large]) - np.median(tokens[small]))
    slope_ns = float(np.median(step_ns[large]) - np.median(step_ns[small])) / tokens_more
    return step_ns - slope_ns * (tokens - middle) if slope_ns > 0 else None


def _end_of_settling(step_ns: FloatColumn, least: int, limit: int) -> int:
    """First entry from which the step time is like the later ones; ``least`` if it does not settle before ``limit``.

    A window's median is compared with the median of all entries after the longest possible prefix, in units of their
    own spread, so that uneven steps are not taken for a warm-up.
    """
    later = step_ns[limit:]
    middle = float(np.median(later))
    spread = 1.4826 * float(np.median(np.abs(later - middle)))
    tolerance = max(3.0 * spread, 0.1 * middle)
    candidates = step_ns[least : limit + WINDOW_COUNT]
    if len(candidates) < WINDOW_COUNT:
        return least
    medians = np.median(np.lib.stride_tricks.sliding_window_view(candidates, WINDOW_COUNT), axis=1)
    is_calm = np.abs(medians - middle) <= tolerance
    is_calm &= candidates[: len(medians)] - middle <= 3 * tolerance
    calm = np.flatnonzero(is_calm)
    return least + int(calm[0]) if len(calm) else least
