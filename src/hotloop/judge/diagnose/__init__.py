"""Analysis -> findings: asks every rule of the catalogue; a rule that fails cannot lose the findings of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Skipped
from hotloop.core.rules import Judgement, Rule
from hotloop.core.trace_analysis import TraceAnalysis

from .completion import share_out, widen
from .rules import RULES

__all__ = ["RULES", "find_problems", "find_problems_in_trace"]

TURNED_OFF = "turned off by the settings (hotloop config)"
NOT_IN_A_TRACE = "a trace file does not contain this information; record the run with hotloop run"


def find_problems(
    analysis: Analysis, rules: Iterable[Rule] | None = None, *, off: Collection[str] = ()
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """The rules' findings, in the rules' order, and the rules that could not judge, with their reasons.

    ``rules`` defaults to the full catalogue; those whose ids are in ``off`` are skipped. A rule that fails is reported
    as skipped, with its error. No time of a step is counted by two findings (see ``share_out``).
    """
    asked, turned_off = _divide(rules, off)
    findings, skipped = _ask(((one, partial(one.judge, analysis)) for one in asked), analysis.unit)
    findings, not_owned = share_out(findings, analysis)
    last = ((one, partial(one.judge_rest, analysis, findings)) for one in asked if one.judge_rest is not None)
    rest, failed = _ask(last, analysis.unit)
    return (*findings, *rest), (*skipped, *not_owned, *failed, *turned_off)


def find_problems_in_trace(
    analysis: TraceAnalysis, rules: Iterable[Rule] | None = None, *, off: Collection[str] = ()
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """Like find_problems, from files that a profiler wrote; skips rules that such files cannot support."""
    asked, turned_off = _divide(rules, off)
    unseen = tuple(Skipped(rule=one.id, reason=NOT_IN_A_TRACE) for one in asked if one.judge_trace is None)
    judges = ((one, partial(one.judge_trace, analysis)) for one in asked if one.judge_trace is not None)
    findings, skipped = _ask(judges, "step")
    return findings, (*skipped, *unseen, *turned_off)


def _divide(rules: Iterable[Rule] | None, off: Collection[str]) -> tuple[tuple[Rule, ...], tuple[Skipped, ...]]:
    """The rules that are asked, and those that the settings turn off."""
    known = tuple(RULES.values() if rules is None else rules)
    turned_off = (Skipped(rule=one.id, reason=TURNED_OFF) for one in known if one.id in off)
    return tuple(one for one in known if one.id not in off), tuple(turned_off)


def _ask(
    judges: Iterable[tuple[Rule, Callable[[], Judgement]]], unit: str
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """The results of the rules, signed; ``unit`` is what a rate of the analysis counts."""
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    for one, judge in judges:
        try:
            answer = judge()
        except Exception as error:  # a bug in one rule must not cost the reader the other rules' findings
            answer = Skipped(reason=f"the rule failed ({type(error).__name__}: {error})")
        for found in (answer,) if isinstance(answer, (Finding, Skipped)) else answer or ():
            if isinstance(found, Finding):
                findings.append(widen(one.sign(found, unit)))
            else:
                skipped.append(replace(found, rule=one.id))
    return tuple(findings), tuple(skipped)
