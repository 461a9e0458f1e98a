"""Analysis -> the bands of the usual tuning guides beside what was measured: context, never a judgement of a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hotloop.core.analysis import Analysis, DdpFacts
from hotloop.core.report import ScorecardRow
from hotloop.core.utilization import GOOD_RATIO, LOW_RATIO, TEXT

GOOD, FAIR, BAD, UNKNOWN = "good", "fair", "bad", "unknown"

PHASE_BANDS = (("forward", 0.30, 0.40), ("backward", 0.40, 0.50), ("optimizer", 0.05, 0.10))
"""Shares of the step that guides call typical, 0..1."""


def build_scorecard(analysis: Analysis) -> tuple[ScorecardRow, ...]:
    """One row per band; ``measured_ratio`` is None, and the verdict unknown, where nothing was measured."""
    return (
        _rate_data_wait(analysis),
        _lower_is_better(
            "host-to-device copies, share of the step",
            analysis.share("h2d") if analysis.accelerator else None,
            0.05,
            0.15,
        ),
        _lower_is_better("all-reduce (hidden part too) over backward", measure_all_reduce_ratio(analysis), 0.15, 0.30),
        # No guide gives a band for it: it stands there because what is hidden costs nothing.
        ScorecardRow(
            name="exposed all-reduce over backward",
            measured_ratio=measure_exposed_ratio(analysis),
            good="",
            bad="",
            verdict=UNKNOWN,
        ),
        *(
            _within_band(f"{phase}, share of the step", _phase_share(analysis, phase), low, high)
            for phase, low, high in PHASE_BANDS
        ),
        *_list_utilization(analysis),
    )


def _list_utilization(analysis: Analysis) -> Iterator[ScorecardRow]:
    """The device's where there is one, else the cores'; MFU has no band that fits all models, so it has none here."""
    used = analysis.utilization
    names = ["utilization_ratio" if analysis.accelerator else "cpu_utilization_ratio", "mfu_ratio"]
    for name in names:
        ratio = used.device_ratio if name == "utilization_ratio" else getattr(used, name)
        band = name == "utilization_ratio"
        verdict = UNKNOWN
        if band and ratio is not None:
            verdict = GOOD if ratio >= GOOD_RATIO else BAD if ratio < LOW_RATIO else FAIR
        yield ScorecardRow(
            name=TEXT[name],
            measured_ratio=ratio,
            good=f"from {GOOD_RATIO:.0%}" if band else "",
            bad=f"below {LOW_RATIO:.0%}" if band else "",
            verdict=verdict,
        )


def measure_all_reduce_ratio(analysis: Analysis) -> float | None:
    """Time in gradient collectives over the time of all backwards of a step, mean over ranks.

    Overlapped communication is included, as it is in the guides' figure: it says how much there is to hide, not what
    is lost. None when it was not measured on any rank.
    """
    return _mean_over_backward(analysis, lambda ddp: ddp.comm_ns)


def measure_exposed_ratio(analysis: Analysis) -> float | None:
    """The part of ``measure_all_reduce_ratio`` that no computation hides."""
    return _mean_over_backward(analysis, lambda ddp: ddp.exposed_comm_ns)


def _mean_over_backward(analysis: Analysis, choose: Callable[[DdpFacts], float | None]) -> float | None:
    ratios = []
    for rank in analysis.ranks:
        chosen_ns = None if rank.ddp is None else choose(rank.ddp)
        synced = rank.mean["synced_backwards"]
        if chosen_ns is None or synced <= 0 or rank.mean["backward_ns"] <= 0:
            continue
        ratios.append(chosen_ns * synced / rank.mean["backward_ns"])
    return sum(ratios) / len(ratios) if ratios else None


def _rate_data_wait(analysis: Analysis) -> ScorecardRow:
    """Unknown where no DataLoader gave a batch: the loop makes its own, and no wait tells what that takes."""
    is_seen = analysis.share("input_wait") > 0 or any(rank.mean["batches"] > 0 for rank in analysis.ranks)
    row = _lower_is_better(
        "data wait, share of the step", analysis.share("input_wait") if is_seen else None, 0.10, 0.30
    )
    return row if is_seen else replace(row, reason="no DataLoader was seen in the loop")


def _lower_is_better(name: str, measured_ratio: float | None, good_ratio: float, bad_ratio: float) -> ScorecardRow:
    if measured_ratio is None:
        verdict = UNKNOWN
    elif measured_ratio < good_ratio:
        verdict = GOOD
    else:
        verdict = BAD if measured_ratio > bad_ratio else FAIR
    return ScorecardRow(
        name=name,
        measured_ratio=measured_ratio,
        good=f"below {good_ratio:.0%}",
        bad=f"above {bad_ratio:.0%}",
        verdict=verdict,
    )


def _phase_share(analysis: Analysis, phase: str) -> float | None:
    """None for the optimizer of a loop that updates its parameters by hand: its time stands in other."""
    if phase == "optimizer" and not any(rank.optimizers for rank in analysis.ranks):
        return analysis.share(phase) or None
    return analysis.share(phase)


def _within_band(name: str, measured_ratio: float | None, low_ratio: float, high_ratio: float) -> ScorecardRow:
    judged = GOOD if measured_ratio is not None and low_ratio <= measured_ratio <= high_ratio else FAIR
    return ScorecardRow(
        name=name,
        measured_ratio=measured_ratio,
        good=f"{low_ratio * 100:.0f}–{high_ratio * 100:.0f}%",
        bad="",
        verdict=UNKNOWN if measured_ratio is None else judged,
    )
