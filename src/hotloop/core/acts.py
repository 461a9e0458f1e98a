"""Act: what a finding's fix asks for, one file each: a technique that hotloop applies, or a change the reader makes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

from .findings import Effort, Finding, Numerics, Safety


class Act:
    """One act. The class docstring is its manual; of an act by hand it says how to do it.

    Acts that no strategy can apply are direct subclasses (``apply/by_hand/<name>.py``); Technique is the other kind.
    """

    id: ClassVar[str]
    summary: ClassVar[str] = ""
    """What it does in one line of Markdown, as a report says beside a fix; empty where no rule names it."""
    effort: ClassVar[Effort]
    """Of editing the program by hand."""
    safety: ClassVar[Safety] = Safety.SHOW
    numerics: ClassVar[Numerics]
    """The widest class: a rule narrows it in its Fix for a case that it knows to be better."""
    numerics_note: ClassVar[str] = ""
    """What docs/vocabulary.md adds to the class: ', often exact'."""
    is_technique: ClassVar[bool] = False

    @property
    def manual(self) -> str:
        return inspect.cleandoc(type(self).__doc__ or "")


def fill_fixes(findings: Iterable[Finding], acts: Mapping[str, Act]) -> tuple[Finding, ...]:
    """The findings with whatever their rules left open in a fix taken from its act; an act that is not known stays."""
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
