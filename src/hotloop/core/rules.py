"""Rule: a judgement in one file. The decorator turns a function Analysis -> result into a frozen Rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .analysis import Analysis
from .findings import Finding, Skipped
from .trace_analysis import TraceAnalysis

Judgement = Finding | Sequence[Finding] | Skipped | None
"""Findings, or None when there is nothing to say, or Skipped when the evidence is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``judge`` and ``judge_trace`` are pure. ``manual`` is the docstring of ``judge``: five headings in Markdown."""

    id: str
    summary: str
    manual: str
    judge: Callable[[Analysis], Judgement]
    judge_trace: Callable[[TraceAnalysis], Judgement] | None = None
    """The same fault in files that a profiler wrote; None when such a file cannot show it."""
    asks: tuple[str, ...] = ()
    """Forecasts of TraceRank that ``judge_trace`` looks at: re-timed only where the rule finds something."""


def rule(
    rule_id: str,
    summary: str,
    *,
    on_trace: Callable[[TraceAnalysis], Judgement] | None = None,
    asks: tuple[str, ...] = (),
) -> Callable[[Callable[[Analysis], Judgement]], Rule]:
    """Make a Rule of a function; its docstring is the manual. ``on_trace`` judges a profiler's files, and ``asks`` for
    those forecasts."""

    def make(judge: Callable[[Analysis], Judgement]) -> Rule:
        manual = inspect.cleandoc(judge.__doc__ or "")
        return Rule(id=rule_id, summary=summary, manual=manual, judge=judge, judge_trace=on_trace, asks=asks)

    return make
