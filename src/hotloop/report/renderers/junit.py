"""junit: the Check as JUnit XML: a test case for each judged value."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from hotloop.core.check import Check, CheckVerdict, Judged
from hotloop.report.document import Document, Surface, renderer
from hotloop.report.judged import sentence_of
from hotloop.report.text import clean

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no form for, not even escaped."""


@renderer("junit", "JUnit XML, for CI systems that show test results", suffix=".xml", kinds=("check",))
def draw_junit(document: Document, surface: Surface) -> str:
    """Regressions are failures; what is inconclusive was skipped, and fails where the check is strict."""
    check: Check = document.subject
    failed = [one for one in check.judged if _fails(one, surface)]
    skipped = [one for one in check.judged if one.verdict is CheckVerdict.INCONCLUSIVE and one not in failed]
    counts = (
        f'tests="{len(check.judged) + len(check.skipped)}" failures="{len(failed)}" errors="0"'
        f' skipped="{len(skipped) + len(check.skipped)}"'
    )
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="hotloop check" {counts}>',
        f"  <testsuite name={_attribute('hotloop check ' + ', '.join(check.runs))} {counts}>",
    ]
    for one in check.judged:
        lines += _case(one, surface)
    for left in check.skipped:
        if not any(one.id == left.id for one in check.judged):
            lines += [
                f'    <testcase classname="hotloop.check" name={_attribute(left.id)}>',
                f"      <skipped message={_attribute(left.reason)}/>",
                "    </testcase>",
            ]
    notes = "\n".join(clean(note) for note in (f"noise: {check.noise}", *check.warnings))
    lines += [f"    <system-out>{escape(_legal(notes))}</system-out>", "  </testsuite>", "</testsuites>"]
    return "\n".join(lines) + "\n"


def _fails(one: Judged, surface: Surface) -> bool:
    if one.verdict is CheckVerdict.REGRESSION:
        return True
    return surface.is_strict and one.verdict is CheckVerdict.INCONCLUSIVE and one.decides


def _case(one: Judged, surface: Surface) -> list[str]:
    place = "" if one.where is None else f" file={_attribute(one.where.file)} line={_attribute(str(one.where.line))}"
    head = f'    <testcase classname="hotloop.check" name={_attribute(one.id)}{place}'
    sentence = sentence_of(one)
    if _fails(one, surface):
        inside = f"<failure type={_attribute(one.verdict.value)} message={_attribute(sentence)}/>"
    elif one.verdict is CheckVerdict.INCONCLUSIVE:
        inside = f"<skipped message={_attribute(sentence)}/>"
    else:
        return [f"{head}/>"]
    return [f"{head}>", f"      {inside}", "    </testcase>"]


def _attribute(text: str) -> str:
    return quoteattr(_legal(clean(text)))


def _legal(text: str) -> str:
    return _NOT_XML.sub(" ", text)
