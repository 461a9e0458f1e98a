"""Fresh scripts: one pass, forecasts before twins, every row kept, and what counts as a hit."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import fresh
import pytest

SET = """
    [[scenario]]
    id = "planted"
    script = "a.py"
    command = ["{python}", "a.py"]
    twin_command = ["{python}", "a.py", "--mended"]
    rule = "gc-pause"
    also = ["logging-overhead"]
    unit = "sample"
    units_per_run = 1000
    style = "flat script"

    [[scenario]]
    id = "sound"
    script = "b.py"
    command = ["{torchrun}", "--nproc-per-node", "2", "b.py"]
"""

FAKE_HOTLOOP = """
    import json, pathlib, sys
    words = sys.argv[1:]
    training = words[words.index("--") + 1:]
    log = pathlib.Path(__file__).with_name("calls")
    side = "twin " if "--mended" in words else "faulty " if "--no-deep" in words else "told "
    log.write_text(log.read_text() + side)
    assert pathlib.Path("a.py").exists() and not pathlib.Path("left").exists()
    pathlib.Path("left").touch()
    step = {"mean_ns": 6e6 if "--mended" in words else 10e6, "count": 100, "unit": "step", "units_per_step": 1}
    saving = {"low_ratio": 0.3, "mid_ratio": 0.35, "high_ratio": 0.45, "basis": "simulated"}
    found = {"rule": "logging-overhead", "kind": "fault", "severity": "high", "title": "t", "saving": saving}
    said = {"outcome": {"training_seen": True}, "step": step, "findings": [found], "training": training}
    pathlib.Path(words[words.index("--json") + 1]).write_text(json.dumps(said))
"""


@pytest.fixture
def scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, list[str]]:
    """A set, and the words that score it with a hotloop that says what it is asked."""
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "scenarios.toml").write_text(textwrap.dedent(SET))
    for name in ("a.py", "b.py"):
        (folder / name).write_text(f"'{name}'")
    (tmp_path / "fake.py").write_text(textwrap.dedent(FAKE_HOTLOOP))
    (tmp_path / "calls").write_text("")
    places = [f"--{name}={tmp_path / name}" for name in ("tables", "scratch", "doc")]
    return tmp_path, [str(folder), "--hotloop", f"{sys.executable} {tmp_path / 'fake.py'}", *places]


def rows_of(root: Path) -> dict[str, dict[str, Any]]:
    (path,) = (root / "tables").glob("*.jsonl")
    return {row["id"]: row for row in fresh.read_table(path).rows}


def test_a_pass_stores_the_forecast_and_runs_the_pair_in_turn(scored: tuple[Path, list[str]]) -> None:
    root, words = scored
    assert fresh.main(words) == 0
    assert (root / "calls").read_text().split() == ["told", *["faulty", "twin"] * 2, "told"]
    planted = rows_of(root)["planted"]
    assert planted["findings"][0]["saving"]["mid_ratio"] == 0.35
    assert [run["time_per_unit_ns"] for run in planted["faulty"]] == [1e6, 1e6]
    assert [run["time_per_unit_ns"] for run in planted["twin"]] == [6e5, 6e5]


def test_a_pass_scores_no_script_twice_and_keeps_a_row_of_what_it_has_not_run(scored: tuple[Path, list[str]]) -> None:
    root, words = scored
    assert fresh.main([*words, "--limit", "1"]) == 0
    assert rows_of(root)["sound"]["status"] == "not run"
    assert fresh.main(words) == 0
    assert (root / "calls").read_text().split().count("told") == 2
    assert rows_of(root)["sound"]["status"] == "done"


def test_a_failed_script_stays_a_row_and_no_hit(scored: tuple[Path, list[str]]) -> None:
    root, words = scored
    (root / "fake.py").write_text("import sys; sys.exit('RuntimeError: no')")
    assert fresh.main(words) == 0
    row = rows_of(root)["planted"]
    assert (row["status"], row["reason"]) == ("failed", "the training ended with code 1: RuntimeError: no")


def test_a_script_that_was_scored_before_is_known(scored: tuple[Path, list[str]]) -> None:
    root, words = scored
    fresh.main(words)
    (path,) = (root / "tables").glob("*.jsonl")
    path.rename(root / "tables" / "earlier.jsonl")
    for row in (root / "scratch").glob("*/*.json"):
        row.unlink()
    (root / "set" / "b.py").write_text("'changed'")
    fresh.main(words)
    (again,) = (one for one in (root / "tables").glob("*.jsonl") if one.name != "earlier.jsonl")
    rows = {row["id"]: row["seen_count"] for row in fresh.read_table(again).rows}
    assert rows == {"planted": 1, "sound": 0}


def row(**changes: Any) -> dict[str, Any]:
    saving = {"low_ratio": 0.3, "mid_ratio": 0.35, "high_ratio": 0.45, "basis": "simulated"}
    found = {"rule": "gc-pause", "kind": "fault", "severity": "high", "saving": saving}
    sides = {side: [{"time_per_unit_ns": ns}] * 2 for side, ns in (("faulty", 100.0), ("twin", 60.0))}
    return {"id": "a", "rule": "gc-pause", "also": [], "status": "done", "findings": [found], **sides, **changes}


def test_a_fault_behind_another_or_without_a_name_is_no_hit() -> None:
    named = row()
    other = row(findings=[{**named["findings"][0], "rule": "input-bound"}, *named["findings"]])
    unnamed = row(findings=[])
    assert [fresh.judge_row(one).is_right for one in (named, other, unnamed)] == [True, False, False]
    assert [fresh.judge_row(one).is_near for one in (named, other, unnamed)] == [True, True, False]


def test_a_saving_is_near_within_a_tenth_and_inside_within_its_range() -> None:
    won = [row(twin=[{"time_per_unit_ns": ns}] * 2) for ns in (54.0, 56.0, 74.0)]
    judged = [fresh.judge_row(one) for one in won]
    assert [(one.is_near, one.is_inside) for one in judged] == [(False, False), (True, True), (True, False)]


def test_a_pair_that_does_not_repeat_is_told() -> None:
    restless = row(faulty=[{"time_per_unit_ns": ns} for ns in (100.0, 105.0, 120.0)])
    assert not fresh.judge_row(restless).is_settled
    assert fresh.judge_row(restless).realised_ratio == pytest.approx(0.40)
    assert fresh.judge_row(restless).median_realised_ratio == pytest.approx(1 - 60 / 105)


def test_a_planted_script_without_a_twin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    text = '[[scenario]]\nid = "a"\nscript = "a.py"\ncommand = ["a.py"]\nrule = "gc-pause"\n'
    (tmp_path / "scenarios.toml").write_text(text)
    with pytest.raises(ValueError, match="a planted fault has a rule and a twin_command"):
        fresh.load_set(tmp_path)


def test_a_table_without_its_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="states commit"):
        fresh.write_table(tmp_path / "a.jsonl", {"pass": "fresh", "machine": {}, "date": "2026-01-01"}, [])
    fresh.write_table(tmp_path / "a.jsonl", {"pass": "a", "commit": "c", "machine": {}, "date": "d"}, [{"x": 1}])
    first, second = (tmp_path / "a.jsonl").read_text().splitlines()
    assert (json.loads(first)["schema"], json.loads(second)) == ("hotloop.table/1", {"x": 1})
