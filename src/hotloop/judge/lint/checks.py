"""Check: a row of a rule's table with the faulty places of a file, their cost and the advice; rules of such rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, LintRule, lint_rule

HIGH, MEDIUM, LOW = Severity.HIGH, Severity.MEDIUM, Severity.LOW
LIKELY = Confidence.LIKELY


class ReadPlace(NamedTuple):
    """A line of a file and its text; a Field and a ShellCommand also have both."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCheck:
    """``at`` returns the faulty places of a value; an absent Field counts as no place.

    ``message`` and ``advice`` are formats of ``str.format``: ``{text}`` is the text of the place; ``{0}`` and ``{1}``
    are the values being checked.
    """

    at: Callable[..., Iterable[Any]]
    severity: Severity
    message: str
    advice: str
    confidence: Confidence = Confidence.CERTAIN


def table_rule(
    rule_id: str,
    summary: str,
    manual: str,
    *,
    reads: str,
    checks: Iterable[FieldCheck],
    each: str | None = None,
    about: Callable[..., Iterable[tuple[Any, ...]]] = lambda *parts: [parts[-1:]],
) -> LintRule:
    """A rule with one finding for each faulty place of each row. ``about`` turns the file, and each of its ``each``
    values, into the arguments of the rows: by default the value alone."""

    def judge(*parts: Any) -> Iterator[LintFinding]:
        for subject in about(*parts):
            for check in checks:
                for place in filter(None, check.at(*subject)):
                    yield LintFinding(
                        severity=check.severity,
                        line=place.line,
                        message=check.message.format(*subject, text=place.text or ""),
                        advice=check.advice.format(*subject, text=place.text or ""),
                        confidence=check.confidence,
                    )

    judge.__doc__ = manual
    return lint_rule(rule_id, summary, reads=reads, each=each)(judge)


def only(place: Any, is_faulty: object) -> tuple[Any, ...]:
    """The place, if a condition makes it faulty."""
    return (place,) if is_faulty else ()
