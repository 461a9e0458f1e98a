"""What the adapters log of a report, and which settings they refuse; no framework is needed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.findings import Basis, Finding, Kind, Saving, Severity, Where
from hotloop.core.report import Report
from hotloop.integrations.recording import FORMATS, FrameworkRecording, log_findings, write_report

LOG = logging.getLogger("hotloop.test")
WAIT = Finding(
    rule="input-bound",
    title="every step waits",
    evidence={},
    saving=Saving(low_ratio=0.2, mid_ratio=0.3, high_ratio=0.4, basis=Basis.SIMULATED),
    where=(Where(file="train.py", line=7, function="load"),),
)
TIP = Finding(
    rule="full-precision", kind=Kind.OPPORTUNITY, title="try bfloat16", evidence={}, severity_override=Severity.LOW
)
REPORT = Report(tool_version="1", command=("python", "train.py"), verdict="all is well", next_command="hotloop rule x")


def test_serious_findings_are_warnings_and_the_others_information(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_findings(LOG, replace(REPORT, findings=(WAIT, TIP)))
    assert [(one.levelname, one.message) for one in caplog.records] == [
        ("WARNING", "hotloop: high problem: every step waits; the fix saves 20% to 40%; train.py:7 [input-bound]"),
        ("INFO", "hotloop: low tip: try bfloat16 [full-precision]"),
        ("INFO", "hotloop: next: hotloop rule x"),
    ]


def test_without_a_serious_finding_the_verdict_is_logged_and_nothing_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_findings(LOG, replace(REPORT, findings=(TIP,)))
    assert caplog.records[0].message == "hotloop: all is well"
    assert {one.levelname for one in caplog.records} == {"INFO"}


@pytest.mark.parametrize("ending", FORMATS)
def test_a_report_is_written_in_the_format_of_its_ending(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "new" / f"run{ending}"
    write_report(replace(REPORT, findings=(WAIT,)), str(path))
    assert "every step waits" in path.read_text()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: FrameworkRecording(LOG, "report.pdf"), r"'report.pdf'; give a file that ends in .html"),
        (lambda: FrameworkRecording(LOG, trace="5"), "wait:warmup:active"),
        (lambda: FrameworkRecording(LOG, trace_ranks="x"), "x"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_at_once(build: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build()


def test_what_fails_later_is_a_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = FrameworkRecording(LOG)
    monkeypatch.setattr("hotloop.integrations.recording.watch", lambda *_, **__: 1 / 0)
    recording.begin()
    assert caplog.messages == ["hotloop records nothing: division by zero"]
    assert recording.end() == ""
