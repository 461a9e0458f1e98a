"""The benchmark of forecasts under load: a page on which no row is missing, and medians that can say "cannot tell"."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def under_load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import under_load as program

    return program


def side(told: float, twin_ns: float) -> dict[str, Any]:
    saving = {"low_ratio": 0.0, "mid_ratio": told, "high_ratio": 1.0, "basis": "simulated"}
    found = {"rule": "gc-pause", "kind": "fault", "severity": "high", "saving": saving}
    runs = {"faulty": [{"time_per_unit_ns": 100.0}], "twin": [{"time_per_unit_ns": twin_ns}]}
    return {"findings": [found], **runs, "others_ratio": 0.25}


def page_of(under_load: Any, rows: tuple[dict[str, Any], ...]) -> str:
    head = {"set": "s", "date": "2026-01-02", "commit": "c", "machine": {"cpu": "x", "cores": 2}}
    return str(under_load.draw_page([under_load.Table(head, rows)]))


def test_the_page_has_every_row_and_the_medians_of_what_is_known(under_load: Any) -> None:
    row = {"rule": "gc-pause", "also": [], "status": "done"}
    done = tuple(row | {"id": f"s{i}", "quiet": side(0.4, 60.0), "loaded": side(0.2, 61.0 - i)} for i in range(8))
    page = page_of(under_load, (*done, row | {"id": "late", "status": "not run"}))
    assert "| forecast | 8 | 0.50 | 0.50 to 0.50 | halved |" in page
    assert "| saving won | 8 | 1.06 | 0.97 to 1.15 | cannot tell |" in page
    assert "| s0 | gc-pause | 0.40 | 0.20 | 0.40 | 0.39 | 0.25 / 0.25 | - |" in page
    assert "| late | gc-pause | - | - | - | - | - / - | not run |" in page


def test_few_rows_give_no_median(under_load: Any) -> None:
    row = {"rule": "gc-pause", "also": [], "status": "done", "quiet": side(0.4, 60.0), "loaded": side(0.2, 60.0)}
    assert "| forecast | 5 | - | - | too few rows |" in page_of(under_load, (row | {"id": "a"},) * 5)


def test_its_scripts_are_all_planted_and_in_one_drawn_order(under_load: Any) -> None:
    first, again = under_load.load_scripts(), under_load.load_scripts()
    assert [one.id for _, one in first] == [one.id for _, one in again]
    assert all(one.rule and one.twin_command for _, one in first)
    assert {folder for folder, _ in first} == set(under_load.SETS)


def test_it_is_started_by_its_path(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    words = ["--summarize", "--tables", str(tmp_path), "--doc", str(page)]
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "under_load.py"), *words], check=True, capture_output=True
    )
    assert "No pass has been made." in page.read_text()
