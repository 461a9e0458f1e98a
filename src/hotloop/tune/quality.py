"""Losses of the baseline's processes -> bands, fixed before a candidate runs; a candidate's losses -> inside or not.

Seeds are never set. Two baseline processes whose losses agree bit for bit make the comparison one of equal steps; else
the bands are the baseline's own spread over at least three processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hotloop.core.findings import Numerics

from .statistics import t_bound

WINDOWS = 4
LEAST_STEPS = 8
LEAST_PROCESSES = 3
FIRST_STEP_RATIO = {Numerics.REORDERED: 1e-4, Numerics.LOSSY: 0.02}
"""How far the loss of the first step may lie off: before any update only the forward's arithmetic differs.
float32 sums in another order differ by some 1e-6, bfloat16's products by 2**-8 each."""
WINDOW_RATIO = {Numerics.REORDERED: 0.01, Numerics.RESAMPLED: 0.05, Numerics.LOSSY: 0.03}
"""How far the mean loss of a quarter of the trial may lie off, beyond the spread of its steps."""
SPREAD_LEVEL = 0.001
ORDER = (Numerics.EXACT, Numerics.REORDERED, Numerics.RESAMPLED, Numerics.LOSSY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """What the baseline's losses allow. ``unknown`` says why nothing can be judged, else it is empty."""

    unknown: str
    is_repeatable: bool
    """Baseline processes agree bit for bit."""
    process_count: int
    losses: tuple[float, ...]
    """Of the first process."""
    windows: tuple[tuple[float, float], ...]
    """Mean over processes of each window's mean loss, and how far a fresh process may lie off by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """``status`` is 'passed', 'rejected' or 'unknown'."""

    status: str
    reason: str


def make_bands(processes: Sequence[Sequence[float | None]], unseen: str = "") -> Bands:
    """The bands of the baseline's processes (their losses per step)."""

    def nothing(why: str) -> Bands:
        return Bands(unknown=why, is_repeatable=False, process_count=len(processes), losses=(), windows=())

    if unseen:
        return nothing(unseen)
    if len(processes) < 2:
        return nothing("the loss was seen in fewer than two processes of the baseline")
    count = min(len(one) for one in processes)
    cut = [[math.nan if x is None else x for x in one[:count]] for one in processes]
    if count < LEAST_STEPS:
        return nothing(f"only {count} losses were seen: at least {LEAST_STEPS} are needed")
    bad = next(((i, one[i]) for one in processes for i in range(count) if not _is_finite(one[i])), None)
    if bad is not None:
        step, value = bad
        why = "was not seen" if value is None else f"is {value}: the training diverges by itself"
        return nothing(f"the baseline's own loss {why} in step {step + 1}")
    repeatable = repeats_bit_for_bit(cut)
    if not repeatable and len(cut) < LEAST_PROCESSES:
        return nothing(f"the baseline does not repeat itself, and only {len(cut)} of its processes were seen")
    windows = []
    for part in window_slices(count):
        means = [math.fsum(one[part]) / len(one[part]) for one in cut]
        middle = math.fsum(means) / len(means)
        off = 0.0
        if not repeatable:
            spread = math.sqrt(math.fsum((m - middle) ** 2 for m in means) / (len(means) - 1))
            off = t_bound(len(means) - 1, SPREAD_LEVEL) * spread * math.sqrt(1 + 1 / len(means))
        windows.append((middle, off))
    return Bands(
        unknown="", is_repeatable=repeatable, process_count=len(cut), losses=tuple(cut[0]), windows=tuple(windows)
    )


def repeats_bit_for_bit(processes: Sequence[Sequence[float | None]]) -> bool:
    """Whether at least two processes were seen and their losses agree, as far as the shortest goes."""
    count = min((len(one) for one in processes), default=0)
    return (
        len(processes) >= 2 and count >= LEAST_STEPS and all(one[:count] == processes[0][:count] for one in processes)
    )


def judge_losses(bands: Bands, losses: Sequence[float | None], numerics: Numerics, unseen: str = "") -> Quality:
    """Whether a candidate's losses stay inside what its numerics class allows."""
    bad = next((i for i, x in enumerate(losses) if x is not None and not math.isfinite(x)), None)
    if bad is not None and not bands.unknown:
        return Quality(status="rejected", reason=f"diverged: the loss of step {bad + 1} is {losses[bad]}")
    if bands.unknown or unseen:
        return Quality(status="unknown", reason=bands.unknown or unseen)
    known = [math.nan if x is None else x for x in losses[: len(bands.losses)]]
    if len(known) < len(bands.losses):
        return Quality(
            status="unknown", reason=f"{len(known)} losses were seen, the baseline has {len(bands.losses)} to compare"
        )
    if any(math.isnan(x) for x in known):
        return Quality(status="unknown", reason="in some steps the loss was not seen")
    if bands.is_repeatable:
        if tuple(known) == bands.losses:
            return Quality(status="passed", reason=f"{len(known)} losses equal bit for bit")
        if numerics is Numerics.EXACT:
            step = next(i for i, (a, b) in enumerate(zip(known, bands.losses, strict=True)) if a != b)
            return Quality(
                status="rejected",
                reason=f"should be exact, but the loss of step {step + 1} is {known[step]!r}, "
                f"not {bands.losses[step]!r}",
            )
        allowed = FIRST_STEP_RATIO.get(numerics)
        off = _off_ratio(known[0], bands.losses[0])
        if allowed is not None and off > allowed:
            return Quality(
                status="rejected",
                reason=f"the first loss is {known[0]:.6g}, not {bands.losses[0]:.6g}: off by {off:.2%}, "
                f"{numerics.value} allows {allowed:.2%}",
            )
    allowed = WINDOW_RATIO.get(numerics, 0.0)
    widest = 0.0
    for number, (part, (middle, chance)) in enumerate(zip(window_slices(len(known)), bands.windows, strict=True), 1):
        mean = math.fsum(known[part]) / len(known[part])
        within = chance + allowed * abs(middle)
        if numerics is Numerics.RESAMPLED:  # other data: the steps' own spread is chance too
            within += 3 * step_spread(bands.losses[part]) * math.sqrt(2 / len(known[part]))
        if abs(mean - middle) > within:
            return Quality(
                status="rejected",
                reason=f"the mean loss of quarter {number} is {mean:.6g}, not {middle:.6g}: "
                f"off by {_off_ratio(mean, middle):.2%}, {numerics.value} allows "
                f"{within / max(abs(middle), 1e-30):.2%}",
            )
        widest = max(widest, _off_ratio(mean, middle))
    how = "repeats bit for bit" if bands.is_repeatable else f"spreads by itself over {bands.process_count} processes"
    return Quality(
        status="passed", reason=f"within {widest:.2%} over {len(known)} steps ({numerics.value}; the baseline {how})"
    )


def widest_numerics(classes: Sequence[str | None], default: Numerics) -> Numerics:
    """The class of several changes together: that of the one that changes most."""
    known = [Numerics(one) for one in classes if one is not None]
    return max(known, key=ORDER.index) if known else default


def window_slices(count: int) -> tuple[slice, ...]:
    """WINDOWS parts of a sequence, of about equal length."""
    edges = [round(i * count / WINDOWS) for i in range(WINDOWS + 1)]
    return tuple(slice(a, b) for a, b in pairwise(edges))


def step_spread(losses: Sequence[float]) -> float:
    """Standard deviation of a loss around its trend: from the differences of neighbours, which the trend leaves."""
    if len(losses) < 2:
        return 0.0
    differences = [b - a for a, b in pairwise(losses)]
    return math.sqrt(math.fsum(d * d for d in differences) / (2 * len(differences)))


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _off_ratio(value: float, wanted: float) -> float:
    return abs(value - wanted) / max(abs(wanted), 1e-30)
