"""TraceAnalysis -> what several rules ask of a profiler's files: shares of the device window, and forecasts."""

from __future__ import annotations

from hotloop.core.analysis import Forecast
from hotloop.core.findings import Basis, Saving, Value, saving_within
from hotloop.core.timeline import BlameRow
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank
from hotloop.diagnose.wording import format_time

NO_DEVICE = "the trace shows no work of an accelerator"
MATERIAL_RATIO = 0.02
"""Below two percent of the window there is nothing to win."""


def device_ranks(analysis: TraceAnalysis) -> tuple[TraceRank, ...]:
    """The ranks whose file shows device work."""
    return tuple(rank for rank in analysis.ranks if rank.judged_idle is not None and rank.judged is not None)


def window_ns(rank: TraceRank) -> int:
    """Time of the busiest device that is judged, ns; only for ranks with device work."""
    assert rank.judged is not None
    return max(1, rank.judged.window_ns)


def steps_in(rank: TraceRank) -> int:
    """Steps that this time holds, at least 1."""
    return max(1, rank.judged_steps_count)


def saving_from(forecast: Forecast | None, cost_ratio: float, low: float, mid: float, high: float) -> Saving:
    """The re-timed graph's forecast where there is one; else the given shares of the cost, by rule of thumb."""
    if forecast is None:
        return saving_within(cost_ratio, low * cost_ratio, mid * cost_ratio, high * cost_ratio, Basis.RULE_OF_THUMB)
    return saving_within(
        cost_ratio,
        forecast.saving_low_ratio,
        forecast.saving_mid_ratio,
        forecast.saving_high_ratio,
        Basis.SIMULATED,
    )


def named_ranks(ranks: tuple[TraceRank, ...], total: int) -> tuple[int, ...]:
    """Numbers of the ranks that a finding is about; none when it is about all of them."""
    if len(ranks) == total:
        return ()
    return tuple(rank.facts.rank for rank in ranks if rank.facts.rank is not None)


def describe_blame(row: BlameRow) -> Value:
    """One host activity with the idle time that it covers."""
    return f"{row.name}: {format_time(row.total_ns)}, {row.gaps_count} times"
