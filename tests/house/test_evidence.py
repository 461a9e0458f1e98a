"""A page that differs from its table fails `make check`, and so does a table that does not say where it is from."""

import json
import shutil
from pathlib import Path

import pytest

from .load_script import ROOT, load_script

evidence = load_script("evidence")
TABLE = "benchmarks/results/zoo/55f64a285295.jsonl"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The pages and raw data, to be falsified."""
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        ("docs/accuracy.md", "| 20 | 25 | 80.0% |", "| 21 | 25 | 84.0% |", "docs/accuracy.md differs"),
        (TABLE, '"blocking-checkpoint","kind":"fault"', '"gc-pause","kind":"fault"', "docs/accuracy.md differs"),
        (TABLE, '"row_count":49', '"row_count":50', "counts 50 rows and holds 49"),
        ("docs/plan.md", "121 of 121 were", "131 of 131 were", "docs/plan.md differs"),
        ("docs/plan.md", evidence.END, "", "docs/plan.md needs the lines"),
        ("docs/plan.md", "## How far it can be trusted", "## How far", None),
    ],
)
def test_what_differs_from_its_table_is_a_fault(copy: Path, file: str, old: str, new: str, fault: str | None) -> None:
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new, 1))
    found = list(evidence.find_faults(copy))
    assert bool(found) == (fault is not None)
    assert all(str(fault) in one for one in found)


def test_a_table_without_machine_commit_or_date_is_a_fault(copy: Path) -> None:
    path = copy / "benchmarks" / "results" / "techniques.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "date": "", "commit": None, "commit_unknown": ""}))
    assert "benchmarks/results/techniques.json does not state date, commit" in list(evidence.find_faults(copy))
