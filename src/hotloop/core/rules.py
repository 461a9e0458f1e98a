"""Rule: a judgement in one file. The decorator turns a function Analysis -> result into a frozen Rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .analysis import Analysis
from .findings import Finding, Kind, Skipped
from .trace_analysis import TraceAnalysis

Judgement = Finding | Sequence[Finding | Skipped] | Skipped | None
"""Findings, or None if there is nothing to say, or Skipped when the evidence is missing."""
JudgeTrace = Callable[[TraceAnalysis], Judgement]
Link = Callable[[Finding, Sequence[Finding]], Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``judge`` and ``judge_trace`` are pure. ``manual`` is their docstring: five headings in Markdown.

    What a rule returns need not name the rule: ``sign`` does, for all of its findings.
    """

    id: str
    summary: str
    manual: str
    judge: Callable[[Analysis], Judgement]
    kind: Kind = Kind.FAULT
    judge_trace: JudgeTrace | None = None
    """The same fault in files that a profiler wrote; None if such a file cannot show it."""
    asks: tuple[str, ...] = ()
    """Forecasts of TraceRank that ``judge_trace`` looks at: re-timed only if the rule finds something."""
    judge_rest: Callable[[Analysis, Sequence[Finding]], Judgement] | None = None
    """For a rule that is asked last, about what the findings of all others leave."""
    link: Link | None = None
    """For a rule that sums up time that other findings own, and comes after them: its finding, which names those."""
    ends_run: bool = False
    """Whether its finding of severity high ended the run, and so comes before everything that slowed the run."""
    ablation: str = ""
    """Id of the ablation that takes the cost of its findings away; empty if none does."""

    def sign(self, finding: Finding, unit: str = "step") -> Finding:
        """The finding with what this rule states for all of its findings; ``unit`` is for a finding that names none."""
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
    ablation: str = "",
) -> Callable[[Callable[[Analysis], Judgement]], Rule]:
    """Makes a Rule from a function; its docstring is the manual. ``on_trace`` judges a profiler's files, and ``asks``
    for those forecasts. ``ablation`` names the file in change/apply/ablations that bounds its saving."""

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
            ablation=ablation,
        )

    return make


def rule_on_trace(
    rule_id: str, summary: str, *, on_cpu: str, asks: tuple[str, ...] = ()
) -> Callable[[JudgeTrace], Rule]:
    """Like ``rule``, for what only a timeline of the device shows; ``on_cpu`` is why a training on the CPU has none."""

    def skip(analysis: Analysis) -> Skipped:
        return Skipped(reason="no device timeline was recorded" if analysis.accelerator else on_cpu)

    def make(judge: JudgeTrace) -> Rule:
        manual = inspect.cleandoc(judge.__doc__ or "")
        return Rule(id=rule_id, summary=summary, manual=manual, judge=skip, judge_trace=judge, asks=asks)

    return make


def rule_of_the_rest(
    rule_id: str, summary: str, *, ablation: str = ""
) -> Callable[[Callable[[Analysis, Sequence[Finding]], Judgement]], Rule]:
    """Like ``rule``, for a function that is given the findings of all other rules."""

    def make(judge: Callable[[Analysis, Sequence[Finding]], Judgement]) -> Rule:
        manual = inspect.cleandoc(judge.__doc__ or "")
        return Rule(
            id=rule_id, summary=summary, manual=manual, judge=_find_nothing, judge_rest=judge, ablation=ablation
        )

    return make


def _find_nothing(analysis: Analysis) -> None:
    """For a rule that is asked last."""
