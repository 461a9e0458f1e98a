"""A candidate's losses and gradient norms beside the baseline's bands -> one judgement, and what a plot of it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hotloop.core.findings import Numerics, Value
from hotloop.core.measurement import Measurement
from hotloop.core.techniques import Technique

from .quality import LOSS, NORM, Bands, Quality, WatchedQuantity, half_widths, judge_losses, judge_norms, window_slices

MOST_POINTS = 80
"""Points of a curve in the report; the step where a candidate left its band is always one of them."""
DIGITS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardBands:
    """Both bands, fixed before a candidate runs."""

    loss: Bands
    norm: Bands


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """The judgement that counts, and ``summary``: it with both curves, as the report holds it."""

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
    """Step by step the baseline's mean, the band around it and the candidate's value; no more than MOST_POINTS."""
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
