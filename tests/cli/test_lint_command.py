"""hotloop lint: exit codes, formats, --fix and --diff."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotloop.cli import main

FAULTY = """import torch
from torch import nn, optim
model = nn.Linear(2, 2)
optimizer = optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    total += loss
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(FAULTY)
    return path


def test_serious_findings_are_named_first_and_exit_with_1(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "train.py"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("2 serious findings in 1 file")
    assert "read: 1 training script\n" in out
    assert "high optimizer steps with the sum of the gradients of all steps so far" in " ".join(out.split())
    assert "train.py:8" in out
    assert "[kept-graph]" in out
    assert out.rstrip().endswith("next: hotloop lint --diff train.py")
    assert main(["lint", "train.py", "--exit-zero", "-q"]) == 0
    assert capsys.readouterr().out == ""


def test_diff_prints_and_fix_writes(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "train.py", "--diff"]) == 1
    assert script.read_text() == FAULTY
    out = capsys.readouterr().out
    assert "+    optimizer.zero_grad()" in out
    assert "+    total += loss.detach()" in out
    assert main(["lint", "train.py", "--fix"]) == 0
    assert "2 fixed" in capsys.readouterr().out
    assert script.read_text() == FAULTY.replace("step()\n", "step()\n    optimizer.zero_grad()\n").replace(
        "+= loss", "+= loss.detach()"
    )
    assert main(["lint", "train.py", "--fix"]) == 0


def test_sarif_has_rules_places_and_fixes(script: Path) -> None:
    assert main(["lint", "train.py", "-q", "--sarif", "out.sarif"]) == 1
    (run,) = json.loads(Path("out.sarif").read_text())["runs"]
    assert [one["id"] for one in run["tool"]["driver"]["rules"]] == ["kept-graph", "missing-zero-grad"]
    first = run["results"][0]
    assert (first["ruleId"], first["ruleIndex"], first["level"]) == ("missing-zero-grad", 1, "error")
    place = first["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("train.py", 8)
    (replacement,) = first["fixes"][0]["artifactChanges"][0]["replacements"]
    assert replacement["deletedRegion"] == {"startLine": 9, "startColumn": 1, "endLine": 9, "endColumn": 1}
    assert replacement["insertedContent"]["text"] == "    optimizer.zero_grad()\n"
