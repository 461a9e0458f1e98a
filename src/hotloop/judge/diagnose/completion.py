"""Findings of all rules -> the same findings as a report shows them, and what their fixes save together.

A finding states in ``time_ns`` which time is its own. Rules agree on that as far as they can: a sampled line has one
kind (lines.py), exposed communication one cause (comm.py), and a restart of workers is not an ordinary wait
(loading.py). If they still count time twice, the sum exceeds the phase, and the weaker evidence gives way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

from hotloop.core.acts import Act, fill_fixes
from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Kind, Saving, Severity, Skipped
from hotloop.core.phases import PHASES, Breakdown
from hotloop.core.report import CombinedSaving
from hotloop.core.rules import Rule
from hotloop.judge.diagnose.measured import MATERIAL_RATIO, format_share
from hotloop.judge.diagnose.rules import RULES

BEYOND_RATIO = 0.12
"""Share of the step that remains after the likeliest saving."""
BEYOND_COST_RATIO = 0.09
"""The same for what remains after the largest saving that the rule of a fault could time."""
OF_THE_MIDDLE_RATIO = 0.5
"""The widest extension of a range, as a share of its middle: a small saving frees few caches."""
ROUNDING_RATIO = 0.005
"""Sampled shares of several fields add up to a phase within this."""
STRENGTH = {Basis.MEASURED: 2, Basis.SIMULATED: 1, Basis.RULE_OF_THUMB: 0}
BASIS_WEIGHT = {Basis.MEASURED: 1.0, Basis.SIMULATED: 0.9, Basis.RULE_OF_THUMB: 0.5}
"""The weight of a forecast in the ranking, by how it was made."""
SEVERITY_AS_SAVING_RATIO = {Severity.HIGH: 0.40, Severity.MEDIUM: 0.15, Severity.LOW: 0.05, Severity.INFO: 0.0}
"""Rank of a finding whose harm is not lost time (memory that fills up), among savings of its severity."""
_COMPUTATION = "computation"
_ANYWHERE = "anywhere"
_GROUPS = {"forward": _COMPUTATION, "backward": _COMPUTATION, None: _ANYWHERE}
"""Phases that the same techniques treat. A finding without a phase may treat any time of the step."""
Four = tuple[float, float, float, float]
"""Low, middle and high saving, and the cost: fractions of the time per unit."""
NOTHING: Four = (0.0, 0.0, 0.0, 0.0)


def widen(finding: Finding) -> Finding:
    """The finding, with its range extended upward for effects that its rule cannot time.

    A cost is the time in which something was seen to run or to wait. Its effect on the rest of the step (caches,
    memory, threads that wake late) ends with it, and no clock measures it. Of 25 savings of 0.10 or more that the zoo's
    twins achieved (state d96d9a4), 14 were above a range that ended at the cost, and none below it. The same was true
    of 10 of 21 in a fresh pass whose ranges were extended beyond their middle alone (4f1b170b4157). All numbers above
    were chosen from these scripts, which are known since then. docs/decisions/006-range-widening.md says what may
    narrow the range again.
    """
    saving = finding.saving
    if saving is None:
        return finding
    high_ratio = upper_end(saving.mid_ratio, saving.high_ratio, is_removal=finding.kind is Kind.FAULT)
    return replace(finding, saving=replace(saving, high_ratio=high_ratio))


def upper_end(mid_ratio: float, high_ratio: float, *, is_removal: bool) -> float:
    """The upper end of a forecast, from its middle and the upper end that its rule gave; never less than the latter.

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


def share_out(findings: Sequence[Finding], analysis: Analysis) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """The findings in their order; those with no material time left are skipped.

    Of each phase, on the rank with most of it, findings with a stronger basis and a higher low forecast claim their
    time first.
    """
    left_ns = {name: float(max(rank.breakdown.mean_ns(name) for rank in analysis.ranks)) for name in PHASES}
    kept: dict[int, Finding] = {}
    gone: list[Skipped] = []
    for index in sorted(range(len(findings)), key=lambda i: _strength(findings[i]), reverse=True):
        finding = findings[index]
        own_ns = finding.time_ns
        wanted_ns = sum(own_ns.values()) if own_ns else 0
        if not own_ns or wanted_ns <= 0:
            kept[index] = finding
            continue
        given = {name: min(float(ns), left_ns[name]) for name, ns in own_ns.items()}
        for name, ns in given.items():
            left_ns[name] -= ns
        share = sum(given.values()) / wanted_ns
        rest_ns = {name: round(ns) for name, ns in given.items() if ns >= 1}
        if share >= 1.0:
            kept[index] = finding
        elif share >= 1.0 - ROUNDING_RATIO:
            kept[index] = replace(finding, time_ns=rest_ns)
        elif share * (finding.cost_ratio or 0.0) < MATERIAL_RATIO:
            gone.append(Skipped(rule=finding.rule, reason=f"other findings cover the same time: {finding.title}"))
        else:
            kept[index] = _cut(finding, share, rest_ns)
    return tuple(kept[index] for index in sorted(kept)), tuple(gone)


def _strength(finding: Finding) -> tuple[int, float, str]:
    saving = finding.saving
    return (-1, 0.0, finding.rule) if saving is None else (STRENGTH[saving.basis], saving.low_ratio, finding.rule)


def _cut(finding: Finding, share: float, own_ns: dict[str, int]) -> Finding:
    """The finding with ``share`` (0..1) of its cost and its saving, and a title that says so."""
    cost_ratio, saving = finding.cost_ratio or 0.0, finding.saving
    if saving is not None:
        saving = Saving(
            low_ratio=share * saving.low_ratio,
            mid_ratio=share * saving.mid_ratio,
            high_ratio=share * saving.high_ratio,
            basis=saving.basis,
        )
    return replace(
        finding,
        title=f"{finding.title}; {format_share((1.0 - share) * cost_ratio)} is counted in other findings",
        cost_ns=None if finding.cost_ns is None else round(share * finding.cost_ns),
        cost_ratio=share * cost_ratio,
        saving=saving,
        time_ns=own_ns,
    )


def complete_findings(
    findings: Sequence[Finding], acts: Mapping[str, Act], breakdown: Breakdown | None = None
) -> tuple[tuple[Finding, ...], CombinedSaving | None]:
    """All findings of a report in the order in which to fix them, and what their fixes save together.

    Each also gets what the other findings, those of its own rule, and the technique of its fix add to it.
    """
    linked = [one if (own := rule_of(one)) is None or own.link is None else own.link(one, findings) for one in findings]
    ranked = state_rule_savings(rank_findings(linked), breakdown)
    return fill_fixes(ranked, acts), combine_savings(ranked, breakdown)


def rule_of(finding: Finding) -> Rule | None:
    """None for a rule that this version does not have."""
    return next((one for one in RULES.values() if one.id == finding.rule), None)


def sums_up(finding: Finding) -> bool:
    """Whether other findings own the time that this finding is about."""
    own = rule_of(finding)
    return own is not None and own.link is not None


def rank_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by their expected saving, weighted by its basis; ties in the order of rule ids.

    A finding that rests on a rule of thumb comes after every fault that was measured or simulated, however large the
    guess, unless it is a fault whose low end alone exceeds everything that the other's forecast expects. Findings of
    severity info come last, whatever their expected saving: their low end promises nothing.
    """
    found = list(findings)
    graver = [finding for finding in found if finding.severity is not Severity.INFO]
    sums = [finding for finding in graver if sums_up(finding)]
    return (
        *_rank(finding for finding in graver if not sums_up(finding)),
        *sums,
        *_rank(finding for finding in found if finding.severity is Severity.INFO),
    )


def _rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    found = sorted(findings, key=_place)
    known, guesses = ([one for one in found if _is_guess(one) is side] for side in (False, True))
    behind = 1 + max((i for i, one in enumerate(known) if one.kind is Kind.FAULT), default=-1)
    weights = [-_weight(one) for one in known[:behind]]

    def is_sure(guess: Finding) -> bool:
        return bool(weights) and guess.kind is Kind.FAULT and -_low(guess) < weights[-1]

    # Each certain guess comes before the first known finding that expects less than its low end.
    ahead = [((i, 1), one) for i, one in enumerate(known[:behind])]
    ahead += [((bisect_right(weights, -_low(one)), 0), one) for one in guesses if is_sure(one)]
    rest = sorted((*known[behind:], *(one for one in guesses if not is_sure(one))), key=_place)
    return (*(one for _, one in sorted(ahead, key=lambda pair: pair[0])), *rest)


def _place(finding: Finding) -> tuple[float, str]:
    return -_weight(finding), finding.rule


def _is_guess(finding: Finding) -> bool:
    return (
        finding.severity_override is None and finding.saving is not None and finding.saving.basis is Basis.RULE_OF_THUMB
    )


def _low(finding: Finding) -> float:
    return 0.0 if finding.saving is None else finding.saving.low_ratio


def _weight(finding: Finding) -> float:
    own = rule_of(finding)
    if own is not None and own.ends_run and finding.severity is Severity.HIGH:
        return 1.0
    by_time = 0.0 if finding.saving is None else finding.saving.mid_ratio * BASIS_WEIGHT[finding.saving.basis]
    if finding.severity_override is None:
        return by_time
    return max(by_time, SEVERITY_AS_SAVING_RATIO[finding.severity_override])


@dataclass(slots=True)
class _Group:
    """The saving in one part of the step."""

    own: list[Four] = field(default_factory=list)
    """From time that one finding alone counts: disjoint parts, so they add up."""
    shared: list[Four] = field(default_factory=list)
    """From findings that treat whatever time is there, so that two may save the same time."""

    def together(self, size_ratio: float) -> Four:
        """The group's saving, if ``size_ratio`` is its part of the step."""
        low, mid, high, cost = (fsum(values) for values in zip(NOTHING, *self.own, strict=True))
        lows, mids, highs, costs = zip(NOTHING, *self.shared, strict=True)
        return (
            max(low, *lows),
            _then(mid, 0.5 * (max(mids) + _in_turn(mids)), size_ratio),
            _then(high, _in_turn(highs), size_ratio),
            _then(cost, _in_turn(costs), size_ratio),
        )


def combine_savings(findings: Iterable[Finding], breakdown: Breakdown | None = None) -> CombinedSaving | None:
    """What the fixes of these findings save together, as fractions of the time per unit; None if no finding has a fix.

    Time that one finding alone counts (``Finding.time_ns``) belongs to no other, so such savings add up. Fixes that
    also treat a complete phase save their share of what remains of it. Two of those may save the same time, so at least
    the most certain of them counts, and at most one after the other; the most likely value is halfway between the
    larger one alone and that. The sum never exceeds the loss that the findings report, or the highest upper end of one
    phase. ``breakdown`` gives the size of the phases; without it, each phase counts as the entire step.
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
    # If more than the step is lost in total, the parts are not disjoint.
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
    """The findings; if a rule has several, each with what the fixes of all of them save together."""
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
        basis=min(bases, key=lambda basis: STRENGTH[basis]),
    )


def _add(finding: Finding, saving: Saving, groups: dict[str, _Group]) -> None:
    """A finding's saving, by the groups in which it has time: in proportion if there are several."""
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
    """Both savings together, if the second applies to what the first leaves of a part of the step; at least each of
    them.

    >>> round(_then(0.3, 0.2, 0.6), 3)
    0.4
    """
    size_ratio = max(size_ratio, first, second)
    return first + second * (1.0 - first / size_ratio) if size_ratio > 0 else 0.0


def _in_turn(ratios: Iterable[float]) -> float:
    """Each saves its share of what remains.

    >>> round(_in_turn([0.5, 0.2]), 3)
    0.6
    """
    left = 1.0
    for ratio in ratios:
        left *= 1.0 - min(1.0, ratio)
    return 1.0 - left
