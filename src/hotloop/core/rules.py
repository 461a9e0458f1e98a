"""Rule: a judgement in one file. The decorator turns a function Analysis -> result into a frozen Rule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from .analysis import Analysis
from .findings import Finding, Kind, Skipped
from .trace_analysis import TraceAnalysis

Judgement = Finding | Sequence[Finding | Skipped] | Skipped | None
"""Findings, or None when there is nothing to say, or Skipped when the evidence is missing."""
T = TypeVar("T")
SUMMING_RULES = frozenset({"low-utilization"})
"""What sums up time that other findings own stands behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``judge`` and ``judge_trace`` are pure. ``manual`` is the docstring of ``judge``: five headings in Markdown."""

    id: str
    summary: str
    manual: str
    judge: Callable[[Analysis], Judgement]
    kind: Kind = Kind.FAULT
    judge_trace: Callable[[TraceAnalysis], Judgement] | None = None
    """The same fault in files that a profiler wrote; None when such a file cannot show it."""
    asks: tuple[str, ...] = ()
    """Forecasts of TraceRank that ``judge_trace`` looks at: re-timed only where the rule finds something."""
    judge_rest: Callable[[tuple[Analysis, Sequence[Finding]]], Judgement] | None = None
    """Of a rule that is asked last, for what the findings of all others leave."""


def rule(
    rule_id: str,
    summary: str,
    *,
    kind: Kind = Kind.FAULT,
    on_trace: Callable[[TraceAnalysis], Judgement] | None = None,
    asks: tuple[str, ...] = (),
) -> Callable[[Callable[[Analysis], Judgement]], Rule]:
    """Make a Rule of a function; its docstring is the manual. ``on_trace`` judges a profiler's files, and ``asks`` for
    those forecasts.

    What either of them answers gets the rule's id and kind, the command that explains it and, where the function says
    no other, the analysis' unit of work.
    """

    def make(judge: Callable[[Analysis], Judgement]) -> Rule:
        return Rule(
            id=rule_id,
            summary=summary,
            manual=inspect.cleandoc(judge.__doc__ or ""),
            judge=_signing(judge, rule_id, kind, lambda analysis: analysis.unit),
            kind=kind,
            judge_trace=None if on_trace is None else _signing(on_trace, rule_id, kind, lambda _: "step"),
            asks=asks,
        )

    return make


def rule_of_the_rest(
    rule_id: str, summary: str
) -> Callable[[Callable[[Analysis, Sequence[Finding]], Judgement]], Rule]:
    """As ``rule``, for a function that is given what all other rules found."""

    def make(judge: Callable[[Analysis, Sequence[Finding]], Judgement]) -> Rule:
        def judge_these(seen: tuple[Analysis, Sequence[Finding]]) -> Judgement:
            return judge(*seen)

        return Rule(
            id=rule_id,
            summary=summary,
            manual=inspect.cleandoc(judge.__doc__ or ""),
            judge=_nothing_yet,
            judge_rest=_signing(judge_these, rule_id, Kind.FAULT, lambda seen: seen[0].unit),
        )

    return make


def _nothing_yet(analysis: Analysis) -> Judgement:
    """Of a rule that is asked last."""
    return None


def sign(finding: Finding, rule_id: str, kind: Kind = Kind.FAULT, unit: str = "step") -> Finding:
    """The finding with what its rule says of all of them; ``unit`` is for one that names none."""
    return replace(finding, rule=rule_id, kind=kind, unit=finding.unit or unit, next=f"hotloop rule {rule_id}")


def _signing(
    judge: Callable[[T], Judgement], rule_id: str, kind: Kind, unit_of: Callable[[T], str]
) -> Callable[[T], Judgement]:
    @functools.wraps(judge)
    def judge_and_sign(analysis: T) -> Judgement:
        answer = judge(analysis)
        if answer is None:
            return None
        unit = unit_of(analysis)

        def sign_one(one: Finding | Skipped) -> Finding | Skipped:
            return replace(one, rule=rule_id) if isinstance(one, Skipped) else sign(one, rule_id, kind, unit)

        if isinstance(answer, (Finding, Skipped)):
            return sign_one(answer)
        return tuple(sign_one(one) for one in answer)

    return judge_and_sign
