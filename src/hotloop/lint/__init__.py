"""Files -> findings, without running them. A rule is one function in rules/; each reads one kind of parsed file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hotloop.core.catalogue import Catalogue
from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, LintReport, LintRule, Unread

from .files import LINT_FORMATS, NotRead, SourceFile, Surroundings, find_files, find_ignored
from .survey import survey

__all__ = ["LINT_RULES", "lint_file", "lint_paths"]

LINT_RULES: Catalogue[LintRule] = Catalogue(LintRule, "hotloop.lint.rules")
"""Every rule by its id; the modules are imported when it is first read."""

SURE = list(Confidence)
ORDER = {severity: at for at, severity in enumerate(Severity)}


def lint_paths(
    paths: Sequence[str],
    tool_version: str,
    *,
    save_s: float | None = None,
    rules: Iterable[LintRule] | None = None,
    confidence: Confidence = Confidence.LIKELY,
) -> tuple[LintReport, dict[str, bytes]]:
    """The report, and the bytes of each file with findings, as they were read.

    ``save_s`` is how long a checkpoint takes, where the caller knows it; ``confidence`` is the least that a finding has
    to have. Raises UsageError for an unknown path.
    """
    asked = tuple(LINT_RULES.values() if rules is None else rules)
    around = survey(paths, save_s)
    counts = dict.fromkeys(LINT_FORMATS, 0)
    findings: list[LintFinding] = []
    unread: list[Unread] = []
    read: dict[str, bytes] = {}
    suppressed = 0
    for file in find_files(paths):
        if isinstance(file, Unread):
            unread.append(file)
            continue
        if file.path in read:
            continue  # given twice
        try:
            found, ignored_count = lint_file(file, asked, around)
        except NotRead as error:
            unread.append(Unread(file=file.path, reason=str(error), failed=True))
            continue
        counts[file.kind] += 1
        suppressed += ignored_count
        found = [finding for finding in found if SURE.index(finding.confidence) <= SURE.index(confidence)]
        findings += found
        read[file.path] = file.data if found else b""
    return (
        LintReport(
            tool_version=tool_version,
            paths=tuple(paths),
            files=counts,
            findings=tuple(findings),
            unread=tuple(unread),
            suppressed_count=suppressed,
            titles={known.id: known.title for known in LINT_FORMATS.values()},
        ),
        {path: data for path, data in read.items() if data},
    )


def lint_file(file: SourceFile, rules: Iterable[LintRule], around: Surroundings) -> tuple[list[LintFinding], int]:
    """The findings of one file in order of lines, and how many its comments turn off. Raises NotRead."""
    parsed = LINT_FORMATS[file.kind].parse(file, around)
    if parsed is None:
        return [], 0
    found = [
        replace(one, file=file.path) for rule in rules if file.kind in rule.reads.split() for one in rule.judge(parsed)
    ]
    ignored = find_ignored(file.text)
    kept = [
        one
        for one in dict.fromkeys(found)
        if (off := ignored.get(one.line, frozenset())) is not None and one.rule not in off
    ]
    return sorted(kept, key=lambda one: (one.line, ORDER[one.severity], one.rule)), len(found) - len(kept)
