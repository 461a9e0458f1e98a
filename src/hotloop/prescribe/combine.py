"""Findings that are shown together -> the saving that their fixes would give together."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hotloop.core.findings import Finding, Saving
from hotloop.core.report import CombinedSaving

_COMPUTATION = "computation"
_SHARED = {"forward": _COMPUTATION, "backward": _COMPUTATION, None: _COMPUTATION}
"""Phases that the same techniques treat; a finding without a phase counts with the computation."""


def combine_savings(findings: Iterable[Finding]) -> CombinedSaving | None:
    """What the fixes of these findings save together, as fractions of the time per unit; None when nothing has a fix.

    Savings do not add up. Within a phase two fixes may win the same time twice: at least what one of them surely wins
    counts, at most each wins its share of what the ones before it left, and the middle between the two is the most
    likely. What different phases lose are disjoint parts of one step, so their savings add. The sum never exceeds what
    the findings say is lost, or the highest upper end of one phase.
    """
    groups: dict[str, list[tuple[Finding, Saving]]] = {}
    techniques: list[str] = []
    for finding in findings:
        if finding.fix is None or finding.saving is None or finding.saving.mid_ratio <= 0:
            continue
        groups.setdefault(_group_of(finding), []).append((finding, finding.saving))
        techniques.append(finding.fix.technique)
    if not groups:
        return None
    costs = [_in_turn(_cost(finding, saving) for finding, saving in group) for group in groups.values()]
    low = _together(max(saving.low_ratio for _, saving in group) for group in groups.values())
    mid = _together(_middle([saving.mid_ratio for _, saving in group]) for group in groups.values())
    highs = [_in_turn(saving.high_ratio for _, saving in group) for group in groups.values()]
    # Where more than the step is lost in all, the parts are not disjoint.
    are_disjoint = math.fsum(costs) <= 1.0
    high = min(_together(highs), max(math.fsum(costs), *highs)) if are_disjoint else _in_turn(highs)
    mid = min(mid, high)
    return CombinedSaving(
        techniques=tuple(dict.fromkeys(techniques)),
        low_ratio=min(low, mid),
        mid_ratio=mid,
        high_ratio=high,
    )


def _group_of(finding: Finding) -> str:
    """Findings of one group win the same time. The phase ``other`` is many gaps: each rule has its own lines there."""
    if finding.phase == "other":
        return f"other:{finding.rule}"
    return _SHARED.get(finding.phase, finding.phase or _COMPUTATION)


def _cost(finding: Finding, saving: Saving) -> float:
    return saving.high_ratio if finding.cost_ratio is None else finding.cost_ratio


def _in_turn(ratios: Iterable[float]) -> float:
    """Each wins its share of what is left.

    >>> round(_in_turn([0.5, 0.2]), 3)
    0.6
    """
    left = 1.0
    for ratio in ratios:
        left *= 1.0 - ratio
    return 1.0 - left


def _middle(ratios: list[float]) -> float:
    return 0.5 * (max(ratios) + _in_turn(ratios))


def _together(ratios: Iterable[float]) -> float:
    return min(1.0, sum(ratios))
