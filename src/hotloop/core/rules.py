"""Rule: a judgement in one file. The decorator turns a function Analysis -> result into a frozen Rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .analysis import Analysis
from .findings import Finding, Kind, Skipped
from .trace_analysis import TraceAnalysis

Judgement = Finding | Sequence[Finding | Skipped] | Skipped | None
"""Findings, or None when there is nothing to say, or Skipped when the evidence is missing."""
JudgeTrace = Callable[[TraceAnalysis], Judgement]
Link = Callable[[Finding, Sequence[Finding]], Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``judge`` and ``judge_trace`` are pure. ``manual`` is their docstring: five headings in Markdown.

    What a rule answers need not name it: ``sign`` does, for all that it found.
    """

    id: str
    summary: str
    manual: str
    judge: Callable[[Analysis], Judgement]
    kind: Kind = Kind.FAULT
    judge_trace: JudgeTrace | None = None
    """The same fault in files that a profiler wrote; None when such a file cannot show it."""
    asks: tuple[str, ...] = ()
    """Forecasts of TraceRank that ``judge_trace`` looks at: re-timed only where the rule finds something."""
    judge_rest: Callable[[Analysis, Sequence[Finding]], Judgement] | None = None
    """Of a rule that is asked last, for what the findings of all others leave."""
    link: Link | None = None
    """Of a rule that sums up time which other findings own, and stands behind them: its finding, naming those."""
    ends_run: bool = False
    """What it finds at severity high ended the run: it comes before all that slowed it."""

    def sign(self, finding: Finding, unit: str = "step") -> Finding:
        """The finding with what this rule says of all of its; ``unit`` is for one that names none."""
        return replace(finding, rule=self.id, kind=self.kind, unit=finding.unit or unit, next=f"hotloop rule {self.id}")


def rule(
    rule_id: str,
    summary: str,
    *,
    kind: Kind = Kind.FAULT,
    on_trace: JudgeTrace | None = None,
    asks: tuple[str, ...] = (),
    link: Link | None = None,
    ends_run: bool = False,
) -> Callable[[Callable[[Analysis], Judgement]], Rule]:
    """Make a Rule of a function; its docstring is the manual. ``on_trace`` judges a profiler's files, and ``asks`` for
    those forecasts."""

    def make(judge: Callable[[Analysis], Judgement]) -> Rule:
        return Rule(
            id=rule_id,
            summary=summary,
            manual=inspect.cleandoc(judge.__doc__ or ""),
            judge=judge,
            kind=kind,
            judge_trace=on_trace,
            asks=asks,
            link=link,
            ends_run=ends_run,
        )

    return make


def rule_on_trace(
    rule_id: str, summary: str, *, on_cpu: str, asks: tuple[str, ...] = ()
) -> Callable[[JudgeTrace], Rule]:
    """As ``rule``, for what only a timeline of the device shows; ``on_cpu`` is why a training on the CPU has none."""

    def skip(analysis: Analysis) -> Skipped:
        return Skipped(reason="no device timeline was recorded" if analysis.accelerator else on_cpu)

    def make(judge: JudgeTrace) -> Rule:
        manual = inspect.cleandoc(judge.__doc__ or "")
        return Rule(id=rule_id, summary=summary, manual=manual, judge=skip, judge_trace=judge, asks=asks)

    return make


def rule_of_the_rest(
    rule_id: str, summary: str
) -> Callable[[Callable[[Analysis, Sequence[Finding]], Judgement]], Rule]:
    """As ``rule``, for a function that is given what all other rules found."""

    def make(judge: Callable[[Analysis, Sequence[Finding]], Judgement]) -> Rule:
        manual = inspect.cleandoc(judge.__doc__ or "")
        return Rule(id=rule_id, summary=summary, manual=manual, judge=_find_nothing, judge_rest=judge)

    return make


def _find_nothing(analysis: Analysis) -> None:
    """Of a rule that is asked last."""
