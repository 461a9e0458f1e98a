"""Analysis -> findings: every rule of the catalogue is asked, and none can lose the others' answers."""

from __future__ import annotations

from collections.abc import Iterable

from hotloop.core.analysis import Analysis
from hotloop.core.catalogue import Catalogue
from hotloop.core.findings import Finding, Skipped
from hotloop.core.rules import Judgement, Rule

__all__ = ["RULES", "find_problems"]

RULES: Catalogue[Rule] = Catalogue(Rule, "hotloop.diagnose.rules")
"""Every rule by its id; the modules are imported when it is first read."""


def find_problems(
    analysis: Analysis, rules: Iterable[Rule] | None = None
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """What the rules found, in the rules' order, and the rules that could not judge, with their reasons.

    ``rules`` defaults to the whole catalogue. A rule that fails is reported as skipped, with its error.
    """
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    for one in RULES.values() if rules is None else rules:
        try:
            answers = _as_answers(one.judge(analysis))
        except Exception as error:  # a bug in one rule must not cost the reader the other rules' findings
            skipped.append(Skipped(rule=one.id, reason=f"the rule failed ({type(error).__name__}: {error})"))
            continue
        findings += [answer for answer in answers if isinstance(answer, Finding)]
        skipped += [answer for answer in answers if isinstance(answer, Skipped)]
    return tuple(findings), tuple(skipped)


def _as_answers(judgement: Judgement) -> tuple[Finding | Skipped, ...]:
    if judgement is None:
        return ()
    if isinstance(judgement, (Finding, Skipped)):
        return (judgement,)
    return tuple(judgement)
