"""TraceAnalysis -> values from a profiler's files that several rules need: shares of the device window, and
forecasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotloop.core.analysis import Forecast
from hotloop.core.findings import Basis, Saving, Value, saving_within
from hotloop.core.timeline import BlameRow, IdleCauses
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank
from hotloop.judge.diagnose.measured import format_time

NO_DEVICE = "the trace shows no work on an accelerator"
MATERIAL_RATIO = 0.02
"""Below two percent of the window, there is nothing to save."""


def device_ranks(analysis: TraceAnalysis) -> tuple[TraceRank, ...]:
    """The ranks whose file shows device work."""
    return tuple(rank for rank in analysis.ranks if rank.judged_idle is not None and rank.judged is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstRank:
    """The rank that loses the largest share of its device's window to one cause."""

    rank: TraceRank
    cost_ratio: float
    whose: str
    """For a title: ``" of rank 3"``; empty if there is only one rank."""
    ranks: tuple[int, ...]
    """Numbers of the ranks that lose nearly as much; empty if all do."""

    @property
    def cost_ns(self) -> int:
        """Per step."""
        return round(self.cost_ratio * self.rank.step_ns)


def find_worst(ranks: Sequence[TraceRank], lost_ns: Callable[[TraceRank], float]) -> WorstRank | None:
    """By loss per window of each rank with device work; None if that is not material."""
    ratios = [lost_ns(rank) / window_ns(rank) for rank in ranks]
    cost_ratio = max(ratios)
    if cost_ratio < MATERIAL_RATIO:
        return None
    rank = ranks[ratios.index(cost_ratio)]
    alike = [one.facts.rank for one, ratio in zip(ranks, ratios, strict=True) if ratio >= 0.6 * cost_ratio]
    return WorstRank(
        rank=rank,
        cost_ratio=cost_ratio,
        whose=f" of rank {rank.facts.rank}" if len(ranks) > 1 else "",
        ranks=() if len(alike) == len(ranks) else tuple(number for number in alike if number is not None),
    )


def window_ns(rank: TraceRank) -> int:
    """Time of the busiest device that is judged, ns; only for ranks with device work."""
    assert rank.judged is not None
    return max(1, rank.judged.window_ns)


def idle_of(rank: TraceRank) -> IdleCauses:
    """Why that device idles; only for ranks with device work."""
    assert rank.judged_idle is not None
    return rank.judged_idle


def steps_in(rank: TraceRank) -> int:
    """Steps in this window, at least 1."""
    return max(1, rank.judged_steps_count)


def saving_from(forecast: Forecast | None, cost_ratio: float, low: float, mid: float, high: float) -> Saving:
    """The re-timed graph's forecast if there is one; else the given shares of the cost, by rule of thumb."""
    if forecast is None:
        return saving_within(cost_ratio, low * cost_ratio, mid * cost_ratio, high * cost_ratio, Basis.RULE_OF_THUMB)
    return saving_within(
        cost_ratio,
        forecast.saving_low_ratio,
        forecast.saving_mid_ratio,
        forecast.saving_high_ratio,
        Basis.SIMULATED,
    )


def describe_blame(row: BlameRow) -> Value:
    """One host activity with the idle time that it covers."""
    return f"{row.name}: {format_time(row.total_ns)}, {row.gaps_count} times"
