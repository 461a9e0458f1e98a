"""github, junit, sarif and bencher: what CI systems read of a Check, a Proof, a Drill or a LintReport."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from hotloop.core.check import Check, CheckVerdict, Judged
from hotloop.core.drill import Drill
from hotloop.core.lint import LintEdit, LintFinding, LintReport
from hotloop.core.proof import Proof
from hotloop.show.report.document import Document, Surface, renderer
from hotloop.show.report.judged import sentence_of, title_of
from hotloop.show.report.manual import split_manual
from hotloop.show.report.text import below_folder, clean

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no form for, not even escaped."""


@renderer("github", "GitHub Actions annotations", suffix=".txt", kinds=("check",))
def draw_github(document: Document, surface: Surface) -> str:
    """A line for each regression and for each inconclusive value that decides, then the verdict."""
    check: Check = document.subject
    lines = []
    for one in check.judged:
        if one.verdict is CheckVerdict.REGRESSION:
            lines.append(_annotate("error", one, surface))
        elif one.verdict is CheckVerdict.INCONCLUSIVE and one.decides:
            lines.append(_annotate("error" if surface.is_strict else "warning", one, surface))
    text = f"{check.verdict.value}: {len(check.judged)} values judged; noise: {check.noise}"
    lines.append(f"::notice title=hotloop check::{_data(text)}")
    return "\n".join(lines) + "\n"


def _annotate(level: str, one: Judged, surface: Surface) -> str:
    properties = []
    path = None if one.where is None else relative_path(one.where.file, surface.folder)
    if one.where is not None and path is not None:
        properties += [f"file={_property(path)}", f"line={max(1, one.where.line)}"]
    properties.append(f"title={_property(f'hotloop: {title_of(one)}')}")
    return f"::{level} {','.join(properties)}::{_data(sentence_of(one))}"


def _data(text: str) -> str:
    """Escaped as a workflow command's message: a line break would begin a command of its own."""
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


@dataclass(frozen=True, slots=True, kw_only=True)
class JunitCase:
    """A test as a CI system shows it: ``outcome`` is passed, failure or skipped, ``kind`` the word for a failure."""

    id: str
    outcome: str = "passed"
    kind: str = ""
    message: str = ""
    place: str = ""


@renderer("junit", "JUnit XML, for CI systems that show test results", suffix=".xml", kinds=("check", "prove", "drill"))
def draw_junit(document: Document, surface: Surface) -> str:
    """Regressions and refusals are failures; what is inconclusive was skipped, and fails where the check is strict."""
    if isinstance(document.subject, Proof):
        proof = document.subject
        outcome = {"slower": "failure", "refused": "failure", "cannot tell": "skipped"}.get(proof.verdict, "passed")
        case = JunitCase(id="B against A", outcome=outcome, kind=proof.verdict, message=document.title)
        return _write_junit("prove", proof.verdict, [case], [proof.reason, *proof.limits])
    if isinstance(document.subject, Drill):
        drilled = document.subject
        outcomes = {"fail": "failure", "cannot tell": "skipped"}
        cases = [
            JunitCase(
                id=f"SIG{one.signal}",
                outcome=outcomes.get(one.verdict, "passed"),
                kind=one.verdict,
                message="; ".join(one.reasons),
            )
            for one in drilled.signals
        ]
        return _write_junit("drill", drilled.verdict, cases, [drilled.reason, *drilled.limits])
    check: Check = document.subject
    cases = [_case(one, surface) for one in check.judged]
    judged = {one.id for one in check.judged}
    cases += [
        JunitCase(id=left.id, outcome="skipped", message=left.reason) for left in check.skipped if left.id not in judged
    ]
    return _write_junit("check", ", ".join(check.runs), cases, [f"noise: {check.noise}", *check.warnings])


def _write_junit(kind: str, name: str, cases: Sequence[JunitCase], notes: Sequence[str]) -> str:
    failures, skips = (sum(case.outcome == outcome for case in cases) for outcome in ("failure", "skipped"))
    counts = f'tests="{len(cases)}" failures="{failures}" errors="0" skipped="{skips}"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="hotloop {kind}" {counts}>',
        f"  <testsuite name={_attribute(f'hotloop {kind} {name}')} {counts}>",
    ]
    for case in cases:
        head = f'    <testcase classname="hotloop.{kind}" name={_attribute(case.id)}{case.place}'
        kind_of = f" type={_attribute(case.kind)}" if case.outcome == "failure" else ""
        inside = f"      <{case.outcome}{kind_of} message={_attribute(case.message)}/>"
        lines += [f"{head}/>"] if case.outcome == "passed" else [f"{head}>", inside, "    </testcase>"]
    text = "\n".join(clean(note) for note in notes)
    lines += [f"    <system-out>{escape(_legal(text))}</system-out>", "  </testsuite>", "</testsuites>"]
    return "\n".join(lines) + "\n"


def _fails(one: Judged, surface: Surface) -> bool:
    if one.verdict is CheckVerdict.REGRESSION:
        return True
    return surface.is_strict and one.verdict is CheckVerdict.INCONCLUSIVE and one.decides


def _case(one: Judged, surface: Surface) -> JunitCase:
    place = "" if one.where is None else f" file={_attribute(one.where.file)} line={_attribute(str(one.where.line))}"
    outcome = "skipped" if one.verdict is CheckVerdict.INCONCLUSIVE else "passed"
    outcome = "failure" if _fails(one, surface) else outcome
    return JunitCase(id=one.id, outcome=outcome, kind=one.verdict.value, message=sentence_of(one), place=place)


@renderer("bencher", "Bencher Metric Format, for services that keep benchmarks", suffix=".json", kinds=("prove",))
def draw_bencher(document: Document, surface: Surface) -> str:
    """B's time over A's with its bounds, and the time of both sides in ns."""
    proof: Proof = document.subject
    metrics: dict[str, dict[str, float]] = {}
    if proof.ratio is not None:
        metrics["ratio"] = {"value": proof.ratio}
        if proof.low is not None and proof.high is not None:
            metrics["ratio"] |= {"lower_value": proof.low, "upper_value": proof.high}
    for side in (proof.a, proof.b):
        if side.times_ns:
            mean = math.fsum(side.times_ns) / len(side.times_ns)
            lowest, highest = min(side.times_ns), max(side.times_ns)
            metrics[f"latency_{side.id.lower()}"] = {"value": mean, "lower_value": lowest, "upper_value": highest}
    return json.dumps({f"prove per {proof.unit}": metrics}, indent=1) + "\n"


def _attribute(text: str) -> str:
    return quoteattr(_legal(clean(text)))


def _legal(text: str) -> str:
    return _NOT_XML.sub(" ", text)


@renderer("sarif", "SARIF 2.1.0, for code scanning", suffix=".sarif", kinds=("lint",))
def draw_sarif(document: Document, surface: Surface) -> str:
    """Files are named relative to the root; a line outside of it is left out, as viewers could not open it."""
    report: LintReport = document.subject
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
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "hotloop", "version": report.tool_version, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
                "results": [_lint_result(ids.index(one.rule), one, surface) for one in report.findings],
            }
        ],
    }
    return json.dumps(log, allow_nan=False, indent=1) + "\n"


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


def relative_path(file: str, root: str) -> str | None:
    """The path below ``root`` with slashes; None for a file elsewhere."""
    prefix = root.rstrip("/") + "/"
    return file[len(prefix) :] if root and file.startswith(prefix) else None
