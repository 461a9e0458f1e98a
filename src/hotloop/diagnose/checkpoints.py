"""Analysis -> the rank whose checkpoints stop the loop, and what saving takes on each rank, by time field."""

from __future__ import annotations

import math
import statistics

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.recording import GAP_FIELDS
from hotloop.diagnose.lines import SAVING, time_of_kinds
from hotloop.diagnose.thresholds import MATERIAL_RATIO, NOISE_MULTIPLE, threshold_ratio


def saving_rank(analysis: Analysis) -> RankAnalysis | None:
    """The rank that spends most on writing checkpoints; None where that is no material part of its steps."""
    rank = most_saving_rank(analysis)
    written_ratio = rank.breakdown.share("checkpoint")
    if written_ratio < MATERIAL_RATIO:
        return None
    is_sure = _saves_alike(rank) or written_ratio >= threshold_ratio(rank, judged_fields=("checkpoint_ns",))
    return rank if is_sure else None


def most_saving_rank(analysis: Analysis) -> RankAnalysis:
    """The rank with the largest share of its steps in saves, however small."""
    return max(analysis.ranks, key=lambda one: one.breakdown.share("checkpoint"))


def _saves_alike(rank: RankAnalysis) -> bool:
    """Whether saves recur, and their mean time exceeds its noise: each was clocked, however uneven the steps are."""
    saves = [ns for ns in rank.columns.get("checkpoint_ns", ()) if ns > 0]
    if len(saves) < 2:
        return False
    return statistics.fmean(saves) >= NOISE_MULTIPLE * statistics.stdev(saves) / math.sqrt(len(saves))


def saving_times_ns(rank: RankAnalysis) -> dict[str, float]:
    """Time field -> what saving takes of it per step: the save itself, and what its functions do around it."""
    found = {"checkpoint_ns": rank.mean.get("checkpoint_ns", 0.0)}
    found |= {name: time_of_kinds(rank, name, SAVING).mean_ns for name in GAP_FIELDS if rank.lines.get(name)}
    return {name: time_ns for name, time_ns in found.items() if time_ns > 0}
