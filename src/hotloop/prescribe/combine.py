"""Findings that are shown together -> the saving that their fixes would give together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

from hotloop.core.findings import Basis, Finding, Saving
from hotloop.core.phases import Breakdown
from hotloop.core.report import CombinedSaving

_COMPUTATION = "computation"
_ANYWHERE = "anywhere"
_GROUPS = {"forward": _COMPUTATION, "backward": _COMPUTATION, None: _ANYWHERE}
"""Phases that the same techniques treat. A finding without a phase may treat any time of the step."""
_BASES = (Basis.RULE_OF_THUMB, Basis.SIMULATED, Basis.MEASURED)

Four = tuple[float, float, float, float]
"""Low, middle and high saving, and the cost: fractions of the time per unit."""
NOTHING: Four = (0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Group:
    """What is saved of one part of the step."""

    own: list[Four] = field(default_factory=list)
    """Of time that one finding alone counts: disjoint parts, so that they add."""
    shared: list[Four] = field(default_factory=list)
    """By findings that treat what is there, whoever else does: two may win the same time."""

    def together(self, size_ratio: float) -> Four:
        """The group's saving, where ``size_ratio`` is its part of the step."""
        low, mid, high, cost = (fsum(values) for values in zip(NOTHING, *self.own, strict=True))
        lows, mids, highs, costs = zip(NOTHING, *self.shared, strict=True)
        return (
            max(low, *lows),
            _then(mid, 0.5 * (max(mids) + _in_turn(mids)), size_ratio),
            _then(high, _in_turn(highs), size_ratio),
            _then(cost, _in_turn(costs), size_ratio),
        )


def combine_savings(findings: Iterable[Finding], breakdown: Breakdown | None = None) -> CombinedSaving | None:
    """What the fixes of these findings save together, as fractions of the time per unit; None when nothing has a fix.

    Time that one finding alone counts (``Finding.time_ns``) is no other's: such savings add. Fixes that treat a whole
    phase beside them win their share of what is left of it; of two of those one may win the other's time, so that at
    least the surest of them counts, at most one after the other, and the middle between the larger alone and that is
    the most likely. The sum never exceeds what the findings say is lost, or the highest upper end of one phase.
    ``breakdown`` tells how large the phases are; without it each of them counts as the whole step.
    """
    groups: dict[str, _Group] = {}
    techniques: list[str] = []
    for finding in findings:
        if finding.fix is None or finding.saving is None or finding.saving.mid_ratio <= 0:
            continue
        _add(finding, finding.saving, groups)
        techniques.append(finding.fix.technique)
    if not groups:
        return None
    anywhere = groups.pop(_ANYWHERE, _Group())
    parts = [group.together(_size_ratio(name, breakdown)) for name, group in groups.items()]
    low, mid, high, cost = (min(1.0, fsum(values)) for values in zip(NOTHING, *parts, strict=True))
    highs = [part[2] for part in parts]
    # Where more than the step is lost in all, the parts are not disjoint.
    are_disjoint = fsum(part[3] for part in parts) <= 1.0
    high = min(high, max(cost, *highs, 0.0)) if are_disjoint else _in_turn(highs)
    anywhere.own.append((low, min(mid, high), high, cost))
    low, mid, high, _ = anywhere.together(1.0)
    return CombinedSaving(
        techniques=tuple(dict.fromkeys(techniques)),
        low_ratio=min(low, mid),
        mid_ratio=mid,
        high_ratio=max(mid, high),  # of 1e-38 the sum in turn leaves nothing
    )


def state_rule_savings(findings: Sequence[Finding], breakdown: Breakdown | None = None) -> tuple[Finding, ...]:
    """The findings; of a rule that has several, each with what the fixes of all of them save together."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.saving is not None and finding.saving.mid_ratio > 0:
            by_rule.setdefault(finding.rule, []).append(finding)
    sums = {rule: _as_one(group, breakdown) for rule, group in by_rule.items() if len(group) > 1}
    return tuple(replace(finding, rule_saving=sums.get(finding.rule)) for finding in findings)


def _as_one(findings: Sequence[Finding], breakdown: Breakdown | None) -> Saving | None:
    both = combine_savings(findings, breakdown)
    if both is None:
        return None
    bases = [finding.saving.basis for finding in findings if finding.saving is not None]
    return Saving(
        low_ratio=both.low_ratio,
        mid_ratio=both.mid_ratio,
        high_ratio=both.high_ratio,
        basis=min(bases, key=_BASES.index),
    )


def _add(finding: Finding, saving: Saving, groups: dict[str, _Group]) -> None:
    """A finding's saving, by the groups in which it has time: in proportion where there are several."""
    cost_ratio = saving.high_ratio if finding.cost_ratio is None else finding.cost_ratio
    all_of_it: Four = (saving.low_ratio, saving.mid_ratio, saving.high_ratio, cost_ratio)
    whole_ns = sum((finding.time_ns or {}).values())
    if finding.time_ns is None or whole_ns <= 0:
        groups.setdefault(_group_of(finding.phase), _Group()).shared.append(all_of_it)
        return
    for name, own_ns in _by_group(finding.time_ns).items():
        low, mid, high, cost = (own_ns / whole_ns * value for value in all_of_it)
        groups.setdefault(name, _Group()).own.append((low, mid, high, cost))


def _by_group(time_ns: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for phase, own_ns in time_ns.items():
        name = _group_of(phase)
        found[name] = found.get(name, 0) + own_ns
    return found


def _group_of(phase: str | None) -> str:
    return _GROUPS.get(phase, phase or _ANYWHERE)


def _size_ratio(group: str, breakdown: Breakdown | None) -> float:
    if breakdown is None:
        return 1.0
    return fsum(breakdown.share(phase) for phase in breakdown.phases if _group_of(phase) == group)


def _then(first: float, second: float, size_ratio: float) -> float:
    """Both savings, where the second is had of what the first leaves of a part of the step; never less than either.

    >>> round(_then(0.3, 0.2, 0.6), 3)
    0.4
    """
    size_ratio = max(size_ratio, first, second)
    return first + second * (1.0 - first / size_ratio) if size_ratio > 0 else 0.0


def _in_turn(ratios: Iterable[float]) -> float:
    """Each wins its share of what is left.

    >>> round(_in_turn([0.5, 0.2]), 3)
    0.6
    """
    left = 1.0
    for ratio in ratios:
        left *= 1.0 - min(1.0, ratio)
    return 1.0 - left
