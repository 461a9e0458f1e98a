"""Processes that hand their memory over are recorded, whatever else knocks, and however they end."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.agent.observe.ring import Ring
from hotloop.agent.replay.collector import Collector, read_name, start_program
from hotloop.core import events as ev
from hotloop.core.recording import FIELD
from hotloop.evidence.trace.recording import ProcessRecording, read_process

TRAINING = """
import os, signal, sys, time
from hotloop.core.events import *
from hotloop.agent.observe.ring import Ring

def train(steps, rank):
    for step in range(steps):
        for code in (BACKWARD_IN, BACKWARD_OUT, STEP_IN, STEP_OUT):
            ring.emit(code)
        if not step:
            ring.tell({"kind": "process", "host": "h", "rank": rank, "restart": 0})

ring = Ring(sys.argv[1], sys.argv[2], time.perf_counter_ns())
assert ring.hand_over()
"""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    (tmp_path / "processes").mkdir()
    made = Collector(tmp_path / "processes")
    made.start()
    yield made
    made.stop()


def run(collector: Collector, script: str) -> int:
    words = [sys.executable, "-c", TRAINING + script, collector.address, collector.token]
    return subprocess.run(words, check=False, timeout=60).returncode


def recordings(collector: Collector, folder: Path) -> dict[int, ProcessRecording]:
    """By rank, once everything is taken in."""
    collector.stop()
    found = [read_process(path) for path in (folder / "processes").iterdir()]
    return {read.process["rank"]: read for read in found}


def test_a_process_is_recorded_to_its_end(collector: Collector, tmp_path: Path) -> None:
    assert run(collector, "train(5, 0); ring.emit(END, HOW_COMPLETED)") == 0
    (read,) = recordings(collector, tmp_path).values()
    assert read.closed
    assert len(read.rows) == 1 + 5 + 1


def test_what_was_noted_outlives_a_kill(collector: Collector, tmp_path: Path) -> None:
    assert run(collector, "train(5, 0); os.kill(os.getpid(), signal.SIGKILL)") == -signal.SIGKILL
    (read,) = recordings(collector, tmp_path).values()
    assert not read.closed
    assert len(read.rows) >= 1 + 5


def test_a_forked_child_is_recorded_by_itself(collector: Collector, tmp_path: Path) -> None:
    script = """
train(5, 0)
if os.fork() == 0:
    ring.begin_in_child()
    train(3, 1)
    os._exit(0)
os.wait()
train(2, 0)
"""
    assert run(collector, script) == 0
    read = recordings(collector, tmp_path)
    assert {rank: int(one.rows[:, FIELD["backwards"]].sum()) for rank, one in read.items()} == {0: 7, 1: 3}
    assert read[0].process["pid"] != read[1].process["pid"]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def knock(collector: Collector, text: bytes, *passed: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect("\0" + collector.address)
        held = struct.pack(f"={len(passed)}i", *passed)
        link.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held)] if passed else [])


def test_whoever_else_knocks_gets_nothing_and_leaves_nothing(collector: Collector, tmp_path: Path) -> None:
    other = Ring(collector.address, "another token", 0)
    other_memory = os.memfd_create("other")
    before = descriptors()
    knock(collector, b"\xff\n\n\n")
    knock(collector, collector.token.encode())
    knock(collector, collector.token.encode(), other_memory)  # of another size, and not sealed
    knock(collector, collector.token.encode(), *[other_memory] * 4)
    knock(collector, b"wrong", other_memory, other_memory)
    assert other.hand_over()
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    silent.connect("\0" + collector.address)
    assert run(collector, "train(5, 0)") == 0
    silent.close()
    time.sleep(0.3)
    assert descriptors() <= before
    assert list(recordings(collector, tmp_path)) == [0]
    os.close(other_memory)


def test_a_failure_in_one_process_leaves_the_others(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotloop.agent.replay.process import RunProcess

    tick = RunProcess.tick

    def fail(process: RunProcess, now_ns: int) -> None:
        if (process.engine.process or {}).get("rank") == 0:
            raise ValueError("planted")
        tick(process, now_ns)

    monkeypatch.setattr(RunProcess, "tick", fail)
    for rank in (0, 1):
        assert run(collector, f"train(5, {rank}); time.sleep(0.4)") == 0
    read = recordings(collector, tmp_path)
    told = {
        rank: [f for f in one.facts if f["kind"] == "health" and "planted" in f["message"]]
        for rank, one in read.items()
    }
    assert {rank: len(facts) for rank, facts in told.items()} == {0: 1, 1: 0}
    assert all(len(one.rows) >= 6 for one in read.values())


def test_a_process_that_still_runs_is_taken_in_at_the_end(collector: Collector, tmp_path: Path) -> None:
    ring = Ring(collector.address, collector.token, time.perf_counter_ns())
    assert ring.hand_over()
    for code in (ev.BACKWARD_IN, ev.BACKWARD_OUT, ev.STEP_IN, ev.STEP_OUT):
        ring.emit(code)
    ring.tell({"kind": "process", "host": "h", "rank": 0, "restart": 0})
    (read,) = recordings(collector, tmp_path).values()
    assert read.process["pid"] == os.getpid()
    assert not read.closed


def test_without_hotloop_run_a_program_collects_and_goes(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    address, token = start_program(tmp_path)
    assert (address, token) == read_name(tmp_path)
    assert start_program(tmp_path) == (address, token)  # a second one steps back
    words = [sys.executable, "-c", TRAINING + "train(5, 0); ring.emit(END, HOW_COMPLETED)", address, token]
    assert subprocess.run(words, check=False, timeout=60).returncode == 0
    deadline_s = time.monotonic() + 20.0
    while time.monotonic() < deadline_s:
        (path, *_) = (*(tmp_path / "processes").iterdir(), None)
        if path is not None and read_process(path).closed:
            break
        time.sleep(0.05)
    assert path is not None
    assert len(read_process(path).rows) == 7
    late = Ring(address, token, 0)
    while late.hand_over() and time.monotonic() < deadline_s:  # until nobody listens any more
        late = Ring(address, token, 0)
        time.sleep(0.1)
    assert time.monotonic() < deadline_s
    late.drop()
