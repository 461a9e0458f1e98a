"""hotloop check, from run folders to exit codes, files and the baseline."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.core.check import Check, CheckVerdict, Judged, NotJudged
from hotloop.core.findings import Where
from hotloop.show.report import RENDERERS, render
from tests.recordings import record


def record_around(folder: Path, forward_ms: float, seed: int = 0, samples: int = 8) -> str:
    """A run whose forwards vary a little around a mean."""
    draw = random.Random(seed)
    return str(record(folder, [forward_ms + draw.gauss(0, 0.05) for _ in range(120)], samples=samples))


@pytest.fixture
def baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A baseline file of five launches."""
    target = tmp_path / "baseline.json"
    for number, forward in enumerate((4.0, 4.05, 3.95, 4.02, 3.98)):
        run = record_around(tmp_path / f"base{number}", forward, number)
        option = "--update-baseline" if number == 0 else "--add-to-baseline"
        assert main(["check", run, "--baseline", str(target), option, "-q"]) == 0
    capsys.readouterr()
    return target


def test_a_regression_ends_with_1_and_an_equal_run_with_0(tmp_path: Path, baseline: Path) -> None:
    out = tmp_path / "out.json"
    good, bad = record_around(tmp_path / "good", 4.01, 9), record_around(tmp_path / "bad", 6.0, 10)
    assert main(["check", good, "--baseline", str(baseline), "--strict", "-q", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["verdict"] == "pass"
    assert main(["check", bad, "--baseline", str(baseline), "-q", "--json", str(out)]) == 1
    told = json.loads(out.read_text())
    assert told["schema"] == "hotloop.check/1"
    by_id = {one["id"]: one["verdict"] for one in told["judged"]}
    assert by_id["step_ns"] == by_id["phase/forward"] == "regression"
    assert by_id["phase/backward"] == "pass"
    assert told["baseline_count"] == 5


def test_the_baseline_keeps_a_dated_record(tmp_path: Path, baseline: Path) -> None:
    bad = record_around(tmp_path / "bad", 6.0, 10)
    before = baseline.read_text()
    assert main(["check", bad, "--baseline", str(baseline), "--add-to-baseline", "-q"]) == 1
    assert baseline.read_text() == before
    assert main(["check", bad, "--baseline", str(baseline), "--update-baseline", "-q"]) == 0
    content = json.loads(baseline.read_text())
    assert len(content["launches"]) == 1
    last = content["history"][-1]
    assert last["what"] == "replaced"
    assert last["date"].endswith("+00:00")
    step = next(one for one in last["changes"] if one["measure"] == "step_ns")
    assert step["change_ratio"] == pytest.approx(2.0 / 11.0, abs=0.01)
    assert main(["check", bad, "--baseline", str(baseline), "--add-to-baseline", "-q"]) == 2  # counts once


def test_limits_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, limits = record_around(tmp_path / "a", 4.0), tmp_path / "limits.toml"
    limits.write_text('schema = "hotloop.limits/1"\n[budget]\nstep_ms = 10.0\nforward_share_ratio = 0.5\n')
    assert main(["check", run, "--limits", str(limits)]) == 1
    assert "budget step_ms" in capsys.readouterr().out
    limits.write_text('schema = "hotloop.limits/1"\n[budget]\nstep_ms = 12\nbackward_ms = 7\n')
    assert main(["check", run, "--limits", str(limits), "--strict", "-q"]) == 0
    capsys.readouterr()
    assert main(["check", run, "--limits", str(limits), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("## pass")


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        "x",
        "[" * 99_999,
        '{"schema": "hotloop.baseline/1"}',
        '{"schema": "hotloop.report/1", "step": 3}',
        '{"schema": "hotloop.baseline/1", "command": [], "history": [], "launches": [{"name": 1, "measures": {}}]}',
    ],
)
def test_a_hostile_baseline_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    run, base = record_around(tmp_path / "a", 4.0), tmp_path / "base.json"
    base.write_text(content)
    assert main(["check", run, "--baseline", str(base)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert base.read_text() == content


def test_usage_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = record_around(tmp_path / "a", 4.0)
    assert main(["check", run]) == 2
    assert main(["check", run, "--baseline", str(tmp_path / "new.txt"), "--update-baseline"]) == 2
    assert main(["check", run, "--baseline", str(tmp_path / "a"), "--update-baseline"]) == 2
    assert main(["check", str(tmp_path / "none"), "--baseline", run]) == 2
    assert main(["check", run, "--baseline", run, "--github", "--json", "-"]) == 2
    assert all(line.startswith("hotloop: ") for line in capsys.readouterr().err.strip().splitlines())


def test_the_files_for_ci(tmp_path: Path, baseline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = record_around(tmp_path / "bad", 6.0, 10)
    junit = tmp_path / "out.xml"
    words = ["--baseline", str(baseline), "--junit", str(junit), "--github", "-q"]
    assert main(["check", bad, *words]) == 1
    suites = xml.parse(junit).getroot()
    failed = [case.get("name") for case in suites.iter("testcase") if case.find("failure") is not None]
    assert failed == ["step_ns", "phase/forward", "samples_per_s"]
    assert suites.get("failures") == "3"
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("::error title=hotloop%3A step time::step time:")


def hostile_check() -> Check:
    evil = 'x"]]>&<b>\x1b[31m\x00\ud800\u202e,:%\r\n::error::gotcha'
    one = Judged(
        id="step_ns",
        kind="baseline",
        name="step_ns",
        verdict=CheckVerdict.REGRESSION,
        value=2e6,
        reference=1e6,
        change_ratio=1.0,
        low_ratio=0.9,
        high_ratio=1.1,
        tolerance_ratio=0.05,
        reason=evil,
        where=Where(file=f"/repo/dir with/{evil}.py", line=0, function=evil),
    )
    return Check(
        tool_version="0",
        command=(evil,),
        runs=(evil,),
        baseline=evil,
        baseline_count=3,
        run_count=1,
        noise=evil,
        confidence_ratio=0.98,
        judged=(one,),
        skipped=(NotJudged(id=evil, reason=evil),),
        warnings=(evil,),
    )


def test_everything_is_escaped() -> None:
    fitting = [name for name, renderer in RENDERERS.items() if not renderer.kinds or "check" in renderer.kinds]
    drawn = {name: render(name, hostile_check(), folder="/repo") for name in fitting}
    assert set(drawn) >= {"json", "terminal", "github", "junit", "html", "markdown"}
    xml.fromstring(drawn["junit"].encode())
    assert json.loads(drawn["json"])["verdict"] == "regression"
    assert all(line.startswith(("::error file=dir with/", "::notice ")) for line in drawn["github"].splitlines())
    assert len(drawn["github"].splitlines()) == 2
    for text in (drawn["terminal"], drawn["github"], drawn["junit"], drawn["html"], drawn["markdown"]):
        assert not {"\x1b", "\x00", "\r", "\u202e"} & set(text)
