"""Analysis -> the rank whose checkpoints stop the loop, and what saving takes on each rank, by time field."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.recording import GAP_FIELDS
from hotloop.diagnose.lines import SAVING, time_of_kinds
from hotloop.diagnose.thresholds import threshold_ratio


def saving_rank(analysis: Analysis) -> RankAnalysis | None:
    """The rank that spends most on writing checkpoints; None where that is no material part of its steps."""
    rank = max(analysis.ranks, key=lambda one: one.breakdown.share("checkpoint"))
    written_ratio = rank.breakdown.share("checkpoint")
    if written_ratio <= 0 or written_ratio < threshold_ratio(rank, judged_fields=("checkpoint_ns",)):
        return None
    return rank


def saving_times_ns(rank: RankAnalysis) -> dict[str, float]:
    """Time field -> what saving takes of it per step: the save itself, and what its functions do around it."""
    found = {"checkpoint_ns": rank.mean.get("checkpoint_ns", 0.0)}
    found |= {name: time_of_kinds(rank, name, SAVING).mean_ns for name in GAP_FIELDS if rank.lines.get(name)}
    return {name: time_ns for name, time_ns in found.items() if time_ns > 0}
