"""Every figure of every page follows from its raw table; and the check can fail."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLE = "benchmarks/results/zoo/55f64a285295.jsonl"


@pytest.fixture(scope="module")
def evidence() -> Iterator[Any]:
    """scripts/evidence.py, which is a program beside the programs that it checks."""
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "scripts" / "evidence.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["evidence"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The pages and raw data, to be falsified."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def faults(evidence: Any, root: Path, *names: str) -> list[str]:
    return list(evidence.find_faults(root, {name: evidence.DRAWN[name] for name in names}))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_every_page_says_what_its_tables_say(evidence: Any) -> None:
    assert list(evidence.find_faults(ROOT, evidence.DRAWN)) == []


def test_a_figure_that_differs_on_a_drawn_page_fails(evidence: Any, copy: Path) -> None:
    replace(copy / "docs" / "accuracy.md", "| 20 | 25 | 80.0% |", "| 21 | 25 | 84.0% |")
    found = faults(evidence, copy, "docs/accuracy.md")
    assert any(one.startswith("docs/accuracy.md differs from what its tables give") for one in found)


def test_a_figure_that_differs_on_a_hand_written_page_fails(evidence: Any, copy: Path) -> None:
    replace(copy / "docs" / "proof" / "run.md", "**20 of 25** by the fastest", "**21 of 25** by the fastest")
    assert any("docs/proof/run.md does not say '**20 of 25** by the" in one for one in faults(evidence, copy))


def test_raw_data_that_differs_fails(evidence: Any, copy: Path) -> None:
    replace(copy / TABLE, '"rule":"blocking-checkpoint","kind":"fault"', '"rule":"gc-pause","kind":"fault"')
    found = faults(evidence, copy, "docs/accuracy.md")
    assert any(one.startswith("docs/accuracy.md differs") for one in found)
    assert any("docs/proof/run.md does not say '**31 of 32**" in one for one in found)


def test_a_missing_row_fails_in_the_table_and_on_the_page(evidence: Any, copy: Path) -> None:
    page = copy / "docs" / "accuracy.md"
    lines = page.read_text().splitlines(keepends=True)
    page.write_text("".join(line for line in lines if not line.startswith("| tuned input-transform | 1, 2, 3")))
    assert any(one.startswith("docs/accuracy.md differs") for one in faults(evidence, copy, "docs/accuracy.md"))
    table = copy / TABLE
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    assert any("counts 49 rows and holds 48" in one for one in faults(evidence, copy))


def test_a_page_that_mixes_commits_without_naming_them_fails(evidence: Any, copy: Path) -> None:
    assert not any("mixes commits" in one for one in faults(evidence, copy, "docs/tuned.md"))
    page = copy / "docs" / "tuned.md"
    page.write_text(page.read_text().replace("58ee297f356e", "16d69a92a382"))
    assert "docs/tuned.md mixes commits without saying so: 58ee297f356e" in faults(evidence, copy, "docs/tuned.md")


def test_a_measured_figure_without_raw_data_or_label_fails(evidence: Any, copy: Path) -> None:
    page = copy / "docs" / "doctor.md"
    bare = "It was measured to take 120 ms in 9 of 10 runs."
    label = "A single observation, 2026-11-22, n = 10; no raw data was kept."
    page.write_text(f"{page.read_text()}\n## Speed\n\n{bare}\n")
    assert any(one.startswith("docs/doctor.md:") and "without a raw table" in one for one in faults(evidence, copy))
    page.write_text(page.read_text().replace(bare, f"{bare} {label}"))
    assert not any(one.startswith("docs/doctor.md:") for one in faults(evidence, copy))


def test_a_label_covers_its_section_and_no_other(evidence: Any) -> None:
    label = "Single observations of 2026-11-22; no raw data was kept."
    page = f"# Title\n\n## One\n\n{label}\n\nin one\n\n### Deeper\n\nin it too\n\n## Two\n\nin two\n"
    covered = {text: is_labelled for _, text, is_labelled in evidence.read_paragraphs(page)}
    assert [covered[text] for text in ("in one", "in it too", "in two")] == [True, True, False]


def test_a_label_covers_the_sections_in_the_folder_of_its_page(evidence: Any, copy: Path) -> None:
    folder = copy / "docs" / "proof" / "extra"
    folder.mkdir()
    (folder / "one.md").write_text("# One\n\nIt was measured to take 120 ms.\n")
    assert any(one.startswith("docs/proof/extra/one.md:3:") for one in faults(evidence, copy))
    label = "Single observations of 2026-11-22; no raw data was kept."
    (copy / "docs" / "proof" / "extra.md").write_text(f"# Extra\n\n{label}\n")
    assert not any(one.startswith("docs/proof/extra/") for one in faults(evidence, copy))


def test_raw_data_without_commit_machine_or_date_fails(evidence: Any, copy: Path) -> None:
    path = copy / "benchmarks" / "results" / "preemption.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: content[key] for key in content if key not in ("date", "commit_unknown")}))
    (found,) = (one for one in faults(evidence, copy) if "preemption.json" in one)
    assert found.endswith("does not state date, commit (or commit_unknown, with the reason)")
