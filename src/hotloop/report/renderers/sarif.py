"""sarif: SARIF 2.1.0 of a Check (each value that did not pass) or of a LintReport (each finding, with its fix)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from hotloop.core.check import Check, CheckVerdict, Judged
from hotloop.core.lint import LintEdit, LintFinding, LintReport
from hotloop.report.document import Document, Surface, renderer
from hotloop.report.judged import manual_of, relative_path, sentence_of, title_of
from hotloop.report.manual import split_manual
from hotloop.report.text import below_folder, clean

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@renderer("sarif", "SARIF 2.1.0, for code scanning", suffix=".sarif", kinds=("check", "lint"))
def draw_sarif(document: Document, surface: Surface) -> str:
    """Files are named relative to the root; a line outside of it is left out, as viewers could not open it."""
    if isinstance(document.subject, LintReport):
        return _write_log(*_draw_lint(document.subject, surface))
    check: Check = document.subject
    rules = [_rule(one) for one in check.judged]
    results = [
        _result(index, one, surface) for index, one in enumerate(check.judged) if one.verdict is not CheckVerdict.PASS
    ]
    notifications = [
        {"level": "warning", "message": {"text": clean(text)}} for text in (*check.warnings, f"noise: {check.noise}")
    ]
    notifications += [
        {"level": "note", "message": {"text": clean(f"not judged: {one.id}: {one.reason}")}} for one in check.skipped
    ]
    return _write_log(check.tool_version, rules, results, notifications)


Objects = Sequence[dict[str, Any]]


def _write_log(version: str, rules: Objects, results: Objects, notifications: Objects) -> str:
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "hotloop", "version": version, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
                "results": results,
            }
        ],
    }
    return json.dumps(log, allow_nan=False, indent=1) + "\n"


def _draw_lint(report: LintReport, surface: Surface) -> tuple[str, Objects, Objects, Objects]:
    ids = sorted({one.rule for one in report.findings})
    rules = [
        {
            "id": rule,
            "shortDescription": {"text": " ".join(split_manual(manual, "What it does")[0].split()) or rule},
            "help": {"text": manual or rule, "markdown": manual or rule},
        }
        for rule, manual in ((one, surface.manuals.get(one, "")) for one in ids)
    ]
    notifications = [
        {"level": "warning", "message": {"text": clean(f"not read: {one.file}: {one.reason}")}} for one in report.unread
    ]
    results = [_lint_result(ids.index(one.rule), one, surface) for one in report.findings]
    return report.tool_version, rules, results, notifications


def _lint_result(index: int, one: LintFinding, surface: Surface) -> dict[str, Any]:
    path = below_folder(one.file, surface.folder)
    artifact = {"uri": quote(path.encode("utf-8", "replace"))}
    result: dict[str, Any] = {
        "ruleId": one.rule,
        "ruleIndex": index,
        "level": {"high": "error", "medium": "warning"}.get(one.severity.value, "note"),
        "message": {"text": clean(f"{one.message}. {one.advice[:1].upper()}{one.advice[1:]}.")},
        "locations": [{"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": max(1, one.line)}}}],
        "partialFingerprints": {"hotloopLint/v1": clean(f"{one.rule}:{path}:{one.message}")},
        "properties": {"severity": one.severity.value},
    }
    if one.edits:
        changes = [{"artifactLocation": artifact, "replacements": [_replacement(edit) for edit in one.edits]}]
        result["fixes"] = [{"description": {"text": clean(one.advice)}, "artifactChanges": changes}]
    return result


def _replacement(edit: LintEdit) -> dict[str, Any]:
    region = {
        "startLine": edit.first_line,
        "startColumn": edit.first_column,
        "endLine": edit.last_line,
        "endColumn": edit.last_column,
    }
    return {"deletedRegion": region, "insertedContent": {"text": edit.text}}


def _rule(one: Judged) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": "".join(part.capitalize() for part in clean(title_of(one)).replace("_", " ").split()),
        "shortDescription": {"text": clean(title_of(one))},
        "fullDescription": {"text": manual_of(one.id)},
        "defaultConfiguration": {"level": "error"},
    }


def _result(index: int, one: Judged, surface: Surface) -> dict[str, Any]:
    level = (
        "error"
        if one.verdict is CheckVerdict.REGRESSION
        else "warning"
        if surface.is_strict and one.decides
        else "note"
    )
    result: dict[str, Any] = {
        "ruleId": one.id,
        "ruleIndex": index,
        "level": level,
        "message": {"text": sentence_of(one)},
        "partialFingerprints": {"hotloopCheck/v1": one.id},
        "properties": {
            "verdict": one.verdict.value,
            "changeRatio": one.change_ratio,
            "lowRatio": one.low_ratio,
            "highRatio": one.high_ratio,
            "toleranceRatio": one.tolerance_ratio,
        },
    }
    path = None if one.where is None else relative_path(one.where.file, surface.folder)
    if one.where is not None and path is not None:
        region = {"startLine": max(1, one.where.line)}
        result["locations"] = [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(path.encode("utf-8", "replace"))},
                    "region": region,
                }
            },
        ]
    return result
