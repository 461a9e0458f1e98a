"""A report that was written as JSON is read again; what is no report is one clear error."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.cli import main
from hotloop.cli.report_command import read_content
from hotloop.core.benchmarks import BenchmarkResult
from hotloop.core.check import Check, CheckVerdict, Judged, NotJudged
from hotloop.core.comparison import Comparison, DiffSide
from hotloop.core.doctor import DoctorReport, MachineCheck
from hotloop.core.errors import RecordingError
from hotloop.core.graph import DiffTerm, DiffTerms
from hotloop.core.report import Report
from hotloop.show.report import RENDERERS, render

SAMPLES = {
    "input_bound": samples.input_bound_report,
    "straggler": samples.straggler_report,
    "healthy": samples.healthy_report,
    "no_training": samples.no_training_report,
    "hostile": samples.hostile_report,
    "partly_judged": samples.partly_judged_report,
}


def again(report: Report) -> Report:
    """The report after its way through a file, its fixes said again as the command does."""
    read = read_content(json.loads(json.dumps(report.to_json())))
    assert isinstance(read, Report)
    return read


@pytest.mark.parametrize("name", SAMPLES)
def test_a_report_is_the_same_after_its_way_through_a_file(name: str) -> None:
    report = SAMPLES[name]()
    read = again(report)
    assert read.to_json() == report.to_json()
    for format_id, renderer in RENDERERS.items():
        if not renderer.kinds:
            assert render(format_id, read) == render(format_id, report)


NUMBERS = st.floats(-1e12, 1e12) | st.integers(-(2**62), 2**62)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def broken(*path: str | int, value: Any) -> dict[str, Any]:
    content: Any = samples.input_bound_report().to_json()
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (broken("findings", 0, "title", value=5), "findings[0].title"),
        (broken("findings", 0, "saving", "low_ratio", value=2.0), "2.0"),
        (broken("findings", 0, "severity", value="grave"), "findings[0].severity"),
        (broken("findings", 0, "where", value="x"), "findings[0].where"),
        (broken("step", "mean_ns", value=10**40), "step.mean_ns"),
        (broken("step", "mean_ns", value=True), "step.mean_ns"),
        (broken("environment", "x", value=[[1e300]]), "environment.x[0][0]"),
        (broken("breakdown", "forward", "share_ratio", value=0.9), "breakdown"),
        (broken("ranks", 0, value=None), "not a report"),
        (broken("command", value=["a", 1]), "command[1]"),
        (broken("step", value={"count": 1}), "steady_count"),
    ],
)
def test_what_is_no_report_is_refused_with_its_place(content: dict[str, Any], place: str) -> None:
    with pytest.raises(RecordingError) as caught:
        Report.from_json(content)
    assert place in str(caught.value)


@given(data=st.data(), format_id=st.sampled_from(["html", "markdown", "terminal"]))
@settings(max_examples=100, deadline=None)
def test_a_report_with_any_value_replaced_is_drawn_or_refused_in_one_line(
    data: st.DataObject, format_id: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content: Any = json.loads(json.dumps(samples.partly_judged_report().to_json()))
    inner = content
    while True:
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        if not isinstance(inner[key], dict | list) or not inner[key] or data.draw(st.booleans()):
            break
        inner = inner[key]
    inner[key] = data.draw(VALUES)
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(content))
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = main(["report", str(file), "--format", format_id])
    assert (code, bool(output.getvalue()), errors.getvalue().count("\n")) in {(0, True, 0), (1, True, 0), (2, False, 1)}


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def kinds() -> dict[str, Any]:
    """A small report of each kind but a run's."""
    none = {"value": 1.5e6, "reference": 1e6, "change_ratio": 0.5, "low_ratio": 0.4, "high_ratio": 0.6}
    judged = Judged(
        id="step_ns", kind="baseline", name="step_ns", verdict=CheckVerdict.REGRESSION, tolerance_ratio=0.05,
        reason="slower | <b>", **none,
    )  # fmt: skip
    check = Check(
        tool_version="1", command=("a",), runs=("r",), baseline="b", baseline_count=1, run_count=1, noise="n",
        confidence_ratio=0.95, judged=(judged,), skipped=(NotJudged(id="h2d", reason="not there"),), warnings=("w",),
    )  # fmt: skip
    whole = DiffTerm(name="step", before_ns=5, after_ns=7, delta_ns=2, half_width_ns=1)
    side = DiffSide(
        name="a", kind="run", ranks_count=1, world_size=1, steps_count=9, step_source="s", device="cpu",
        samples_per_step=None, tokens_per_step=None,
    )  # fmt: skip
    comparison = Comparison(
        tool_version="1", before=side, after=side, warnings=("<w>",), per_unit=None, device=None,
        step=DiffTerms(before_ns=5, after_ns=7, whole=whole, terms=(replace(whole, name="forward"),)),
        kernels=(), ops=(), notes=("n",),
    )  # fmt: skip
    bench = BenchmarkResult(tool_version="1", benchmark="gemm", subject="s", tables=(({"n": 1, "x_ns": 5.0},),))
    checks = (
        MachineCheck(id="a", group="cpu", title="t", status="harmful", measured="m", why="w", fix="f", values={"x": 1}),
    )
    doctor = DoctorReport(tool_version="1", python=None, checks=checks, next="n")
    return {"check": check, "diff": comparison, "bench": bench, "doctor": doctor}


@pytest.mark.parametrize("kind", ["check", "diff", "bench", "doctor"])
def test_every_kind_of_report_is_read_and_drawn_again(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = kinds()[kind]
    file = write(tmp_path / "x.json", json.loads(render("json", report)))
    page = tmp_path / "x.html"
    assert main(["report", file, "--html", str(page), "--json", str(tmp_path / "again.json")]) == 0
    assert capsys.readouterr().out == render("terminal", report, width=100)
    assert (tmp_path / "again.json").read_text() == render("json", report) + "\n"
    assert "Content-Security-Policy" in page.read_text()
    assert main(["report", file, "--format", "junit"]) == (0 if kind == "check" else 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "its schema is 'None', which cannot be rendered; known: hotloop.attach/1, hotloop.bench/1"),
        ('{"schema": "hotloop.report/9"}', "its schema is 'hotloop.report/9', which cannot be rendered"),
        ('{"schema": "hotloop.report/1", "verdict": NaN}', "not a report"),
        ("\xff", "is not valid JSON"),
    ],
)
def test_a_file_that_is_no_report_is_one_clear_error(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(text.encode("latin-1"))
    assert main(["report", str(file)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
