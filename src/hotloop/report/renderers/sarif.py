"""sarif: the Check as SARIF 2.1.0: a result for each value that did not pass, at the line that held the time."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from hotloop.core.check import Check, CheckVerdict, Judged
from hotloop.report.document import Document
from hotloop.report.judged import manual_of, relative_path, sentence_of, title_of
from hotloop.report.renderer import Surface, renderer
from hotloop.report.text import clean

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@renderer("sarif", "SARIF 2.1.0, for code scanning", suffix=".sarif", kinds=("check",))
def draw_sarif(document: Document, surface: Surface) -> str:
    """Files are named relative to the root; a line outside of it is left out, as viewers could not open it."""
    check: Check = document.subject
    rules = [_rule(one) for one in check.judged]
    results = [
        _result(index, one, surface) for index, one in enumerate(check.judged) if one.verdict is not CheckVerdict.PASS
    ]
    notifications = [
        {"level": "warning", "message": {"text": clean(text)}} for text in (*check.warnings, f"noise: {check.noise}")
    ]
    notifications += [
        {"level": "note", "message": {"text": clean(f"not judged: {name}: {reason}")}} for name, reason in check.skipped
    ]
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "hotloop", "version": check.tool_version, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
                "results": results,
            }
        ],
    }
    return json.dumps(log, allow_nan=False, indent=1) + "\n"


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
