"""The list of runs, whatever is in the folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from build_runs import STEP_NS, build_run

from hotloop.core.errors import UsageError
from hotloop.pipeline.live import LiveReader
from hotloop.show.serve.listing import Listing, RunEntry, State, find_runs_folder


def read(runs: Path) -> dict[str, RunEntry]:
    return {entry.name: entry for entry in Listing(runs, LiveReader).read()[0]}


def test_a_running_training_has_its_steps_and_their_time(tmp_path: Path) -> None:
    build_run(tmp_path, "one", steps=20, ago_s=2)
    entry = read(tmp_path)["one"]
    assert (entry.state, entry.steps_count, entry.step_ns) == (State.RUNNING, 20, STEP_NS)


@pytest.mark.parametrize(
    ("outcome", "state", "detail"),
    [
        ({"exit_code": 0, "signal": None}, State.COMPLETED, ""),
        ({"exit_code": 3, "signal": None}, State.FAILED, "exit code 3"),
        ({"exit_code": None, "signal": 9}, State.KILLED, "SIGKILL"),
        ({"exit_code": None, "signal": 9, "oom_kills": 1}, State.KILLED, "SIGKILL (out of memory)"),
        ({"exit_code": None, "signal": 999}, State.KILLED, "signal 999"),
        ({"exit_code": None, "signal": None}, State.ENDED, "outcome.json does not say how"),
    ],
)
def test_the_outcome_says_how_a_run_ended(
    tmp_path: Path, outcome: dict[str, object], state: State, detail: str
) -> None:
    build_run(tmp_path, "one", outcome=outcome)
    entry = read(tmp_path)["one"]
    assert (entry.state, entry.detail) == (state, detail)


def test_a_run_without_new_steps_is_stale_and_says_for_how_long(tmp_path: Path) -> None:
    build_run(tmp_path, "one", ago_s=90)
    entry = read(tmp_path)["one"]
    assert entry.state is State.STALE
    assert entry.detail == "no new step for 90 s"


def test_the_report_that_followed_has_the_last_word(tmp_path: Path) -> None:
    folder = build_run(tmp_path, "one", outcome={"exit_code": 0, "signal": None})
    judged = {"verdict": "input-bound", "steps_count": 18, "step_mean_ns": 5}
    (folder / "verdict.json").write_text(json.dumps(judged))
    entry = read(tmp_path)["one"]
    assert (entry.verdict, entry.steps_count, entry.step_ns) == ("input-bound", 18, 5)


def test_what_is_no_recording_costs_its_own_line(tmp_path: Path) -> None:
    build_run(tmp_path, "good")
    for name in ("noise", "pipe", "link", "future"):
        (tmp_path / name / "processes").mkdir(parents=True)
    (tmp_path / "noise" / "processes" / "h-1-0-0.hlr").write_bytes(os.urandom(1 << 17))
    (tmp_path / "noise" / "run.json").write_text('{"started_wall_s": 1e400, "command": [1, null]}')
    os.mkfifo(tmp_path / "pipe" / "processes" / "h-1-0-0.hlr")
    (tmp_path / "link" / "processes" / "h-1-0-0.hlr").symlink_to("/etc/passwd")
    good = next((tmp_path / "good" / "processes").iterdir()).read_bytes()
    newer = good[:8] + (99).to_bytes(4, "little") + good[12:]
    (tmp_path / "future" / "processes" / "h-1-0-0.hlr").write_bytes(newer)
    found = read(tmp_path)
    assert found["good"].state is State.RUNNING
    assert {found[name].state for name in ("noise", "pipe", "link", "future")} == {State.BROKEN}


def test_a_link_to_a_folder_is_no_run(tmp_path: Path) -> None:
    build_run(tmp_path / "elsewhere", "secret")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere" / "secret")
    assert read(tmp_path / "runs") == {}


def test_where_the_runs_of_a_folder_lie(tmp_path: Path) -> None:
    assert find_runs_folder(tmp_path) == tmp_path / ".hotloop"
    build_run(tmp_path / "shared", "one")
    assert find_runs_folder(tmp_path / "shared") == tmp_path / "shared"
    with pytest.raises(UsageError, match="there is no folder"):
        find_runs_folder(tmp_path / "gone")


def test_secrets_in_a_command_are_hidden(tmp_path: Path) -> None:
    build_run(tmp_path, "one", command=("python", "train.py", "--api-key", "abc"))
    assert read(tmp_path)["one"].command == ("python", "train.py", "--api-key", "***")
