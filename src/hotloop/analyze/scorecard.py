"""Analysis -> the bands of the usual tuning guides beside what was measured: context, never a judgement of a rule."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.report import ScorecardRow

GOOD, FAIR, BAD, UNKNOWN = "good", "fair", "bad", "unknown"

PHASE_BANDS = (("forward", 0.30, 0.40), ("backward", 0.40, 0.50), ("optimizer", 0.05, 0.10))
"""Shares of the step that guides call typical, 0..1."""


def build_scorecard(analysis: Analysis) -> tuple[ScorecardRow, ...]:
    """One row per band; ``measured_ratio`` is None, and the verdict unknown, where nothing was measured."""
    return (
        _lower_is_better("data wait, share of the step", analysis.share("input_wait"), 0.10, 0.30),
        _lower_is_better(
            "host-to-device copies, share of the step",
            analysis.share("h2d") if analysis.accelerator else None,
            0.05,
            0.15,
        ),
        _lower_is_better("all-reduce over backward", measure_all_reduce_ratio(analysis), 0.15, 0.30),
        # A share of busy time is claimed from a kernel timeline only, and none is recorded here.
        ScorecardRow(
            name="accelerator utilisation", measured_ratio=None, good="above 80 %", bad="below 50 %", verdict=UNKNOWN
        ),
        *(
            _within_band(f"{phase}, share of the step", analysis.share(phase), low, high)
            for phase, low, high in PHASE_BANDS
        ),
    )


def measure_all_reduce_ratio(analysis: Analysis) -> float | None:
    """Time in gradient collectives over the time of the backwards that they belong to, mean over ranks.

    Overlapped communication is included, as it is in the guides' figure. None when it was not measured on any rank.
    """
    ratios = []
    for rank in analysis.ranks:
        synced = rank.mean["synced_backwards"]
        backwards = rank.mean["backwards"]
        if rank.ddp is None or rank.ddp.comm_ns is None or synced <= 0 or backwards <= 0:
            continue
        backward_ns = rank.mean["backward_ns"] / backwards
        if backward_ns > 0:
            ratios.append(rank.ddp.comm_ns / backward_ns)
    return sum(ratios) / len(ratios) if ratios else None


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
        good=f"below {good_ratio:.0%}".replace("%", " %"),
        bad=f"above {bad_ratio:.0%}".replace("%", " %"),
        verdict=verdict,
    )


def _within_band(name: str, measured_ratio: float, low_ratio: float, high_ratio: float) -> ScorecardRow:
    return ScorecardRow(
        name=name,
        measured_ratio=measured_ratio,
        good=f"{low_ratio * 100:.0f}-{high_ratio * 100:.0f} %",
        bad="",
        verdict=GOOD if low_ratio <= measured_ratio <= high_ratio else FAIR,
    )
