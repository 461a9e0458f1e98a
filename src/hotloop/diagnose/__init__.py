"""Analysis -> findings: every rule of the catalogue is asked, and none can lose the others' answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from hotloop.core.analysis import Analysis
from hotloop.core.catalogue import Catalogue
from hotloop.core.findings import Finding, Skipped
from hotloop.core.rules import Judgement, Rule
from hotloop.core.trace_analysis import TraceAnalysis

from .ownership import share_out
from .ranges import widen

__all__ = ["RULES", "find_problems", "find_problems_in_trace"]

T = TypeVar("T")
NOT_IN_A_TRACE = "a trace file does not contain it; record the training with hotloop run"

RULES: Catalogue[Rule] = Catalogue(Rule, "hotloop.diagnose.rules")
"""Every rule by its id; the modules are imported when it is first read."""


def find_problems(
    analysis: Analysis, rules: Iterable[Rule] | None = None
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """What the rules found, in the rules' order, and the rules that could not judge, with their reasons.

    ``rules`` defaults to the whole catalogue. A rule that fails is reported as skipped, with its error. No time of
    a step is counted by two findings (see ownership.py).
    """
    asked = tuple(RULES.values() if rules is None else rules)
    findings, skipped = _ask(analysis, ((one, one.judge) for one in asked))
    findings, not_owned = share_out(findings, analysis)
    rest, failed = _ask((analysis, findings), ((one, one.judge_rest) for one in asked if one.judge_rest is not None))
    return (*findings, *rest), (*skipped, *not_owned, *failed)


def find_problems_in_trace(
    analysis: TraceAnalysis, rules: Iterable[Rule] | None = None
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """As find_problems, from files that a profiler wrote; rules that such files cannot show are skipped."""
    asked = tuple(RULES.values() if rules is None else rules)
    unseen = tuple(Skipped(rule=one.id, reason=NOT_IN_A_TRACE) for one in asked if one.judge_trace is None)
    judges = ((one, one.judge_trace) for one in asked if one.judge_trace is not None)
    findings, skipped = _ask(analysis, judges)
    return findings, (*skipped, *unseen)


def _ask(
    analysis: T, judges: Iterable[tuple[Rule, Callable[[T], Judgement]]]
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    for one, judge in judges:
        try:
            answers = _as_answers(judge(analysis))
        except Exception as error:  # a bug in one rule must not cost the reader the other rules' findings
            skipped.append(Skipped(rule=one.id, reason=f"the rule failed ({type(error).__name__}: {error})"))
            continue
        findings += [widen(found) for found in answers if isinstance(found, Finding)]
        skipped += [found for found in answers if isinstance(found, Skipped)]
    return tuple(findings), tuple(skipped)


def _as_answers(judgement: Judgement) -> tuple[Finding | Skipped, ...]:
    if judgement is None:
        return ()
    if isinstance(judgement, (Finding, Skipped)):
        return (judgement,)
    return tuple(judgement)
