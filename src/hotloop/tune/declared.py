"""Configurations of a declared grid and a campaign -> every one measured against the first, or why it cannot be.

Nothing is searched and nothing is combined: what was declared is what is told. A configuration that changes nothing in
the processes it was to change is ``not applicable``, never a baseline under another name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from hotloop.core.techniques import Technique
from hotloop.core.tuning import TrialVerdict

from . import statistics
from .grid import Configuration
from .quality import ORDER
from .search import Candidate
from .tuner import Arm, Campaign, end_arm, run_references, run_rounds


def declare_candidates(
    configurations: Sequence[Configuration], techniques: Mapping[str, Technique]
) -> tuple[Candidate, ...]:
    """Every configuration but the first, which all others are held against, as a candidate."""
    return tuple(
        Candidate(
            id=one.name,
            strategy=one.strategy,
            forecast=None,
            rules=(),
            numerics=_numerics_of(one, techniques),
            why_not=one.why_not,
            least_numerics=_launch_numerics(one),
        )
        for one in configurations[1:]
    )


def price_ratios(configurations: Sequence[Configuration], price_per_hour: float | None) -> dict[str, float | None]:
    """Price of an hour of every other configuration over the first one's; None where it has none.

    ``price_per_hour`` is that of configurations without a price of their own.
    """
    first, *others = [one.price_per_hour or price_per_hour for one in configurations]
    if first is None:
        return {}
    names = [one.name for one in configurations[1:]]
    return {name: None if price is None else price / first for name, price in zip(names, others, strict=True)}


def measure_declared(
    campaign: Campaign,
    candidates: Sequence[Candidate],
    configurations: Sequence[Configuration],
    observed: Sequence[Measurement],
) -> None:
    """Pairs of processes for every configuration until each is decided or the budget is used up."""
    rows = {one.name: one for one in configurations}
    campaign.halving = ()
    campaign.arms = [Arm(candidate=one) for one in candidates]
    for arm in campaign.arms:
        if arm.candidate.why_not:
            end_arm(campaign, arm, TrialVerdict.NOT_APPLICABLE, arm.candidate.why_not)
        elif _changes_work(rows[arm.candidate.id]) and not all(map(_counts_work, observed)):
            end_arm(campaign, arm, TrialVerdict.CANNOT_TELL, UNCOUNTED)
    active = [arm for arm in campaign.arms if arm.ended is None]
    if active:
        campaign.level = statistics.DECISION_LEVEL / len(active)
    run_references(campaign, observed)
    try:
        run_rounds(campaign, active, campaign.budget.search_until_s)
    finally:
        for arm in active:
            _have_last_word(campaign, arm, rows[arm.candidate.id])


UNCOUNTED = (
    "the number of samples per step is unknown and this configuration may change it: steps of different size "
    "cannot be compared"
)


def _have_last_word(campaign: Campaign, arm: Arm, row: Configuration) -> None:
    """What the search would call rejected, in the words of a grid; and comparisons that would not be fair."""
    if arm.ended is not None:
        if arm.unapplied is not None and arm.quality is None:
            reason = arm.unapplied.describe(implied=TrialVerdict.NOT_APPLICABLE.value)
            arm.ended = replace(arm.ended, verdict=TrialVerdict.NOT_APPLICABLE, reason=reason)
        return
    if not arm.own:
        return
    last = arm.own[-1]
    if row.ranks is not None and last.rank_count is not None and last.rank_count != row.ranks:
        why = f"{row.ranks} ranks were requested, but {last.rank_count} trained"
        end_arm(campaign, arm, TrialVerdict.NOT_APPLICABLE, why)
    elif row.ranks not in (None, 1) and last.exchanges is False:
        why = (
            f"no communication between its {row.ranks} ranks was observed: they may train {row.ranks} independent "
            "models"
        )
        end_arm(campaign, arm, TrialVerdict.CANNOT_TELL, why)
    elif _changes_work(row) and not all(map(_counts_work, arm.own)):
        end_arm(campaign, arm, TrialVerdict.CANNOT_TELL, UNCOUNTED)


def _numerics_of(row: Configuration, techniques: Mapping[str, Technique]) -> Numerics:
    known = [techniques[choice.technique].numerics for choice in row.strategy.choices]
    launch = _launch_numerics(row)
    return max([*known, launch] if launch else known, key=ORDER.index, default=Numerics.EXACT)


def _launch_numerics(row: Configuration) -> Numerics | None:
    """Other ranks or arguments: other batches may meet other weights; other variables (threads): sums in another order.

    Unless the grid says what they do.
    """
    if row.numerics is not None or not row.launch:
        return row.numerics
    return Numerics.RESAMPLED if _changes_work(row) else Numerics.REORDERED


def _changes_work(row: Configuration) -> bool:
    return row.ranks is not None or bool(row.arguments)


def _counts_work(one: Measurement) -> bool:
    return bool(one.samples_per_step) or bool(one.tokens_per_step)
