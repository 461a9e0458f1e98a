"""The sets of the benchmarks that score like fresh.py: planted scripts that can be mended, in one order."""

from __future__ import annotations

import collections
import subprocess
import sys
from pathlib import Path

import pytest
import told_won
import under_load

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_each_mechanism_has_two_scripts_that_can_be_mended() -> None:
    scenarios = told_won.fresh.load_set(told_won.SET)
    assert set(collections.Counter(one.told["style"] for one in scenarios).values()) == {2}
    for one in scenarios:
        assert one.twin_command == (*one.command, "--mended")
        assert '"--mended"' in (told_won.SET / one.script).read_text()


def test_the_scripts_under_load_are_all_planted_and_in_one_drawn_order() -> None:
    first, again = under_load.load_scripts(), under_load.load_scripts()
    assert [one.id for _, one in first] == [one.id for _, one in again]
    assert all(one.rule and one.twin_command for _, one in first)
    assert {folder for folder, _ in first} == set(under_load.SETS)


@pytest.mark.parametrize("name", ["under_load.py", "told_won.py"])
def test_it_is_started_by_its_path(name: str, tmp_path: Path) -> None:
    words = ["--summarize", "--tables", str(tmp_path), "--doc", str(tmp_path / "page.md")]
    subprocess.run([sys.executable, str(BENCHMARKS / name), *words], check=True, capture_output=True)
    assert "No pass has been made." in (tmp_path / "page.md").read_text()
