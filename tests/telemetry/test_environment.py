"""The environment of a run: packages of a Python, variables and the machine; and what differs between two."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import main
from hotloop.core.environment import EnvironmentChange, compare_environments, list_unknown
from hotloop.evidence.telemetry.environment import describe_environment, read_packages
from tests.recordings import record


def install(folder: Path, name: str, version: str, commit: str = "") -> None:
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if commit:
        (place / "direct_url.json").write_text(json.dumps({"vcs_info": {"commit_id": commit}}))


def test_packages_of_another_python_with_those_of_its_search_path_first(tmp_path: Path) -> None:
    install(tmp_path / "a", "Some_Thing", "2.0", commit="0123456789abcdef")
    install(tmp_path / "b", "some-thing", "1.0")
    install(tmp_path / "b", "pytest", "0.1")
    (tmp_path / "b" / "json.py").write_text("raise SystemExit('the user's own code was run')\n")
    packages = read_packages(sys.executable, f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    assert packages is not None
    assert (packages["some-thing"], packages["pytest"]) == ("2.0 at 0123456789ab", "0.1")
    assert read_packages(sys.executable, "") is not None
    assert read_packages(str(tmp_path / "no-python")) is None


def test_the_lowest_rank_of_this_host_counts_and_a_launch_is_no_difference() -> None:
    def fact(**more: Any) -> dict[str, Any]:
        return {"host": socket.gethostname(), "executable": sys.executable, "python": "3", **more}

    variables = {"OMP_NUM_THREADS": "1", "RANK": "0", "LOCAL_WORLD_SIZE": "2", "SLURM_JOB_ID": "7"}
    facts = [
        fact(rank=1, environment={}),
        fact(rank=0, environment=variables),
        fact(rank=-1, host="elsewhere", environment={}),
    ]
    found = describe_environment(facts, {})
    assert found["variables"] == {"OMP_NUM_THREADS": "1"}
    assert found["packages"]["torch"]
    assert found["machine"]["python"] == "3"
    unseen = describe_environment([], {})
    assert (unseen["packages"], unseen["variables"], unseen["machine"]["python"]) == (None, None, None)


def test_differences_are_named_and_what_is_unknown_is_none() -> None:
    before = {"packages": {"a": "1", "b": "1"}, "variables": None, "machine": {"driver": None, "cpu": "x"}}
    after = {"packages": {"b": "2", "c": "1"}, "variables": {"A": "1"}, "machine": {"driver": None, "cpu": "y"}}
    found = [(one.kind, one.name, one.before, one.after) for one in compare_environments(before, after)]
    assert found == [
        ("package", "a", "1", None),
        ("package", "b", "1", "2"),
        ("package", "c", None, "1"),
        ("machine", "cpu", "x", "y"),
    ]
    assert list_unknown(before, after) == ["variables"]


def test_diff_names_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [record(tmp_path / name, [4.0, 4.1] * 40) for name in ("a", "b")]
    for side, version in zip(sides, ("1", "2"), strict=True):
        (side / "environment.json").write_text(json.dumps({"packages": {"numpy": version}, "machine": {}}))
    target = tmp_path / "diff.json"
    assert main(["diff", *map(str, sides), "--json", str(target)]) == 0
    change = EnvironmentChange(kind="package", name="numpy", before="1", after="2")
    assert json.loads(target.read_text())["environment"] == [
        {name: getattr(change, name) for name in ("kind", "name", "before", "after")}
    ]
    text = " ".join(capsys.readouterr().out.split())
    assert "package numpy 1 2" in text
    assert "did not record them: variables" in text
