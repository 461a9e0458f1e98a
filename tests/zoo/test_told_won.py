"""The benchmark of forecasts by mechanism: its set, and a page on which no row is missing."""

from __future__ import annotations

import collections
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def told_won(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import told_won as program

    return program


def test_each_mechanism_has_two_scripts_that_can_be_mended(told_won: Any) -> None:
    scenarios = told_won.fresh.load_set(told_won.SET)
    assert set(collections.Counter(one.told["style"] for one in scenarios).values()) == {2}
    assert {one.rule for one in scenarios} == {
        "blocking-checkpoint",
        "oversubscription",
        "worker-restart",
        "straggler",
        "python-gradient-loop",
        "small-batch",
    }
    for one in scenarios:
        assert one.twin_command == (*one.command, "--mended")
        assert '"--mended"' in (told_won.SET / one.script).read_text()


def test_the_page_has_every_row_and_counts_those_told_too_low(told_won: Any) -> None:
    def runs(*times: float) -> list[dict[str, float]]:
        return [{"time_per_unit_ns": one} for one in times]

    saving = {"low_ratio": 0.08, "mid_ratio": 0.13, "high_ratio": 0.20, "basis": "rule-of-thumb"}
    found = {"rule": "python-gradient-loop", "kind": "fault", "severity": "medium", "saving": saving}
    row = {"id": "clip-deep", "rule": "python-gradient-loop", "also": [], "style": "clipping by hand", "seen_count": 0}
    rows = (
        row | {"status": "done", "findings": [found], "faulty": runs(100.0, 101.0), "twin": runs(65.0, 65.5)},
        row | {"id": "clip-encoder", "status": "not run"},
    )
    head = {"set": "told_won", "date": "2026-01-02", "commit": "c", "machine": {"cpu": "x", "cores": 2}}
    page = told_won.draw_page([told_won.Table(head, rows)])
    assert (
        "Of 2 scripts, 0 are told within 0.10 of what was won, 0 won a saving inside the range told, 1 won more" in page
    )
    assert (
        "| clipping by hand | clip-deep | 0.13 | 0.08 to 0.20 | rule-of-thumb | 0.35 | 0.35 | 2 | -0.22 | no | - |"
        in page
    )
    assert "| clipping by hand | clip-encoder | - | - | - | - | - | - | - | - | not run |" in page


def test_it_is_started_by_its_path(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    words = ["--summarize", "--tables", str(tmp_path), "--doc", str(page)]
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / "told_won.py"), *words], check=True, capture_output=True)
    assert "No pass has been made." in page.read_text()
