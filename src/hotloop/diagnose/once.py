"""RankAnalysis -> what the start of a run cost beyond its steady steps, and how grave it is to pay that once."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.analysis import RankAnalysis
from hotloop.core.findings import Basis, Saving, Severity, severity_of

MATERIAL_RUN_RATIO = 0.05
"""From this share of the run on, what is paid once is told: half of what makes the left-out part a warning."""

LOWERED = {
    Severity.HIGH: Severity.MEDIUM,
    Severity.MEDIUM: Severity.LOW,
    Severity.LOW: Severity.INFO,
    Severity.INFO: Severity.INFO,
}


def severity_once(run_ratio: float) -> Severity:
    """One level below that of the same share lost in every step: a longer training makes it smaller.

    >>> severity_once(0.9).value, severity_once(0.1).value
    ('medium', 'low')
    """
    share = min(1.0, max(0.0, run_ratio))
    return LOWERED[severity_of(Saving(low_ratio=share, mid_ratio=share, high_ratio=share, basis=Basis.MEASURED))]


def settling_column(rank: RankAnalysis, *names: str) -> Sequence[int]:
    """The sum of some fields in every warm-up step behind the first, which has costs of its own that no one can avoid;
    empty where the recording does not show them."""
    columns = [rank.warmup_columns[name] for name in names] if rank.warmup_columns else []
    return [sum(max(0, value) for value in values) for values in zip(*columns, strict=True)][1:]


def run_ratio(rank: RankAnalysis, part_ns: float) -> float:
    """A time's share of the run from its first step to its end, 0..1; 0 where the run is not known."""
    run_ns = 0 if rank.excluded is None else rank.excluded.run_ns
    return min(1.0, part_ns / run_ns) if run_ns else 0.0
