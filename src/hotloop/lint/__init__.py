"""Files -> findings, without running them. A rule is one function in rules/; each reads one kind of parsed file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hotloop.core.catalogue import Catalogue
from hotloop.core.findings import Severity
from hotloop.core.lint import FILE_KINDS, LintFinding, LintReport, LintRule, Unread

from .batch import parse_batch
from .builds import parse_build
from .files import NotRead, SourceFile, Surroundings, find_files, find_ignored
from .manifests import parse_manifests
from .script import parse_script
from .survey import survey

__all__ = ["LINT_RULES", "lint_file", "lint_paths"]

LINT_RULES: Catalogue[LintRule] = Catalogue(LintRule, "hotloop.lint.rules")
"""Every rule by its id; the modules are imported when it is first read."""

PARSERS: dict[str, Callable[[SourceFile, Surroundings], Any]] = {
    "python": parse_script,
    "dockerfile": parse_build,
    "sbatch": parse_batch,
    "kubernetes": parse_manifests,
}
"""A file and what is known beside it -> what the rules of its kind read. None: not their business."""
ORDER = {severity: at for at, severity in enumerate(Severity)}


def lint_paths(
    paths: Sequence[str], tool_version: str, *, save_s: float | None = None, rules: Iterable[LintRule] | None = None
) -> tuple[LintReport, dict[str, bytes]]:
    """The report, and the bytes of each file with findings, as they were read.

    ``save_s`` is how long a checkpoint takes, where the caller knows it. Raises UsageError for an unknown path.
    """
    asked = tuple(LINT_RULES.values() if rules is None else rules)
    around = survey(paths, save_s)
    counts = dict.fromkeys(FILE_KINDS, 0)
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
        ),
        {path: data for path, data in read.items() if data},
    )


def lint_file(file: SourceFile, rules: Iterable[LintRule], around: Surroundings) -> tuple[list[LintFinding], int]:
    """The findings of one file in order of lines, and how many its comments turn off. Raises NotRead."""
    parsed = PARSERS[file.kind](file, around)
    if parsed is None:
        return [], 0
    found = [replace(one, file=file.path) for rule in rules if rule.reads == file.kind for one in rule.judge(parsed)]
    ignored = find_ignored(file.text)
    kept = [
        one
        for one in dict.fromkeys(found)
        if (off := ignored.get(one.line, frozenset())) is not None and one.rule not in off
    ]
    return sorted(kept, key=lambda one: (one.line, ORDER[one.severity], one.rule)), len(found) - len(kept)
