"""hotloop bisect over real environments and revisions; a referee that reads what a side would train with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import main
from hotloop.core.bisection import BISECT_SCHEMA, Bisection
from hotloop.core.decode import encode_contract
from hotloop.core.proof import Proof, ProofSide
from hotloop.evidence.telemetry.environment import read_packages
from hotloop.pipeline.bisecting import Suspects, bisect, suspect_environment, suspect_revisions
from hotloop.pipeline.proving import ProofVariant

INSTALL = """import pathlib, sys
folder = next(pathlib.Path(sys.argv[1]).parent.parent.glob("lib/python3*/site-packages"))
for name, version in (word.split("==") for word in sys.argv[2:]):
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
"""
COMMAND = f"{sys.executable} install.py {{python}} {{requirements}}"


SIDE = ProofSide(id="", command=())


def weigh(variant: ProofVariant) -> float:
    """Time per step: beta 2, MALLOC_ARENA_MAX=1 and a revision that says so are slow."""
    beta = (read_packages(variant.command[0], timeout_s=300) or {}).get("beta")
    is_slow = "slow" in (variant.cwd / "train.py").read_text()
    return float(1.5 ** sum((beta == "2", variant.variables.get("MALLOC_ARENA_MAX") == "1", is_slow)))


def referee(a: ProofVariant, b: ProofVariant, folder: Path, **_: Any) -> Proof:
    if "broken" in (b.cwd / "train.py").read_text():
        return Proof(tool_version="", verdict="refused", reason="B failed", a=SIDE, b=SIDE)
    ratio = weigh(b) / weigh(a)
    bounds = {"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01}
    return Proof(tool_version="", verdict="slower" if ratio > 1 else "same", reason="", a=SIDE, b=SIDE, **bounds)


def search(suspects: Suspects, folder: Path) -> Bisection:
    return bisect(suspects, ("python",), folder, lambda text: None, budget_s=600.0, least_ratio=0.03, referee=referee)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProofVariant:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "install.py").write_text(INSTALL)
    (tmp_path / "train.py").write_text("")
    return ProofVariant(command=(sys.executable, "train.py"), cwd=tmp_path, variables={"MALLOC_ARENA_MAX": "3"})


def suspect(project: ProofVariant, fast: dict[str, Any], slow: dict[str, Any], install: str | None) -> Suspects:
    for name, groups in (("fast", fast), ("slow", slow)):
        (project.cwd / name / "processes").mkdir(parents=True)
        text = json.dumps({"machine": {}, "variables": {}, "packages": {}, **groups})
        (project.cwd / name / "environment.json").write_text(text)
    return suspect_environment("fast", "slow", project, project.cwd / "bisect", install)


def test_a_package_is_found_in_environments_of_its_own(project: ProofVariant) -> None:
    before, after = ({name: version for name in ("alpha", "beta")} for version in ("1", "2"))
    slow = {"packages": after | {"delta": "1 at 0123"}, "machine": {"kernel": "6.2"}}
    found = search(suspect(project, {"packages": before}, slow, COMMAND), project.cwd / "bisect")
    assert (found.verdict, [one.name for one in found.culprit]) == ("found", ["beta"])
    assert (found.ratio, found.whole_ratio, found.rest_ratio) == (1.5, 1.5, 1.0)
    assert [one.change.name for one in found.untried] == ["delta", "kernel"]


def test_a_variable_is_set_and_packages_need_an_installer(project: ProofVariant) -> None:
    slow = {"variables": {"MALLOC_ARENA_MAX": "1", "TORCH_A": "***"}, "packages": {"beta": "2"}}
    found = search(suspect(project, {}, slow, None), project.cwd / "bisect")
    assert (found.verdict, found.ratio, found.rest_ratio) == ("found", 1.5, None)
    assert [one.change.name for one in found.untried] == ["beta", "TORCH_A"]


@pytest.mark.parametrize(("broken", "count"), [((), 1), ((5,), 1), ((6,), 2), ((6, 7), 3)])
def test_the_first_slow_of_twelve_commits(project: ProofVariant, broken: tuple[int, ...], count: int) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], check=True, capture_output=True, cwd=project.cwd)

    git("init", "-q")
    for number in range(13):
        text = f"{number} {'slow' if number >= 7 else ''} {'broken' if number in broken else ''}"
        (project.cwd / "train.py").write_text(text)
        git("add", "train.py")
        git("commit", "-qm", f"commit {number}")
    found = search(suspect_revisions("HEAD~12", "HEAD", project), project.cwd / "bisect")
    suspects = [one.name.partition(" ")[2] for one in found.culprit or found.suspects]
    assert suspects == [f"commit {number}" for number in range(8 - count, 8)] or count == 3
    assert (found.verdict, len(suspects)) == ("found" if count == 1 else "cannot tell", count)
    assert len(found.steps) <= 7 + len(broken)
    assert len(list((project.cwd / ".git" / "worktrees").glob("*"))) == 0


def test_a_bisection_is_drawn_from_its_json(project: ProofVariant, capsys: pytest.CaptureFixture[str]) -> None:
    fast, slow = ({"variables": {"MALLOC_ARENA_MAX": value}} for value in ("2", "1"))
    found = search(suspect(project, fast, slow, None), project.cwd)
    Path("bisect.json").write_text(json.dumps(encode_contract(BISECT_SCHEMA, found)))
    assert main(["report", "bisect.json"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("found: variable MALLOC_ARENA_MAX 2 -> 1: ")
    assert "1.500 (1.490 to 1.510)" in text
