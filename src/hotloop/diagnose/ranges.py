"""The upper end of a forecast: a fix wins more than the time that was timed at what it removes."""

from __future__ import annotations

from dataclasses import replace

from hotloop.core.findings import Finding, Kind

BEYOND_RATIO = 0.12
"""Of what is left of a step after the likeliest saving."""
BEYOND_COST_RATIO = 0.09
"""The same of what is left after the most that the rule of a fault could time."""
OF_THE_MIDDLE_RATIO = 0.5
"""A range goes at most so far on, as a share of its middle: what saves little cools few caches."""


def widen(finding: Finding) -> Finding:
    """The finding with room above for what its rule cannot time.

    A cost is the time in which something was seen to run or to wait. What it does to the rest of the step (caches,
    memory, threads that wake late) ends with it and is in no clock. Of 25 savings of 0.10 or more that the zoo's twins
    realised (state d96d9a4) 14 lay above a range that ended at the cost, none below it, and so did 10 of 21 of a fresh
    pass whose ranges went beyond their middle alone (4f1b170b4157). All numbers above were chosen from these scripts,
    which are known since. docs/decisions/006-range-widening.md says what may narrow it again.
    """
    saving = finding.saving
    if saving is None:
        return finding
    high_ratio = upper_end(saving.mid_ratio, saving.high_ratio, is_removal=finding.kind is Kind.FAULT)
    return replace(finding, saving=replace(saving, high_ratio=high_ratio))


def upper_end(mid_ratio: float, high_ratio: float, *, is_removal: bool) -> float:
    """The upper end of a forecast with this middle and, by its rule, this upper end: never less than that.

    >>> upper_end(0.25, 0.26, is_removal=False), upper_end(0.25, 0.4, is_removal=False)
    (0.34, 0.4)
    >>> upper_end(0.25, 0.4, is_removal=True), upper_end(0.04, 0.05, is_removal=True)
    (0.454, 0.07)
    >>> upper_end(0.0, 0.0, is_removal=True)
    0.0
    """
    beyond = mid_ratio + min(BEYOND_RATIO * (1 - mid_ratio), OF_THE_MIDDLE_RATIO * mid_ratio)
    if is_removal:
        most = high_ratio + min(BEYOND_COST_RATIO * (1 - high_ratio), OF_THE_MIDDLE_RATIO * mid_ratio)
        beyond = max(beyond, most)
    return max(high_ratio, round(beyond, 6))
