"""Candidates that misbehave in real processes: the others finish, nothing is left running, the store stays whole."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

TUNING = Path(__file__).with_name("injected_tuning.py")
BAD = ("memory", "hang", "fault", "diverge", "orphans")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    text = re.search(r'TRAINER = """\n(.*?)"""', TUNING.read_text(), flags=re.S)
    assert text is not None
    (folder / "train.py").write_text(text.group(1).replace("\\\\n", "\\n"))
    return folder


def start(project: Path, *names: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(TUNING), str(project), *names], stdout=subprocess.PIPE, text=True)


def finish(tuning: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = tuning.communicate(timeout=60)
    assert tuning.returncode == 0
    return {one["id"]: one for one in json.loads(out)}


def starts(project: Path) -> list[list[str]]:
    path = project.parent / "starts"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def alive(project: Path) -> list[int]:
    """Processes that wrote their number and still run."""
    found = []
    for _, pid in starts(project):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        found += [int(pid)] if state not in "ZX" else []
    return found


def stored(project: Path) -> int:
    database = sqlite3.connect(project.parent / "tune.sqlite")
    try:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        (count,) = database.execute("select count(*) from process").fetchone()
        return int(count)
    finally:
        database.close()


def test_bad_candidates_end_alone_and_a_second_tuning_runs_nothing(project: Path) -> None:
    found = finish(start(project, *BAD, "good"))
    told = {name: (trial["verdict"], trial["reason"]) for name, trial in found.items()}
    assert told["memory"] == ("failed", "oom: out of memory: MemoryError: cannot allocate 9 GiB")
    assert told["hang"] == ("failed", "hang: no step was completed for 0 s")
    assert told["fault"] == ("failed", "crash: ended by signal 11")
    assert told["diverge"] == ("rejected", "diverged: the loss of step 21 is nan")
    assert found["diverge"]["quality"]["left_at_step"] == 21
    assert (told["good"][0], told["orphans"][0]) == ("faster", "faster")
    assert [one for one in starts(project) if one[0] == "orphan"], "no orphan was made"
    assert alive(project) == []
    ran = starts(project)
    assert stored(project) == len([one for one in ran if one[0] != "orphan"])
    again = finish(start(project, *BAD, "good"))
    assert starts(project) == ran
    assert again == found


def test_a_killed_tuning_leaves_nothing_running_and_goes_on_where_it_was(project: Path) -> None:
    tuning = start(project, "fault", "wait")
    deadline_s = time.monotonic() + 40
    while not any(act == "wait" for act, _ in starts(project)):
        assert time.monotonic() < deadline_s, starts(project)
        time.sleep(0.02)
    os.kill(tuning.pid, signal.SIGKILL)
    tuning.communicate()
    while alive(project):
        assert time.monotonic() < deadline_s, alive(project)
        time.sleep(0.02)
    before = starts(project)
    kept = stored(project)
    assert kept == len(before) - 1, "all but the one that was killed are in the store"
    text = (project / "train.py").read_text()
    (project / "train.py").write_text(text.replace("time.sleep(60)", "pass"))
    found = finish(start(project, "fault", "wait"))
    after = starts(project)[len(before) :]
    assert "fault" not in [act for act, _ in after]
    assert stored(project) == kept + len(after)
    assert found["fault"]["verdict"] == "failed"
    assert found["wait"]["n"] >= 4
