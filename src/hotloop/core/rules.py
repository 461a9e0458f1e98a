"""Rule: a judgement in one file. The decorator turns a function Analysis -> result into a frozen Rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .analysis import Analysis
from .findings import Finding, Skipped

Judgement = Finding | Sequence[Finding] | Skipped | None
"""Findings, or None when there is nothing to say, or Skipped when the evidence is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``judge`` is pure. ``manual`` is its docstring: five headings in Markdown."""

    id: str
    summary: str
    manual: str
    judge: Callable[[Analysis], Judgement]


def rule(rule_id: str, summary: str) -> Callable[[Callable[[Analysis], Judgement]], Rule]:
    """Make a Rule of a function; its docstring is the manual."""

    def make(judge: Callable[[Analysis], Judgement]) -> Rule:
        return Rule(id=rule_id, summary=summary, manual=inspect.cleandoc(judge.__doc__ or ""), judge=judge)

    return make
