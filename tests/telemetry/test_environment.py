"""The environment of a run: packages of a Python, variables and the machine; and what differs between two."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import main
from hotloop.evidence.telemetry.environment import describe_environment, read_packages
from tests.recordings import record


def test_packages_of_another_python_with_those_of_its_search_path_first(tmp_path: Path) -> None:
    for folder, name, version in (("a", "Some_Thing", "2.0"), ("b", "some-thing", "1.0"), ("b", "pytest", "0.1")):
        place = tmp_path / folder / f"{name}-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (tmp_path / "a" / "Some_Thing-2.0.dist-info" / "direct_url.json").write_text('{"vcs_info": {"commit_id": "01ab"}}')
    (tmp_path / "b" / "json.py").write_text("raise SystemExit('the user's own code was run')\n")
    packages = read_packages(sys.executable, f"{tmp_path / 'a'}:{tmp_path / 'b'}", timeout_s=300)
    assert packages is not None
    assert (packages["some-thing"], packages["pytest"]) == ("2.0 at 01ab", "0.1")
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
    assert found["machine"]["python"] == "3"
    unseen = describe_environment([], {})
    assert (unseen["packages"], unseen["variables"], unseen["machine"]["python"]) == (None, None, None)


def test_diff_names_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [record(tmp_path / name, [4.0, 4.1] * 40) for name in ("a", "b")]
    for side, version in zip(sides, ("1", "2"), strict=True):
        (side / "environment.json").write_text(
            json.dumps({"packages": {"numpy": version}, "machine": {"driver": None}})
        )
    target = tmp_path / "diff.json"
    assert main(["diff", *map(str, sides), "--json", str(target)]) == 0
    changes = json.loads(target.read_text())["environment"]
    assert changes == [{"kind": "package", "name": "numpy", "before": "1", "after": "2"}]
    text = " ".join(capsys.readouterr().out.split())
    assert "package numpy 1 2" in text
    assert "did not record them: variables" in text
