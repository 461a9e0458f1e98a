"""A run that stands still is said and kept, and whoever asks in its folder gets an answer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.agent.replay.collector import TrainingProgress
from hotloop.core.decode import decode_contract
from hotloop.core.snapshot import ASKED, STALLS_FOLDER, AttachReport
from hotloop.pipeline import attach as attaching
from hotloop.pipeline.attach import merge_reports
from hotloop.pipeline.stalls import StallWatch, describe_stalls


def report(verdict: str, **more: object) -> AttachReport:
    content = {"pid": 1, "command": "train.py", "verdict": verdict, "reason": "rank 1 waits for a lock", **more}
    return decode_contract(AttachReport, {"tool": {"version": "0"}, **content})


Made = tuple[StallWatch, list[str], list[int]]
Make = Callable[..., Made]


@pytest.fixture
def make_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(verdict: str, limit_s: float = 0.2) -> Made:
        monkeypatch.setattr(attaching, "attach", lambda target, ask: [report(verdict, since_s=70.0)])
        said: list[str] = []
        events = [5]
        watch = StallWatch(
            tmp_path, lambda: TrainingProgress((os.getpid(),), events[0], 1_000_000), said.append, limit_s=limit_s
        )  # fmt: skip
        return watch, said, events

    return make


def tick_until(watch: StallWatch, is_done: Callable[[], bool], seconds: float = 5.0) -> None:
    until_s = time.monotonic() + seconds
    while not is_done() and time.monotonic() < until_s:
        watch.tick()
        time.sleep(0.02)


def test_a_stall_is_said_once_kept_and_over_when_events_come(make_watch: Make, tmp_path: Path) -> None:
    watch, said, events = make_watch("hung")
    tick_until(watch, lambda: bool(said))
    tick_until(watch, lambda: False, seconds=0.5)
    assert len(said) == 1
    assert "no progress for 70 s" in said[0]
    assert [health.level for health in describe_stalls(tmp_path)] == ["warning"]
    assert (tmp_path / STALLS_FOLDER / "stalled").exists()
    events[0] += 1
    watch.tick()
    assert len(said) == 2
    assert not (tmp_path / STALLS_FOLDER / "stalled").exists()


@pytest.mark.parametrize(("verdict", "limit_s"), [("saving", 0.2), ("compiling", 0.2), ("hung", 0.0)])
def test_what_is_no_hang_or_not_asked_for_is_not_said(
    make_watch: Make, tmp_path: Path, verdict: str, limit_s: float
) -> None:
    watch, said, _ = make_watch(verdict, limit_s)
    tick_until(watch, lambda: bool(said), seconds=1.0)
    assert said == []
    assert describe_stalls(tmp_path) == ()


def test_who_asks_in_the_run_folder_gets_an_answer(make_watch: Make, tmp_path: Path) -> None:
    watch, said, _ = make_watch("healthy", 100.0)
    folder = tmp_path / STALLS_FOLDER
    folder.mkdir()
    (folder / ASKED).touch()
    tick_until(watch, lambda: bool(list(folder.glob("answer-*.json"))))
    (answer,) = folder.glob("answer-*.json")
    assert json.loads(answer.read_text())["verdict"] == "healthy"
    assert not (folder / ASKED).exists()
    assert said == []


def test_ranks_that_differ_are_found_anew_over_all_hosts() -> None:
    def stand(rank: int, line: int) -> dict[str, object]:
        return {"rank": rank, "host": f"h{rank // 2}", "pid": rank, "file": "t.py", "line": line, "wait": "collective"}

    first = report("hung", ranks=[stand(0, 5), stand(1, 5)])
    second = report("hung", ranks=[stand(2, 5), stand(3, 9)], culprits=[stand(2, 5), stand(3, 9)])
    merged = merge_reports([first, second])
    assert [rank.rank for rank in merged.ranks] == [0, 1, 2, 3]
    assert [culprit.rank for culprit in merged.culprits] == [3]


def test_a_watch_that_fails_says_so_once_and_leaves_the_run_alone(tmp_path: Path) -> None:
    def fail() -> TrainingProgress:
        raise PermissionError("no such right")

    said: list[str] = []
    watch = StallWatch(tmp_path, fail, said.append)
    watch.tick()
    watch.tick()
    assert len(said) == 1
    assert "PermissionError: no such right" in said[0]
