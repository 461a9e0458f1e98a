"""Losses or gradient norms of the baseline's processes -> bands, fixed before a candidate runs; a candidate -> inside?

Seeds are never set. Two baseline processes whose losses agree bit for bit make the comparison one of equal steps; else
the bands are the baseline's own spread over at least three processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hotloop.core.findings import Numerics, Value
from hotloop.core.measurement import Measurement
from hotloop.core.techniques import Technique

from .statistics import stdev_of, t_bound

WINDOWS = 4
LEAST_STEPS = 8
LEAST_PROCESSES = 3
SPREAD_LEVEL = 0.001
QUARTERS = ("at the start", "in the second quarter", "in the third quarter", "late in the run")
ORDER = (Numerics.EXACT, Numerics.REORDERED, Numerics.RESAMPLED, Numerics.LOSSY)


EXPLAINS = {
    Numerics.EXACT: "chance",
    Numerics.REORDERED: "a different summation order",
    Numerics.RESAMPLED: "different random draws",
    Numerics.LOSSY: "lower precision",
}
"""The reason to differ in each class of numerics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedQuantity:
    """A quantity of a training's steps, and how far it may be off by class of numerics."""

    name: str
    first_ratio: Mapping[Numerics, float]
    """In the first step: before any update only the arithmetic differs."""
    window_ratio: Mapping[Numerics, float]
    """In the mean of a quarter of the trial."""
    exact_ratio: float
    """In any step, for what should be exact."""


LOSS = WatchedQuantity(
    name="loss",
    # float32 sums in another order differ by some 1e-6, bfloat16's products by 2**-8 each.
    first_ratio={Numerics.REORDERED: 1e-4, Numerics.LOSSY: 0.02},
    window_ratio={Numerics.REORDERED: 0.01, Numerics.RESAMPLED: 0.05, Numerics.LOSSY: 0.03},
    exact_ratio=0.0,
)
NORM = WatchedQuantity(
    name="gradient norm",
    first_ratio={Numerics.REORDERED: 1e-3, Numerics.LOSSY: 0.05},
    window_ratio={Numerics.REORDERED: 0.05, Numerics.RESAMPLED: 0.15, Numerics.LOSSY: 0.15},
    # Equal gradients at other places in memory are summed in another order.
    exact_ratio=1e-5,
)
"""A norm shows what Adam's steps hide from the loss: gradients of another size. Measured on a transformer, an MLP and a
convolution, AdamW and SGD, 240 steps: bfloat16 autocast moves the first norm by up to 0.13 % and the mean of a quarter
by up to 1.2 %, a rounding error of 1e-6 the latter by up to 0.3 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """The range that the baseline's values allow. ``unknown`` says why nothing can be judged, else it is empty."""

    unknown: str
    process_count: int
    is_repeatable: bool = False
    """Baseline processes agree bit for bit."""
    losses: tuple[float, ...] = ()
    """Losses of the first process."""
    windows: tuple[tuple[float, float], ...] = ()
    """Mean over processes of each window's mean, and how far a fresh process may be off by chance."""
    steps: tuple[int, ...] = ()
    """The number of each value's step, from 1."""
    means: tuple[float, ...] = ()
    """Mean over processes, step by step."""
    is_finite: bool = False
    """Values were seen and all are finite, so that a candidate's that are not are the candidate's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """``status`` is 'passed', 'rejected' or 'unknown'; ``left_at_step`` is where a rejected candidate left its band."""

    status: str
    reason: str
    left_at_step: int | None = None


def make_bands(processes: Sequence[Sequence[float | None]], unseen: str = "") -> Bands:
    """The bands of the losses of the baseline's processes (per step, from the first one)."""

    def nothing(why: str) -> Bands:
        finite = all(x is not None and math.isfinite(x) for one in processes for x in one) and any(processes)
        return Bands(unknown=why, process_count=len(processes), is_finite=finite)

    if unseen:
        return nothing(unseen)
    if len(processes) < 2:
        return nothing("the loss was recorded in fewer than two processes of the baseline")
    count = min(len(one) for one in processes)
    cut = [[math.nan if x is None else x for x in one[:count]] for one in processes]
    bad = next(((i, one[i]) for one in processes for i in range(count) if not _is_finite(one[i])), None)
    if count >= LEAST_STEPS and bad is not None:
        step, value = bad
        why = "was not recorded" if value is None else f"is {value}: training diverges with the unchanged command"
        return nothing(f"the baseline's own loss {why} in step {step + 1}")
    return _bands_of(cut, range(1, count + 1), LOSS, nothing)


def make_norm_bands(processes: Sequence[Sequence[tuple[int, float | None]]], unseen: str = "") -> Bands:
    """The bands of the gradient norms (row and value); only rows that have a finite one in every process count."""

    def nothing(why: str) -> Bands:
        return Bands(unknown=why, process_count=len(processes))

    if unseen:
        return nothing(unseen)
    if len(processes) < 2:
        return nothing("gradient norms were recorded in fewer than two processes of the baseline")
    known = [{row: x for row, x in one if x is not None and math.isfinite(x)} for one in processes]
    rows = sorted(set.intersection(*(set(one) for one in known)))
    cut = [[one[row] for row in rows] for one in known]
    return _bands_of(cut, [row + 1 for row in rows], NORM, nothing)


def _bands_of(
    cut: list[list[float]], steps: Sequence[int], watched: WatchedQuantity, nothing: Callable[[str], Bands]
) -> Bands:
    count = len(steps)
    if count < LEAST_STEPS:
        plural = "losses" if watched is LOSS else f"{watched.name}s"
        return nothing(f"only {count} {plural} were recorded; at least {LEAST_STEPS} are needed")
    repeatable = repeats_bit_for_bit(cut)
    if not repeatable and len(cut) < LEAST_PROCESSES:
        return nothing(f"the baseline is not reproducible, and only {len(cut)} of its processes were recorded")
    windows = []
    for part in window_slices(count):
        means = [math.fsum(one[part]) / len(one[part]) for one in cut]
        middle = math.fsum(means) / len(means)
        off = 0.0
        if not repeatable:
            off = t_bound(len(means) - 1, SPREAD_LEVEL) * stdev_of(means) * math.sqrt(1 + 1 / len(means))
        windows.append((middle, off))
    return Bands(
        unknown="",
        is_repeatable=repeatable,
        process_count=len(cut),
        losses=tuple(cut[0]),
        windows=tuple(windows),
        steps=tuple(steps),
        means=tuple(math.fsum(values) / len(values) for values in zip(*cut, strict=True)),
        is_finite=True,
    )


def half_widths(bands: Bands, numerics: Numerics, watched: WatchedQuantity = LOSS) -> tuple[float, ...]:
    """How far the mean of each window may be off for a class: known before a candidate of it runs."""
    widths = []
    for part, (middle, chance) in zip(window_slices(len(bands.steps)), bands.windows, strict=True):
        within = chance + watched.window_ratio.get(numerics, watched.exact_ratio) * abs(middle)
        if numerics is Numerics.RESAMPLED:  # other data: the steps' own spread is chance too
            held = bands.losses[part]
            within += 3 * step_spread(held) * math.sqrt(2 / len(held))
        widths.append(within)
    return tuple(widths)


def repeats_bit_for_bit(processes: Sequence[Sequence[float | None]]) -> bool:
    """Whether at least two processes were seen and their losses agree, over the length of the shortest."""
    count = min((len(one) for one in processes), default=0)
    return (
        len(processes) >= 2 and count >= LEAST_STEPS and all(one[:count] == processes[0][:count] for one in processes)
    )


def judge_losses(bands: Bands, losses: Sequence[float | None], numerics: Numerics, unseen: str = "") -> Quality:
    """Whether a candidate's losses stay inside what its numerics class allows."""
    bad = next((i for i, x in enumerate(losses) if x is not None and not math.isfinite(x)), None)
    if bad is not None and bands.is_finite and not unseen:
        return _diverged(LOSS, bad + 1, losses[bad])
    if bands.unknown or unseen:
        return Quality(status="unknown", reason=bands.unknown or unseen)
    known = [math.nan if x is None else x for x in losses[: len(bands.losses)]]
    if len(known) < len(bands.losses):
        return Quality(
            status="unknown", reason=f"{len(known)} losses were recorded, but the baseline has {len(bands.losses)}"
        )
    if any(math.isnan(x) for x in known):
        return Quality(status="unknown", reason="in some steps the loss was not recorded")
    return _judge(bands, known, numerics, LOSS)


def judge_norms(
    bands: Bands, norms: Sequence[tuple[int, float | None]], numerics: Numerics, unseen: str = ""
) -> Quality:
    """Whether a candidate's gradient norms stay inside what its numerics class allows."""
    if bands.unknown or unseen:
        return Quality(status="unknown", reason=bands.unknown or unseen)
    by_step = {row + 1: x for row, x in norms}
    for step in bands.steps:
        value = by_step.get(step)
        if value is not None and not math.isfinite(value):
            return _diverged(NORM, step, value)
    known = [x for x in (by_step.get(step) for step in bands.steps) if x is not None]
    if len(known) < len(bands.steps):
        step = next(step for step in bands.steps if by_step.get(step) is None)
        return Quality(status="unknown", reason=f"the gradient norm of step {step} was not recorded")
    return _judge(bands, known, numerics, NORM)


def _diverged(watched: WatchedQuantity, step: int, value: float | None) -> Quality:
    return Quality(
        status="rejected", reason=f"diverged: the {watched.name} of step {step} is {value}", left_at_step=step
    )


def _judge(bands: Bands, known: Sequence[float], numerics: Numerics, watched: WatchedQuantity) -> Quality:
    plural = "losses" if watched is LOSS else f"{watched.name}s"
    if bands.is_repeatable:
        if tuple(known) == bands.losses:
            return Quality(status="passed", reason=f"{len(known)} {plural} are equal bit for bit")
        pairs = list(zip(bands.steps, known, bands.losses, strict=True))
        if numerics is Numerics.EXACT:
            for step, mine, theirs in pairs:
                if abs(mine - theirs) > watched.exact_ratio * abs(theirs):
                    reason = f"should be exact, but the {watched.name} of step {step} is {mine!r}, not {theirs!r}"
                    return Quality(status="rejected", reason=reason, left_at_step=step)
        allowed = watched.first_ratio.get(numerics)
        off = _off_ratio(known[0], bands.losses[0])
        if allowed is not None and off > allowed:
            return Quality(
                status="rejected",
                reason=f"the first {watched.name} differs by more than {EXPLAINS[numerics]} explains: {known[0]:.6g} "
                f"against {bands.losses[0]:.6g} (off by {off:.2%}, allowed {allowed:.2%})",
                left_at_step=bands.steps[0],
            )
    widest = 0.0
    widths = half_widths(bands, numerics, watched)
    parts = zip(window_slices(len(known)), bands.windows, widths, strict=True)
    for number, (part, (middle, _), within) in enumerate(parts):
        mean = math.fsum(known[part]) / len(known[part])
        if abs(mean - middle) > within:
            steps, means = bands.steps[part], bands.means[part]
            apart = [abs(mine - theirs) for mine, theirs in zip(known[part], means, strict=True)]
            # The mean is further off than the band is wide, so one step at least is.
            left = next((step for step, far in zip(steps, apart, strict=True) if far > within), steps[0])
            return Quality(
                status="rejected",
                reason=f"the {plural} {QUARTERS[number]} differ by more than {EXPLAINS[numerics]} explains: their "
                f"mean is {mean:.6g} against {middle:.6g} (off by {_off_ratio(mean, middle):.2%}, allowed "
                f"{within / max(abs(middle), 1e-30):.2%}), first outside at step {left}",
                left_at_step=left,
            )
        widest = max(widest, _off_ratio(mean, middle))
    how = "is reproducible bit for bit" if bands.is_repeatable else f"varies over {bands.process_count} processes"
    return Quality(
        status="passed", reason=f"within {widest:.2%} over {len(known)} steps ({numerics.value}; the baseline {how})"
    )


def widest_numerics(classes: Sequence[str | None], default: Numerics) -> Numerics:
    """The class of several changes together: that of the change with the largest effect."""
    known = [Numerics(one) for one in classes if one is not None]
    return max(known, key=ORDER.index) if known else default


def window_slices(count: int) -> tuple[slice, ...]:
    """WINDOWS parts of a sequence, of about equal length."""
    edges = [round(i * count / WINDOWS) for i in range(WINDOWS + 1)]
    return tuple(slice(a, b) for a, b in pairwise(edges))


def step_spread(losses: Sequence[float]) -> float:
    """Standard deviation of a loss around its trend, from the differences of adjacent values, which hold no trend."""
    if len(losses) < 2:
        return 0.0
    differences = [b - a for a, b in pairwise(losses)]
    return math.sqrt(math.fsum(d * d for d in differences) / (2 * len(differences)))


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _off_ratio(value: float, wanted: float) -> float:
    return abs(value - wanted) / max(abs(wanted), 1e-30)


MOST_POINTS = 80
"""Points of a curve in the report; the step where a candidate left its band is always one of them."""
DIGITS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardBands:
    """Both bands, fixed before a candidate runs."""

    loss: Bands
    norm: Bands


def make_guard(references: Sequence[Measurement], seen: Sequence[Measurement]) -> GuardBands:
    """The bands of the unchanged command's processes; ``seen`` are those whose losses and norms have to be known."""
    return GuardBands(
        loss=make_bands([one.losses for one in references], first_unseen([one.losses_unseen for one in seen])),
        norm=make_norm_bands([one.norms for one in references], first_unseen([one.norms_unseen for one in seen])),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """The judgment that counts, and ``summary``: it with both curves, as the report holds it."""

    quality: Quality
    summary: Mapping[str, Value]


def judge_measured(bands: GuardBands, measured: Measurement, numerics: Numerics) -> Guarded:
    """Rejected when either leaves its band; else what the loss says. Norms alone prove nothing."""
    loss = judge_losses(bands.loss, measured.losses, numerics, measured.losses_unseen)
    norm = judge_norms(bands.norm, measured.norms, numerics, measured.norms_unseen)
    overall = norm if norm.status == "rejected" and loss.status != "rejected" else loss
    loss_curve = _curve(bands.loss, dict(enumerate(measured.losses, 1)), numerics, LOSS, loss)
    norm_curve = _curve(bands.norm, {row + 1: x for row, x in measured.norms}, numerics, NORM, norm)
    summary: dict[str, Value] = {
        "status": overall.status,
        "reason": overall.reason,
        "numerics": numerics.value,
        "left_at_step": overall.left_at_step,
        "loss": {"status": loss.status, "reason": loss.reason, **loss_curve},
        "gradient_norm": {"status": norm.status, "reason": norm.reason, **norm_curve},
    }
    return Guarded(quality=overall, summary=summary)


def excuse_norms(measured: Measurement, techniques: Mapping[str, Technique]) -> Measurement:
    """A process whose gradient norms are not judged where one of its techniques changes them by design."""
    whys = (
        techniques[one.technique].why_norms_differ({**one.settings, **one.values})
        for one in measured.applied
        if one.is_applied and one.technique in techniques
    )
    return replace(measured, norms_unseen=measured.norms_unseen or first_unseen(tuple(whys)))


def _curve(
    bands: Bands, values: Mapping[int, float | None], numerics: Numerics, watched: WatchedQuantity, quality: Quality
) -> dict[str, Value]:
    """Step by step, the baseline's mean, the band around it and the candidate's value; no more than MOST_POINTS."""
    if bands.unknown or not values:
        return {}
    widths = half_widths(bands, numerics, watched)
    slices = window_slices(len(bands.steps))
    wide = [width for width, part in zip(widths, slices, strict=True) for _ in range(part.stop - part.start)]
    places = pick_places(len(bands.steps), MOST_POINTS)
    if quality.left_at_step in bands.steps:
        places = sorted({*places, bands.steps.index(quality.left_at_step)})
    return {
        "left_at_step": quality.left_at_step,
        "steps": [bands.steps[i] for i in places],
        "baseline": [_plain(bands.means[i]) for i in places],
        "low": [_plain(bands.means[i] - wide[i]) for i in places],
        "high": [_plain(bands.means[i] + wide[i]) for i in places],
        "candidate": [_plain(values.get(bands.steps[i])) for i in places],
    }


def pick_places(count: int, most: int) -> list[int]:
    """Up to ``most`` places of a sequence, evenly apart, the first and the last among them.

    >>> pick_places(5, 10), pick_places(9, 3)
    ([0, 1, 2, 3, 4], [0, 4, 8])
    """
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _plain(value: float | None) -> float | None:
    """A number that JSON can hold, without digits that nobody reads."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def first_unseen(reasons: Sequence[str]) -> str:
    """The first reason that is one."""
    return next((reason for reason in reasons if reason), "")
