"""lint: serious findings one by one, the others by rule with their places, then what was not read."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.findings import Severity
from hotloop.core.lint import LINT_SCHEMA, LintFinding, LintReport
from hotloop.show.report.document import Card, Document, Paragraph, Place, Row, Section, Span, Surface, View, write
from hotloop.show.report.text import clean, format_counted

SERIOUS = (Severity.HIGH, Severity.MEDIUM)


def describe_lint(report: LintReport, surface: Surface) -> Document:
    serious = sorted(
        (one for one in report.findings if one.severity in SERIOUS), key=lambda one: SERIOUS.index(one.severity)
    )
    others = [one for one in report.findings if one.severity not in SERIOUS]
    count = sum(report.files.values())
    nouns = {kind: report.titles.get(kind, f"file of {kind}") for kind in report.files}
    kinds = ", ".join(format_counted(found, nouns[kind]) for kind, found in report.files.items() if found)
    title = f"{format_counted(len(serious), 'serious finding')} in {format_counted(count, 'file')}"
    if not serious:
        title = f"no serious finding in {format_counted(count, 'file')}"
    notes = [f"read: {kinds}"] if kinds else []
    notes += [f"{report.fixed_count} fixed"] if report.fixed_count else []
    notes += [f"{report.suppressed_count} turned off by comments or settings"] if report.suppressed_count else []
    sections = [
        Section(title="", blocks=(Paragraph(text=write((clean("; ".join(notes)), "dim")), indent=0),))
        if notes
        else None,
        Section(title="", blocks=tuple(_describe(at, one, surface) for at, one in enumerate(serious, 1)))
        if serious
        else None,
        Section(title="worth a look", blocks=tuple(_describe_rules(others, surface))) if others else None,
        Section(title="not read", blocks=tuple(_describe_unread(report))) if report.unread else None,
    ]
    return Document(
        title=title if count else "nothing to check: no rule reads any of these files",
        tone=serious[0].severity.value if serious else "good" if count else "dim",
        sections=tuple(one for one in sections if one is not None),
        next_label="next",
        next_command=_next_command(report, [*serious, *others]),
    )


def _describe(number: int, one: LintFinding, surface: Surface) -> Card:
    fix = f"{one.advice} (hotloop lint --fix does this)" if one.edits else one.advice
    return Card(
        number=number,
        severity=one.severity.value,
        label=one.severity.value,
        title=clean(one.message),
        rule=one.rule,
        rows=(
            Row(label="where", content=(Place(file=clean(one.file), line=one.line, function=""),)),
            Row(label="fix", content=write(clean(fix))),
        ),
        manual=surface.manuals.get(one.rule, ""),
    )


def _describe_rules(findings: Sequence[LintFinding], surface: Surface) -> list[Paragraph]:
    """A paragraph for each rule: what to do, and its first places."""
    by_rule: dict[str, list[LintFinding]] = {}
    for one in sorted(findings, key=lambda one: one.severity is Severity.INFO):
        by_rule.setdefault(one.rule, []).append(one)
    blocks = []
    for rule, found in by_rule.items():
        label = Span(f"{found[0].severity.value.ljust(5)}", found[0].severity.value)
        text = f"{rule} ({format_counted(len(found), 'place')}): {found[0].advice}"
        blocks.append(Paragraph(label=label, text=write(clean(text)), indent=0))
        shown = [f"{clean(one.file)}:{one.line}" for one in found[: surface.top // 2]]
        more = len(found) - len(shown)
        shown += [f"and {more} more: --json FILE lists all"] if more > 0 else []
        blocks += [Paragraph(text=write((line, "dim")), indent=6, wraps=False) for line in shown]
    return blocks


def _describe_unread(report: LintReport) -> list[Paragraph]:
    """A paragraph for each reason, with the first file that it kept out."""
    by_reason: dict[str, list[str]] = {}
    for one in report.unread:
        by_reason.setdefault(one.reason, []).append(one.file)
    return [
        Paragraph(
            text=write(clean(f"{files[0]}{f' and {len(files) - 1:,} more' if len(files) > 1 else ''}: {reason}")),
            indent=0,
        )
        for reason, files in list(by_reason.items())[:20]
    ]


def _next_command(report: LintReport, findings: Sequence[LintFinding]) -> str | None:
    if any(one.edits for one in findings):
        return f"hotloop lint --diff {' '.join(report.paths)}"
    return f"hotloop rule {findings[0].rule}" if findings else None


LINT = View(id="lint", type=LintReport, schema=LINT_SCHEMA, describe=describe_lint)
