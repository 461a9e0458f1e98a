"""Findings of all rules -> the same findings, so that no time of a step is counted by two of them.

A finding says in ``time_ns`` which time is its own. Rules agree on that where they can: a sampled line has one kind
(lines.py), exposed communication one cause (comm.py), a restart of workers is no ordinary wait (loading.py). What they
still count twice shows as more than the phase holds, and the weaker evidence gives way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Saving, Skipped
from hotloop.core.phases import PHASES
from hotloop.diagnose.measured import MATERIAL_RATIO
from hotloop.diagnose.wording import format_share

ROUNDING_RATIO = 0.005
"""Sampled shares of several fields add up to a phase within this."""
STRENGTH = {Basis.MEASURED: 2, Basis.SIMULATED: 1, Basis.RULE_OF_THUMB: 0}


def share_out(findings: Sequence[Finding], analysis: Analysis) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """The findings in their order, and those of which nothing material is left as skipped.

    Of each phase, on the rank with most of it, the findings with the stronger basis and the higher low forecast have
    their time first.
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
