"""Findings -> the same findings, the one to treat first in front."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hotloop.core.findings import Basis, Finding, Kind, Severity
from hotloop.core.rules import SUMMING_RULES

BASIS_WEIGHT = {Basis.MEASURED: 1.0, Basis.SIMULATED: 0.9, Basis.RULE_OF_THUMB: 0.5}
"""How much of a forecast counts towards its place, by how it was made."""

SEVERITY_AS_SAVING_RATIO = {Severity.HIGH: 0.40, Severity.MEDIUM: 0.15, Severity.LOW: 0.05, Severity.INFO: 0.0}
"""Place of a finding whose harm is no loss of time (memory that fills up): among savings of its severity."""

ENDING_RULES = frozenset({"out-of-memory"})
"""What ended the run comes before all that slowed it."""


def rank_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by their expected saving, weighted by its basis; ties in the order of rule ids.

    What rests on a rule of thumb stands behind every fault that was measured or simulated, however large the guess, but
    for a fault whose low end alone is more than all that the other's forecast expects.
    Findings of severity info stand last, whatever their expected saving: their low end promises nothing.
    """
    found = list(findings)
    graver = [finding for finding in found if finding.severity is not Severity.INFO]
    sums = [finding for finding in graver if finding.rule in SUMMING_RULES]
    return (
        *_rank(finding for finding in graver if finding.rule not in SUMMING_RULES),
        *sums,
        *_rank(finding for finding in found if finding.severity is Severity.INFO),
    )


def _rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    found = sorted(findings, key=lambda finding: (-_weight(finding), finding.rule))
    guesses = [finding for finding in found if _is_guess(finding)]
    known = [finding for finding in found if not _is_guess(finding)]
    last_fault = max((i for i, finding in enumerate(known) if finding.kind is Kind.FAULT), default=-1)
    ahead = known[: last_fault + 1]
    least_weight = min(map(_weight, ahead), default=math.inf)
    sure = [finding for finding in guesses if finding.kind is Kind.FAULT and _low(finding) > least_weight]
    known_ids = set(map(id, known))
    for finding in sure:
        ahead.insert(
            next(i for i, one in enumerate(ahead) if id(one) in known_ids and _weight(one) < _low(finding)), finding
        )
    ahead_ids = set(map(id, ahead))
    rest = [finding for finding in (*known, *guesses) if id(finding) not in ahead_ids]
    return (*ahead, *sorted(rest, key=lambda finding: (-_weight(finding), finding.rule)))


def _is_guess(finding: Finding) -> bool:
    return (
        finding.severity_override is None and finding.saving is not None and finding.saving.basis is Basis.RULE_OF_THUMB
    )


def _low(finding: Finding) -> float:
    return 0.0 if finding.saving is None else finding.saving.low_ratio


def _weight(finding: Finding) -> float:
    if finding.rule in ENDING_RULES and finding.severity is Severity.HIGH:
        return 1.0
    by_time = 0.0 if finding.saving is None else finding.saving.mid_ratio * BASIS_WEIGHT[finding.saving.basis]
    if finding.severity_override is None:
        return by_time
    return max(by_time, SEVERITY_AS_SAVING_RATIO[finding.severity_override])
