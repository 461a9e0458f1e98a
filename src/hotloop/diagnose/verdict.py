"""Findings and breakdown -> one line: what the training waits for."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.findings import Finding, Kind, Severity
from hotloop.core.phases import Breakdown
from hotloop.core.report import StepSummary

_SERIOUS = (Severity.HIGH, Severity.MEDIUM)


def describe_verdict(findings: Sequence[Finding], breakdown: Breakdown, step: StepSummary) -> str:
    """The first serious fault, else the first serious opportunity, else where the time of a healthy step goes."""
    for kind in (Kind.FAULT, Kind.OPPORTUNITY):
        for finding in findings:
            if finding.kind is kind and finding.severity in _SERIOUS:
                return f"{finding.rule}: {finding.title}"
    largest = sorted(breakdown.phases.items(), key=lambda item: -item[1].share_ratio)[:2]
    parts = " and ".join(f"{name.replace('_', ' ')} {phase.share_ratio:.0%}" for name, phase in largest)
    few = (
        f" (only {step.steady_count} steady step{'s' if step.steady_count != 1 else ''})"
        if step.steady_count < 10
        else ""
    )
    return f"no serious fault found{few}; the step is {parts}"
