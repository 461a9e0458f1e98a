"""Findings -> the same findings, the one to treat first in front."""

from __future__ import annotations

from collections.abc import Iterable

from hotloop.core.findings import Basis, Finding, Kind, Severity

BASIS_WEIGHT = {Basis.MEASURED: 1.0, Basis.SIMULATED: 0.9, Basis.RULE_OF_THUMB: 0.5}
"""How much of a forecast counts towards its place, by how it was made."""

SEVERITY_AS_SAVING_RATIO = {Severity.HIGH: 0.40, Severity.MEDIUM: 0.15, Severity.LOW: 0.05, Severity.INFO: 0.0}
"""Place of a finding whose harm is no loss of time (memory that fills up): among savings of its severity."""


def rank_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by their expected saving, weighted by its basis; ties in the order of rule ids.

    What rests on a rule of thumb stands behind every fault that was measured or simulated, however large the guess;
    an opportunity that may win nothing stands behind every fault of severity high or medium.
    """
    ranked = _order_by_saving(findings)
    last_serious = max((i for i, finding in enumerate(ranked) if _is_serious_fault(finding)), default=-1)
    front = ranked[: last_serious + 1]
    behind = [finding for finding in front if _may_win_nothing(finding)] + ranked[last_serious + 1 :]
    return (*(finding for finding in front if not _may_win_nothing(finding)), *_order_by_saving(behind))


def _order_by_saving(findings: Iterable[Finding]) -> list[Finding]:
    found = sorted(findings, key=lambda finding: (-_weight(finding), finding.rule))
    guesses = [finding for finding in found if _is_guess(finding)]
    known = [finding for finding in found if not _is_guess(finding)]
    last_fault = max((i for i, finding in enumerate(known) if finding.kind is Kind.FAULT), default=-1)
    behind = sorted([*known[last_fault + 1 :], *guesses], key=lambda finding: (-_weight(finding), finding.rule))
    return [*known[: last_fault + 1], *behind]


def _is_serious_fault(finding: Finding) -> bool:
    return finding.kind is Kind.FAULT and finding.severity in (Severity.HIGH, Severity.MEDIUM)


def _may_win_nothing(finding: Finding) -> bool:
    return finding.kind is Kind.OPPORTUNITY and finding.severity is Severity.INFO


def _is_guess(finding: Finding) -> bool:
    return (
        finding.severity_override is None and finding.saving is not None and finding.saving.basis is Basis.RULE_OF_THUMB
    )


def _weight(finding: Finding) -> float:
    by_time = 0.0 if finding.saving is None else finding.saving.mid_ratio * BASIS_WEIGHT[finding.saving.basis]
    if finding.severity_override is None:
        return by_time
    return max(by_time, SEVERITY_AS_SAVING_RATIO[finding.severity_override])
