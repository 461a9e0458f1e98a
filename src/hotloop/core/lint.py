"""LintReport: what static checks found in files, with the text edits that repair it; the contract hotloop.lint/1."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .findings import Severity

LINT_SCHEMA = "hotloop.lint/1"
"""Version of the contract. Fields are added, never changed."""

FILE_KINDS = {
    "python": "training script",
    "dockerfile": "Dockerfile",
    "sbatch": "batch script",
    "kubernetes": "Kubernetes manifest",
}
"""What a rule may read, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintEdit:
    """Text in place of what stands between two positions, the second exclusive.

    Lines and columns are 1-based, columns in characters. Equal positions insert.
    """

    first_line: int
    first_column: int
    last_line: int
    last_column: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """A fault in a file. ``message`` says what is wrong there, ``advice`` what to do.

    ``rule`` is filled in by the rule's decorator and ``file`` by whoever read it. ``edits`` repair the fault for
    certain; without any, the reader does it.
    """

    rule: str = ""
    severity: Severity
    file: str = ""
    line: int
    message: str
    advice: str
    edits: tuple[LintEdit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A file or folder that was not judged, and why. ``failed``: a rule would have read it, but nobody could."""

    file: str
    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """Findings by file and line. ``files`` counts what was judged by kind; ``suppressed_count`` are findings that a
    comment in the file turned off, ``fixed_count`` those whose edits were written."""

    tool_version: str
    paths: tuple[str, ...]
    files: Mapping[str, int]
    findings: tuple[LintFinding, ...]
    unread: tuple[Unread, ...] = ()
    suppressed_count: int = 0
    fixed_count: int = 0
    next: str | None = None

    @property
    def has_serious(self) -> bool:
        """Whether a finding of severity high or medium is there."""
        return any(one.severity in (Severity.HIGH, Severity.MEDIUM) for one in self.findings)


Judge = Callable[..., Iterable[LintFinding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintRule:
    """``judge`` is pure: a parsed file of kind ``reads`` -> its findings. ``manual`` has five headings in Markdown."""

    id: str
    summary: str
    reads: str
    manual: str
    judge: Judge


def lint_rule(rule_id: str, summary: str, *, reads: str, each: str | None = None) -> Callable[[Judge], LintRule]:
    """Make a LintRule of a function from a parsed file to its findings; its docstring is the manual.

    ``each``: a property of the file, such as ``training``. The function is then given the file and one value of it.
    """

    def make(judge: Judge) -> LintRule:
        def judge_and_sign(file: Any) -> tuple[LintFinding, ...]:
            parts = [()] if each is None else [(part,) for part in getattr(file, each)]
            return tuple(replace(one, rule=rule_id) for part in parts for one in judge(file, *part))

        manual = inspect.cleandoc(judge.__doc__ or "")
        return LintRule(id=rule_id, summary=summary, reads=reads, manual=manual, judge=judge_and_sign)

    return make
