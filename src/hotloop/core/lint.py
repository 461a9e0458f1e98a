"""LintReport: the results of static checks of files, with the text edits to fix them; the contract hotloop.lint/1."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from .findings import Severity

LINT_SCHEMA = "hotloop.lint/1"
"""Version of the contract. Fields are added, never changed."""


class Confidence(StrEnum):
    """How certain a finding is about its fault; its severity says what the fault costs if it is one.

    ``certain``: the file alone proves the fault, whatever else the repository or the cluster holds. Only rules that are
    declared as such (``is_proof``) have such findings.
    """

    CERTAIN = "certain"
    LIKELY = "likely"


@dataclass(frozen=True, slots=True, kw_only=True)
class LintEdit:
    """Text that replaces what is between two positions, the second exclusive.

    Lines and columns are 1-based, columns in characters. Equal positions insert.
    """

    first_line: int
    first_column: int
    last_line: int
    last_column: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """A fault in a file. ``message`` says what happens because of it, ``advice`` what to do.

    ``severity`` is the cost to the person: high if the run fails, is lost or is wrong, or most of the hardware or of
    each build is wasted; medium for tens of percent, work lost now and then, or a quietly worse result; low for little.
    The rule's decorator fills in ``rule``, and whoever read the file fills in ``file``. ``edits`` fix the fault for
    certain; without any, the reader does it.
    """

    rule: str = ""
    severity: Severity
    file: str = ""
    line: int
    message: str
    advice: str
    edits: tuple[LintEdit, ...] = ()
    confidence: Confidence = Confidence.CERTAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A file or folder that was not judged, and why. ``failed``: a rule would have read it, but nobody could."""

    file: str
    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """Findings by file and line. ``files`` counts what was judged by format, ``titles`` names each format;
    ``suppressed_count`` are findings that a comment in the file turned off, ``fixed_count`` those whose edits were
    written."""

    tool_version: str
    paths: tuple[str, ...]
    files: Mapping[str, int]
    findings: tuple[LintFinding, ...]
    unread: tuple[Unread, ...] = ()
    suppressed_count: int = 0
    fixed_count: int = 0
    next: str | None = None
    titles: Mapping[str, str] = field(default_factory=dict)

    def fails(self, severity: Severity = Severity.MEDIUM, confidence: Confidence = Confidence.LIKELY) -> bool:
        """Whether a finding is at least this severe and this certain."""
        severities, confidences = list(Severity), list(Confidence)
        return any(
            severities.index(finding.severity) <= severities.index(severity)
            and confidences.index(finding.confidence) <= confidences.index(confidence)
            for finding in self.findings
        )


Judge = Callable[..., Iterable[LintFinding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintRule:
    """``judge`` is pure: a parsed file -> its findings. ``reads`` are ids of formats, separated by spaces; ``manual``
    has five headings."""

    id: str
    summary: str
    reads: str
    manual: str
    judge: Judge


def lint_rule(
    rule_id: str, summary: str, *, reads: str, each: str | None = None, is_proof: bool = False
) -> Callable[[Judge], LintRule]:
    """Makes a LintRule from a function from a parsed file to its findings; its docstring is the manual.

    ``each``: a property of the file, such as ``training``. The function is then given the file and one value of it.
    ``is_proof``: the file alone can prove the fault; the findings of all other rules are ``likely``.
    """

    def make(judge: Judge) -> LintRule:
        def judge_and_sign(file: Any) -> tuple[LintFinding, ...]:
            parts = [()] if each is None else [(part,) for part in getattr(file, each)]
            found = [replace(one, rule=rule_id) for part in parts for one in judge(file, *part)]
            return tuple(found if is_proof else (replace(one, confidence=Confidence.LIKELY) for one in found))

        manual = inspect.cleandoc(judge.__doc__ or "")
        return LintRule(id=rule_id, summary=summary, reads=reads, manual=manual, judge=judge_and_sign)

    return make
