"""One process's memory -> its recording: named, complete, and honest about how it ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotloop.agent.observe.ring import Ring
from hotloop.agent.observe.stack_access import current_thread_state, describe_access
from hotloop.agent.replay.loaders import FetchTotals
from hotloop.agent.replay.memory import EventMemory
from hotloop.agent.replay.process import RunProcess
from hotloop.core import events as ev
from hotloop.core.recording import CLOSED_BY_END, FIELD, TIME_FIELDS
from hotloop.evidence.trace.recording import ProcessRecording, read_process


class Written:
    """A process of this test's that writes, and its reader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetches: dict[int, FetchTotals] = {}
        self.ring = Ring("nobody", "token", time.perf_counter_ns())
        self.process = RunProcess(EventMemory(os.dup(self.ring._descriptor)), os.getpid(), folder, self.fetches)
        self.ring.drop()

    def step(self) -> None:
        for code, argument in ((ev.FORWARD_IN, 5), (ev.FORWARD_OUT, 5), (ev.BACKWARD_IN, 0), (ev.BACKWARD_OUT, 0)):
            self.ring.emit(code, argument, ev.GRAD | ev.LEARNS if code == ev.FORWARD_IN else 0)
        self.ring.emit(ev.STEP_IN, 9)
        self.ring.emit(ev.STEP_OUT, 9)

    def train(self, steps: int, **who: Any) -> None:
        for number in range(steps):
            self.step()
            if not number:
                self.ring.tell({"kind": "process", "host": "h", "rank": 3, "restart": 0, "world_size": 1, **who})

    def read(self) -> ProcessRecording:
        (path,) = self.folder.iterdir()
        return read_process(path)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path)
    yield made
    made.process._file.close()


def test_a_process_that_ended_by_itself(written: Written) -> None:
    written.train(5)
    written.ring.emit(ev.END, ev.HOW_COMPLETED)
    written.process.finish()
    read = written.read()
    assert read.path.name == f"h-{os.getpid()}-3-0.hlr"
    assert (read.closed, read.lost_rows, read.process["pid"]) == (True, 0, os.getpid())
    assert [row[FIELD["closed_by"]] for row in read.rows][-1] == CLOSED_BY_END
    assert len(read.rows) == 1 + 5 + 1  # the first backward's, the steps', the tail's
    assert all(
        sum(row[FIELD[name]] for name in TIME_FIELDS) == row[FIELD["end_ns"]] - row[FIELD["start_ns"]]
        for row in read.rows
    )
    (end,) = [fact for fact in read.facts if fact["kind"] == "end"]
    assert (end["ended"], end["steps"]) == ("completed", 7)


def test_steps_that_a_killed_process_had_only_counted_are_not_lost(written: Written) -> None:
    written.train(5)
    written.ring.note_rested(17)
    written.process.finish()
    assert sum(row[FIELD["rows_merged"]] for row in written.read().rows) == 1 + 5 + 17 + 1
    assert not written.read().closed


def test_a_process_that_does_not_train_leaves_no_file(written: Written) -> None:
    written.ring.emit(ev.FORWARD_IN, 5)
    written.ring.emit(ev.END, ev.HOW_COMPLETED)
    written.process.finish()
    assert list(written.folder.iterdir()) == []


def test_out_of_memory_before_the_first_step_is_recorded(written: Written) -> None:
    written.ring.tell({"kind": "process", "host": "h", "rank": 0})
    written.ring.tell({"kind": "out_of_memory", "device": "cuda"})
    written.ring.tell({"kind": "exception", "name": "OutOfMemoryError"})
    written.ring.emit(ev.END, ev.HOW_EXCEPTION)
    written.process.finish()
    ended = {fact["kind"]: fact for fact in written.read().facts}
    assert (ended["end"]["ended"], ended["end"]["exception"]) == ("oom", "OutOfMemoryError")
    assert ended["out_of_memory"]["device"] == "cuda"


def test_events_that_were_not_read_in_time_leave_nothing_open(written: Written) -> None:
    written.train(3)
    for code in (ev.STEP_IN, ev.BACKWARD_IN, ev.PHASE_IN):
        written.ring.emit(code, FIELD["communication_ns"])
    written.process.take_events()
    for _ in range(2 * ev.SLOTS):
        written.ring.emit(200)
    written.train(3)
    written.process.take_events(is_over=True)
    assert written.process.engine.recorder.stack == [FIELD["other_ns"]]
    written.process.finish()
    read = written.read()
    assert len(read.rows) == 1 + 3 + 3 + 1
    assert [fact["level"] for fact in read.facts if fact["kind"] == "health"] == ["warning"]


def test_the_jobs_write_while_it_runs(written: Written) -> None:
    written.train(5)
    written.process.take_events()
    written.process.tick(time.perf_counter_ns())
    kinds = {fact["kind"]: fact for fact in written.read().facts}
    assert kinds["memory"]["rss_bytes"] > 1 << 20
    assert kinds["memory"]["peak_rss_bytes"] >= kinds["memory"]["rss_bytes"]
    assert kinds["overhead"]["hooks_ns"] == written.process.engine.events * ev.EVENT_NS
    assert "network" not in kinds
    assert len(written.read().rows) == 6


def test_exchanges_of_ranks_are_written_with_their_interfaces(written: Written) -> None:
    written.train(2, world_size=2)
    written.process.take_events()
    written.process.tick(time.perf_counter_ns())
    (network,) = [fact for fact in written.read().facts if fact["kind"] == "network"]
    assert network["row"] == 3
    assert isinstance(network["interfaces"], dict)


def test_what_a_worker_read_is_told_with_its_loader(written: Written) -> None:
    written.fetches[77] = worker = FetchTotals()
    worker.add(10, 1_000, 500, 100)
    written.ring.tell({"kind": "loader", "key": 31, "num_workers": 1})
    written.ring.tell({"kind": "workers", "key": 31, "pids": [77]})
    written.train(2)
    written.process.take_events()
    (stats,) = [fact for fact in written.process.engine.totals(written.fetches) if fact["kind"] == "loader_stats"]
    assert (stats["fetch_batches"], stats["fetch_ns"], stats["collate_ns"]) == (10, 1_000, 100)


def test_a_failure_of_ours_is_told_once_in_the_recording(written: Written) -> None:
    written.train(2)
    for _ in range(2):
        written.process.note_failure("Traceback\nValueError: planted\n")
    written.process.finish()
    told = [fact for fact in written.read().facts if fact["kind"] == "health" and "planted" in fact["message"]]
    assert len(told) == 1


@pytest.mark.parametrize(
    "fact", [[1], {"kind": ["list"]}, {"kind": "loader", "key": [1]}, {"kind": "device", "memory": 7}]
)
def test_a_fact_of_no_sense_costs_nothing_but_itself(written: Written, fact: Any) -> None:
    written.train(2)
    written.ring.tell(fact)
    written.train(2)
    written.process.finish()
    assert len(written.read().rows) == 1 + 4 + 1


@pytest.mark.skipif(sys.platform != "linux", reason="read nowhere else")
def test_a_sample_counts_for_the_phase_of_its_moment(written: Written) -> None:
    written.train(2)
    written.ring.tell({"kind": "access", "layout": describe_access(current_thread_state())})
    written.process.take_events()
    written.ring.emit(ev.BACKWARD_IN)
    written.process.sample()
    written.ring.emit(ev.BACKWARD_OUT)
    written.ring.emit(ev.STEP_IN, 9)
    written.ring.emit(ev.STEP_OUT, 9)
    written.process.take_events()
    written.process.sample()
    written.process.finish()
    (samples,) = [fact for fact in written.read().facts if fact["kind"] == "samples"]
    assert samples["outside"]
    assert {field: count for field, _, _, count in samples["counts"]} == {"backward_ns": 1, "other_ns": 1}


@pytest.mark.parametrize(
    "change",
    [{"token": [1]}, {"code": None}, {"state_frame": []}, {"state_chunk": 1 << 20}, {"pid": 1 << 22}],
)
def test_a_layout_of_no_sense_is_told_and_costs_the_samples_alone(written: Written, change: dict[str, Any]) -> None:
    written.train(2)
    written.ring.tell({"kind": "access", "layout": {**(describe_access(current_thread_state()) or {}), **change}})
    written.train(2)
    written.process.take_events()
    written.process.sample()
    written.process.finish()
    read = written.read()
    (refused,) = [fact for fact in read.facts if fact["kind"] == "sampling"]
    assert refused["reason"] == "No such process" or "pid" not in change
    assert len(read.rows) >= 5


@pytest.mark.skipif(sys.platform != "linux", reason="read nowhere else")
def test_a_sample_while_hooks_rest_counts_for_the_phase_that_its_stack_was_in(written: Written) -> None:
    def sample(resting_steps: int) -> None:
        written.ring.note_rested(resting_steps)
        written.process.sample()
        written.process.take_events()

    written.train(2)
    written.ring.tell({"kind": "access", "layout": describe_access(current_thread_state())})
    written.process.take_events()
    for resting_steps in (0, 3):
        written.ring.emit(ev.BACKWARD_IN if not resting_steps else ev.RESTED)
        sample(resting_steps)
        written.ring.emit(ev.BACKWARD_OUT if not resting_steps else ev.RESTED)
    (lambda: sample(5))()  # a stack that was never seen
    written.process.finish()
    (samples,) = [fact for fact in written.read().facts if fact["kind"] == "samples"]
    assert [(field, count) for field, _, _, count in samples["counts"]] == [("backward_ns", 2)]
