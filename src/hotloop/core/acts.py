"""Act: what the fix of a finding asks for: a technique that hotloop applies, or a change that the reader makes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

from .findings import Effort, Finding, Numerics, Safety


class Act:
    """One act: a Technique, or a change that no strategy can apply (``act_by_hand``)."""

    id: str
    summary: str
    """What it does, in one line of Markdown, for a fix in a report and for the lists in the documentation."""
    effort: Effort
    """The effort to edit the program by hand."""
    safety: Safety = Safety.SHOW
    numerics: Numerics
    """The widest class; a rule narrows it in its Fix for a case that it knows to be better."""
    numerics_note: str = ""
    """What docs/vocabulary.md adds to the class: ', often exact'."""
    is_technique: ClassVar[bool] = False

    text: str | None = None
    """The manual, if it is not the class docstring."""

    @property
    def manual(self) -> str:
        return inspect.cleandoc(self.text or type(self).__doc__ or "")


def act_by_hand(
    text: str | None, *, id: str, summary: str, effort: Effort, numerics: Numerics, numerics_note: str = ""
) -> Act:
    """An act that no strategy can apply, as ``apply/by_hand/acts.py`` declares it; ``text`` says how to do it."""
    act = Act()
    act.id, act.summary, act.effort, act.text = id, summary, effort, text
    act.numerics, act.numerics_note = numerics, numerics_note
    return act


def fill_fixes(findings: Iterable[Finding], acts: Mapping[str, Act]) -> tuple[Finding, ...]:
    """The findings, with everything that their rules left open in a fix filled in from its act; unknown acts stay as
    is."""
    return tuple(_fill(finding, acts) for finding in findings)


def _fill(finding: Finding, acts: Mapping[str, Act]) -> Finding:
    fix = finding.fix
    if fix is None or fix.technique not in acts:
        return finding
    act = acts[fix.technique]
    filled = replace(
        fix,
        safety=fix.safety or act.safety,
        numerics=fix.numerics or act.numerics,
        effort=act.effort,
        act=act.summary,
        by_hand="" if act.is_technique else act.manual,
    )
    return replace(finding, fix=filled)
