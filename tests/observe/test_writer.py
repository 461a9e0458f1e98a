"""The recording's writer: what survives which accident, and what it costs the training thread."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hotloop.core.frames import MAX_FACT_BYTES, decode_status
from hotloop.core.recording import CLOSED_BY_END, CLOSED_BY_OPTIMIZER, FIELD, FLAG_DEEP, STEP_FIELDS, UNKNOWN
from hotloop.observe.mapped_segments import file_system_type, is_network_file_system
from hotloop.observe.writer import FrameWriter, merge_rows
from hotloop.trace.recording import ProcessRecording, Rows, read_process, read_run, read_tail

SRC = Path(__file__).parents[2] / "src"
SEGMENT = 1 << 17  # the smallest, so that tests cross many


def make_row(index: int, **fields: int) -> list[int]:
    row = [0] * len(STEP_FIELDS)
    row[FIELD["index"]] = index
    row[FIELD["closed_by"]] = CLOSED_BY_OPTIMIZER
    row[FIELD["rows_merged"]] = 1
    row[FIELD["start_ns"]], row[FIELD["end_ns"]] = 100 * index, 100 * index + 100
    row[FIELD["forward_ns"]] = 100
    row[FIELD["rss_bytes"]] = index
    for name, value in fields.items():
        row[FIELD[name]] = value
    return row


class FakeClock:
    """Nanoseconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def indexes(recording: ProcessRecording) -> list[int]:
    return indexes_of(recording.rows)


def indexes_of(rows: Rows) -> list[int]:
    return [int(i) for i in rows[:, FIELD["index"]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "processes" / "host-1-0-0.hlr"


def test_rows_and_facts_come_back(path: Path) -> None:
    writer = FrameWriter(str(path))
    writer.write_fact({"kind": "process", "t": 0, "pid": 7})
    rows = [make_row(k, samples=UNKNOWN, forward_ns=k * 7) for k in range(5)]
    for row in rows:
        writer.write_row(row)
    writer.write_fact({"kind": "end", "t": 9, "ended": "completed"})
    found = read_process(path)
    assert found.rows.tolist() == rows
    assert found.process == {"kind": "process", "t": 0, "pid": 7}
    assert [fact["kind"] for fact in found.facts] == ["process", "end"]
    assert (found.lost_rows, found.closed) == (0, False)
    writer.close()
    assert read_process(path).closed


def test_the_row_is_not_kept(path: Path) -> None:
    writer = FrameWriter(str(path))
    row = make_row(0)
    writer.write_row(row)
    row[FIELD["index"]] = 99
    assert indexes(read_process(path)) == [0]


def test_many_segments_without_maintenance(path: Path) -> None:
    writer = FrameWriter(str(path), segment_bytes=SEGMENT)
    for k in range(2000):
        writer.write_row(make_row(k))
    assert indexes(read_process(path)) == list(range(2000))
    assert path.stat().st_size > 5 * SEGMENT


def test_with_maintenance_the_training_thread_never_allocates(path: Path) -> None:
    writer = FrameWriter(str(path), segment_bytes=SEGMENT)
    writer.maintain()
    size_bytes = path.stat().st_size
    for k in range(1000):
        writer.write_row(make_row(k))
    assert path.stat().st_size == size_bytes
    assert writer.report_losses().pending_rows > 0
    for _ in range(20):
        writer.maintain()
    assert writer.report_losses().pending_rows == 0
    assert indexes(read_process(path)) == list(range(1000))


def test_rows_that_find_the_lock_taken_are_written_by_whoever_releases_it(path: Path) -> None:
    writer = FrameWriter(str(path))
    writer._lock.acquire()
    writer.write_row(make_row(0))
    assert indexes(read_process(path)) == []
    writer._lock.release()
    writer.write_row(make_row(1))
    assert indexes(read_process(path)) == [0, 1]


def test_rows_that_have_their_places_need_no_lock(path: Path) -> None:
    writer = FrameWriter(str(path))
    writer.write_row(array("q", make_row(0)))
    writer._lock.acquire()
    for k in range(1, 68):
        writer.write_row(array("q", make_row(k)))
    assert indexes(read_process(path)) == list(range(64))
    assert writer.report_losses().pending_rows == 4
    writer._lock.release()
    writer.write_row(array("q", make_row(68)))
    assert indexes(read_process(path)) == list(range(69))


def test_facts_that_fill_the_segment_leave_rows_their_places_in_the_one_before(path: Path) -> None:
    writer = FrameWriter(str(path), segment_bytes=SEGMENT)
    for k in range(5):
        writer.write_row(array("q", make_row(k)))
    for k in range(10):
        writer.write_fact({"kind": "model", "class": "x" * 20_000, "n": k})
    writer.maintain()
    for k in range(5, 80):
        writer.write_row(array("q", make_row(k)))
        assert indexes_of(read_tail(path, k)) == [k]
    found = read_process(path)
    assert (indexes(found), found.lost_rows, len(found.facts)) == (list(range(80)), 0, 10)


def test_a_row_that_was_interrupted_is_the_only_one_that_is_missing(path: Path) -> None:
    writer = FrameWriter(str(path))
    writer.write_row(array("q", make_row(0)))
    writer._places.pop()  # as an exception that a signal handler raised there leaves it
    for k in range(2, 40):
        writer.write_row(array("q", make_row(k)))
    writer.close()
    found = read_process(path)
    assert (indexes(found), found.lost_rows) == ([0, *range(2, 40)], 1)


def test_the_status_counts_the_rows_of_places_that_are_taken(path: Path) -> None:
    writer = FrameWriter(str(path))
    for k in range(20):
        writer.write_row(array("q", make_row(k)))
    writer.maintain()
    assert decode_status(path.read_bytes()).settled_rows == 20


def test_a_row_that_is_being_written_when_the_recording_is_left_does_not_raise(path: Path) -> None:
    writer = FrameWriter(str(path))
    writer.write_row(array("q", make_row(0)))
    places = writer._places
    writer.close()
    writer._places = places  # taken before the close
    writer.write_row(array("q", make_row(1)))
    assert indexes(read_process(path)) == [0]
    assert writer.report_losses().lost_rows == 1


def test_one_thread_writes_while_another_maintains_and_a_third_tells_facts(path: Path) -> None:
    writer = FrameWriter(str(path), segment_bytes=SEGMENT)
    done = threading.Event()

    def repeat(call: Callable[[], None]) -> threading.Thread:
        def work() -> None:
            while not done.is_set():
                call()

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    threads = [repeat(writer.maintain), repeat(lambda: writer.write_fact({"kind": "memory", "t": 1}))]
    for k in range(3000):
        writer.write_row(make_row(k))
    done.set()
    for thread in threads:
        thread.join()
    writer.close()
    found = read_process(path)
    assert indexes(found) == list(range(3000))
    assert (found.lost_rows, found.closed) == (0, True)


@pytest.mark.parametrize("row", [[], [1, 2], ["x"] * len(STEP_FIELDS), [1 << 70] * len(STEP_FIELDS), None])
def test_a_row_that_is_none_is_counted_and_does_not_raise(path: Path, row: list[int]) -> None:
    writer = FrameWriter(str(path))
    writer.write_row(make_row(0))
    writer.write_row(row)
    writer.write_row(make_row(1))
    assert writer.report_losses().lost_rows == 1
    assert indexes(read_process(path)) == [0, 1]


def test_facts_that_json_cannot_hold_are_counted_and_do_not_raise(path: Path) -> None:
    writer = FrameWriter(str(path))
    circular: dict[str, object] = {"kind": "process"}
    circular["self"] = circular
    writer.write_fact(circular)
    writer.write_fact({"kind": "model", "class": "x" * MAX_FACT_BYTES})
    writer.write_fact({"kind": "model", "class": object})
    assert writer.report_losses().lost_facts == 2
    assert len(read_process(path).facts) == 1


def test_of_last_wins_facts_only_the_newest_of_each_key_is_left_and_the_file_does_not_grow(path: Path) -> None:
    writer = FrameWriter(str(path), segment_bytes=SEGMENT)
    writer.maintain()
    for k in range(5000):
        writer.write_fact({"kind": "optimizer", "index": k % 2, "steps": k})
        writer.write_fact({"kind": "gc", "count": k})
    facts = read_process(path).facts
    assert {(f["kind"], f.get("index"), f.get("steps", f.get("count"))) for f in facts} == {
        ("optimizer", 0, 4998),
        ("optimizer", 1, 4999),
        ("gc", None, 4999),
    }
    assert path.stat().st_size == SEGMENT


def test_last_wins_facts_may_grow_and_shrink(path: Path) -> None:
    writer = FrameWriter(str(path))
    for length in (10, 500, 20, 9000, 1, 300, 12000):
        writer.write_fact({"kind": "compile", "reasons": "x" * length})
        (fact,) = read_process(path).facts
        assert len(fact["reasons"]) == length


def test_facts_that_keep_coming_are_thinned_and_bounded(path: Path) -> None:
    writer = FrameWriter(str(path), segment_bytes=SEGMENT, fact_budget_bytes=200_000)
    for k in range(20_000):
        writer.write_fact({"kind": "memory", "t": k, "rss_bytes": 1 << 30})
    writer.write_fact({"kind": "gc", "count": 7})
    writer.write_fact({"kind": "end", "ended": "completed"})
    writer.close()
    found = read_process(path)
    times = [fact["t"] for fact in found.facts if fact["kind"] == "memory"]
    assert times[:100] == list(range(100))
    assert times[-1] > 10_000
    assert found.thinned_facts == 20_000 - len(times)
    assert [fact["kind"] for fact in found.facts[-2:]] == ["gc", "end"]
    assert path.stat().st_size < 4 * SEGMENT


def test_a_long_run_is_merged_in_growing_blocks_and_stays_whole(path: Path) -> None:
    writer = FrameWriter(str(path), segment_bytes=SEGMENT, raw_rows=100, level_blocks=50)
    count = 2000
    for k in range(count):
        writer.write_row(
            make_row(
                k,
                flags=FLAG_DEEP * (k == 1500),
                tokens=UNKNOWN if k == 1200 else 3,
                samples=UNKNOWN if k == 1300 else 4,
            )
        )
        if k % 97 == 0:
            found = read_process(path)
            assert found.rows[:, FIELD["rows_merged"]].sum() == k + 1
            assert found.lost_rows == 0
    writer.close()
    rows = read_process(path).rows
    merged = rows[:, FIELD["rows_merged"]]
    assert len(rows) < 400
    assert merged[:150].tolist() == [1] * 100 + [2] * 50
    assert merged.max() == 32
    assert (rows[:, FIELD["start_ns"]][1:] == rows[:, FIELD["end_ns"]][:-1]).all()
    assert (rows[:, FIELD["forward_ns"]] == rows[:, FIELD["end_ns"]] - rows[:, FIELD["start_ns"]]).all()
    assert (rows[:, FIELD["rss_bytes"]] == rows[:, FIELD["index"]] + merged - 1).all()
    (deep,) = np.flatnonzero(rows[:, FIELD["flags"]])
    assert rows[deep, FIELD["index"]] <= 1500 < rows[deep, FIELD["index"]] + merged[deep]
    unknown = rows[:, FIELD["samples"]] == UNKNOWN
    assert unknown.sum() == 1
    assert (rows[~unknown, FIELD["samples"]] == 4 * merged[~unknown]).all()
    assert rows[:, FIELD["tokens"]].sum() == 3 * (count - 1)


def test_the_tail_row_is_never_merged(path: Path) -> None:
    writer = FrameWriter(str(path), raw_rows=2, level_blocks=1)
    for k in range(10):
        writer.write_row(make_row(k))
    writer.write_row(make_row(10, closed_by=CLOSED_BY_END))
    last = read_process(path).rows[-1]
    assert (last[FIELD["index"]], last[FIELD["rows_merged"]], last[FIELD["closed_by"]]) == (10, 1, CLOSED_BY_END)


def test_a_block_does_not_span_a_gap(path: Path) -> None:
    writer = FrameWriter(str(path), raw_rows=1, level_blocks=1)
    for k in (0, 1, 2, 3, 5, 6, 7):
        writer.write_row(make_row(k))
    found = read_process(path)
    assert found.lost_rows == 1
    assert found.rows[:, FIELD["forward_ns"]].sum() == 700


def test_merging_keeps_the_first_where_and_the_last_when() -> None:
    merged = merge_rows(make_row(4, optimizer_index=UNKNOWN), make_row(5, optimizer_index=1, collectives=2))
    assert merged[FIELD["index"]] == 4
    assert merged[FIELD["optimizer_index"]] == UNKNOWN
    assert (merged[FIELD["start_ns"]], merged[FIELD["end_ns"]]) == (400, 600)
    assert merged[FIELD["rss_bytes"]] == 5
    assert (merged[FIELD["rows_merged"]], merged[FIELD["collectives"]]) == (2, 2)


def test_the_tail_is_what_came_since(path: Path) -> None:
    writer = FrameWriter(str(path), segment_bytes=SEGMENT, raw_rows=600, level_blocks=100)
    seen = 0
    for k in range(1500):
        writer.write_row(make_row(k))
        if k % 100 == 50:
            writer.maintain()
            rows = read_tail(path, seen)
            ends = rows[:, FIELD["index"]] + rows[:, FIELD["rows_merged"]]
            assert (ends > seen).all()
            assert ends.max() == k + 1
            seen = int(ends.max())
    assert len(read_tail(path, seen)) < 100
    assert len(read_tail(path, 1500)) == 0


# Accidents.

WRITE_ROWS = """
import os, signal, sys, threading, time
from array import array
sys.path.insert(0, {src!r})
from hotloop.core.recording import FIELD, STEP_FIELDS
from hotloop.observe.writer import FrameWriter
writer = FrameWriter({path!r}, segment_bytes=1 << 17, raw_rows={raw_rows}, level_blocks=20)
writer.write_fact({{"kind": "process", "t": 0}})
def maintain():
    while True:
        writer.maintain()
        time.sleep(0.002)
if {maintain}:
    threading.Thread(target=maintain, daemon=True).start()
row = array("q", [0] * len(STEP_FIELDS))
row[FIELD["rows_merged"]] = 1
print("ready", flush=True)
k = 0
while True:
    row[0] = k
    row[FIELD["start_ns"]], row[FIELD["end_ns"]], row[FIELD["forward_ns"]] = 10 * k, 10 * k + 10, 10
    writer.write_row(row)
    k += 1
    if k == {stop_at}:
        os.kill(os.getpid(), signal.SIGKILL)
    if k % 50 == 0:
        time.sleep(0.001)
"""


def start_writing(
    path: Path, *, stop_at: int = -1, maintain: bool = True, raw_rows: int = 16384
) -> subprocess.Popen[bytes]:
    code = WRITE_ROWS.format(src=str(SRC), path=str(path), stop_at=stop_at, maintain=maintain, raw_rows=raw_rows)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


@pytest.mark.parametrize("maintain", [False, True])
def test_after_sigkill_at_row_200_there_are_200_rows(path: Path, maintain: bool) -> None:
    with start_writing(path, stop_at=200, maintain=maintain) as process:
        assert process.wait(30) == -signal.SIGKILL
    found = read_process(path)
    assert indexes(found) == list(range(200))
    assert (found.lost_rows, found.closed) == (0, False)
    assert found.process == {"kind": "process", "t": 0}


def test_after_sigkill_at_any_moment_the_rows_are_a_gapless_prefix(path: Path) -> None:
    path.parent.mkdir()
    chance = random.Random(7)
    lengths = []
    for attempt in range(20):
        one = path.with_name(f"{attempt}.hlr")
        with start_writing(one, raw_rows=300) as process:
            assert process.stdout is not None
            process.stdout.readline()
            pause = threading.Event()
            pause.wait(chance.random() * 0.06)
            process.kill()
        found = read_process(one)
        ends = found.rows[:, FIELD["index"]] + found.rows[:, FIELD["rows_merged"]]
        assert [0, *ends[:-1]] == indexes(found) if len(ends) else True
        assert (found.rows[:, FIELD["forward_ns"]] == 10 * found.rows[:, FIELD["rows_merged"]]).all()
        assert found.lost_rows == 0
        lengths.append(int(ends.max(initial=0)))
    assert max(lengths) > 300


def test_two_processes_write_at_once(path: Path) -> None:
    paths = [path, path.with_name("host-2-1-0.hlr")]
    path.parent.mkdir()
    processes = [start_writing(one, stop_at=500) for one in paths]
    for process in processes:
        with process:
            process.wait(30)
    run = read_run(path.parent.parent)
    assert [indexes(process) for process in run.processes] == [list(range(500))] * 2


def test_a_program_that_replaced_itself_gets_a_file_of_its_own(path: Path) -> None:
    first, second = FrameWriter(str(path)), FrameWriter(str(path))
    first.write_row(make_row(0))
    second.write_row(make_row(0))
    second.write_row(make_row(1))
    assert second.path == str(path.with_name("host-1-0-0.1.hlr"))
    assert [len(process.rows) for process in read_run(path.parent.parent).processes] == [2, 1]


def write_in_child(writer: FrameWriter) -> None:
    for k in range(100, 200):
        writer.write_row(make_row(k))
    writer.write_fact({"kind": "end", "ended": "exception"})
    writer.maintain()
    writer.close()


@pytest.mark.parametrize("locked", [False, True])
def test_a_forked_child_leaves_the_file_alone(path: Path, locked: bool) -> None:
    writer = FrameWriter(str(path))
    for k in range(10):
        writer.write_row(make_row(k))
    if locked:
        writer._lock.acquire()
        writer._service.acquire()
    child = multiprocessing.get_context("fork").Process(target=write_in_child, args=(writer,))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    if locked:
        writer._lock.release()
        writer._service.release()
    for k in range(10, 20):
        writer.write_row(make_row(k))
    found = read_process(path)
    assert indexes(found) == list(range(20))
    assert (found.facts, found.closed) == ((), False)
    writer.close()
    assert read_process(path).closed


def test_a_deleted_folder_is_noticed_and_everything_in_it_counted(path: Path) -> None:
    clock = FakeClock()
    writer = FrameWriter(str(path), clock=clock)
    writer.write_fact({"kind": "process", "t": 0})
    for k in range(30):
        writer.write_row(make_row(k))
    path.unlink()
    path.parent.rmdir()
    clock.now_ns += 2_000_000_000
    writer.maintain()
    for k in range(30, 40):
        writer.write_row(make_row(k))
    writer.write_fact({"kind": "end"})
    losses = writer.report_losses()
    assert (losses.lost_rows, losses.lost_facts, losses.pending_rows) == (40, 2, 0)
    assert losses.reason == f"the recording was deleted: {path}"
    writer.close()
    assert not path.parent.exists()


def test_a_folder_that_does_not_exist_is_waited_for_in_bounded_memory(tmp_path: Path) -> None:
    run = tmp_path / "gone" / "run"
    clock = FakeClock()
    writer = FrameWriter(str(run / "processes" / "a.hlr"), clock=clock, memory_limit_bytes=1 << 16)
    writer.write_fact({"kind": "process", "t": 0})
    for k in range(500):
        writer.write_row(make_row(k))
        writer.write_fact({"kind": "memory", "t": k, "text": "x" * 100})
    losses = writer.report_losses()
    assert 0 < losses.pending_rows < 100
    assert losses.lost_rows == 500 - losses.pending_rows
    assert losses.lost_facts > 400
    assert losses.reason is not None
    assert losses.reason.startswith("No such file or directory")
    run.mkdir(parents=True)
    clock.now_ns += 10_000_000_000
    for _ in range(3):
        clock.now_ns += 2_000_000_000
        writer.maintain()
    found = read_process(run / "processes" / "a.hlr")
    assert indexes(found) == list(range(500 - losses.pending_rows, 500))
    assert found.lost_rows == losses.lost_rows
    assert found.process == {"kind": "process", "t": 0}
    (health,) = (fact for fact in found.facts if fact["kind"] == "health")
    assert health["message"].startswith(f"the recording lost {losses.lost_rows} rows and {losses.lost_facts} facts")


def test_a_read_only_folder_costs_the_recording_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "readonly"
    folder.mkdir()
    with mounted("-o", "ro,size=1m", folder=folder):
        writer = FrameWriter(str(folder / "a.hlr"))
        for k in range(100):
            writer.write_row(make_row(k))
            writer.maintain()
        writer.close()
        losses = writer.report_losses()
    assert losses.lost_rows == 100
    assert losses.reason == f"Read-only file system: {folder}"


def test_a_disk_that_fills_costs_the_rows_that_do_not_fit(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    with mounted("-o", "size=600k", folder=folder):
        clock = FakeClock()
        path = folder / "a.hlr"
        writer = FrameWriter(str(path), clock=clock, segment_bytes=SEGMENT, memory_limit_bytes=1 << 18)
        writer.write_fact({"kind": "process", "t": 0})
        for k in range(5000):
            writer.write_row(make_row(k))
            if k % 50 == 0:
                clock.now_ns += 100_000_000
                writer.maintain()
        losses = writer.report_losses()
        assert losses.lost_rows > 3000
        assert losses.pending_rows > 100
        assert losses.reason == f"No space left on device: {folder}"
        writer.write_fact({"kind": "end", "t": 5, "ended": "completed"})
        writer.close()
        found = read_process(path)
        run = read_run_of(folder)
        assert os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize < SEGMENT
    rows = len(found.rows)
    assert rows > 800
    assert indexes(found) == list(range(rows))
    assert found.lost_rows == 5000 - rows == writer.report_losses().lost_rows
    assert found.closed
    assert found.facts[-1]["kind"] in ("end", "health")
    messages = [fact["message"] for fact in found.facts if fact["kind"] == "health"]
    assert messages == [f"the recording lost {5000 - rows} rows and 0 facts (No space left on device: {folder})"]
    assert {"kind": "end", "t": 5, "ended": "completed"} in found.facts
    assert run == ()


def read_run_of(folder: Path) -> tuple[str, ...]:
    """Health lines of a run whose only recording lies in ``folder``; its own health fact makes them needless."""
    (folder / "processes").symlink_to(folder)
    return read_run(folder).health


def test_a_disk_that_has_space_again_gets_what_waited(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    with mounted("-o", "size=600k", folder=folder):
        clock = FakeClock()
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(300_000))
        path = folder / "a.hlr"
        writer = FrameWriter(str(path), clock=clock, segment_bytes=SEGMENT)
        for k in range(600):
            writer.write_row(make_row(k))
            writer.maintain()
        assert writer.report_losses().pending_rows > 0
        ballast.unlink()
        clock.now_ns += 20_000_000_000
        for _ in range(4):
            writer.maintain()
        assert writer.report_losses().pending_rows == 0
        writer.close()
        found = read_process(path)
    assert indexes(found) == list(range(600))
    assert found.lost_rows == 0


class mounted:
    """A tmpfs of our own for the time of a test; skips where mounting is not permitted."""

    def __init__(self, *options: str, folder: Path) -> None:
        self._options, self._folder = options, folder

    def __enter__(self) -> None:
        command = ["mount", "-t", "tmpfs", *self._options, "hotloop-test", str(self._folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if done.returncode:
            pytest.skip(f"mounting a tmpfs is not permitted: {done.stderr.strip()}")

    def __exit__(self, *exc_info: object) -> None:
        subprocess.run(["umount", "-l", str(self._folder)], check=True)


# File systems.

ROOT_ON = "20 1 8:1 / / rw - {} /dev/sda rw\n"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.mark.parametrize("kind", ["btrfs", "zfs", "whatever"])
def test_an_unsafe_file_system_is_not_mapped_but_written_by_maintenance(path: Path, kind: str) -> None:
    clock = FakeClock()
    writer = FrameWriter(str(path), clock=clock, segment_bytes=SEGMENT, raw_rows=500, mounts=ROOT_ON.format(kind))
    for k in range(1500):
        writer.write_row(make_row(k))
        writer.write_fact({"kind": "gc", "count": k})
        if k % 100 == 99:
            clock.now_ns += 1_000_000_000
            for _ in range(3):
                writer.maintain()
            found = read_process(path)
            assert found.rows[:, FIELD["rows_merged"]].sum() == k + 1
            assert [fact["count"] for fact in found.facts] == [k]
    writer.write_row(make_row(1500))
    writer.close()
    found = read_process(path)
    assert found.rows[:, FIELD["rows_merged"]].sum() == 1501
    assert (found.lost_rows, found.closed) == (0, True)


def test_without_maintenance_an_unmapped_recording_is_written_at_close(path: Path) -> None:
    writer = FrameWriter(str(path), segment_bytes=SEGMENT, mounts=ROOT_ON.format("btrfs"))
    for k in range(2000):
        writer.write_row(make_row(k))
    writer.close()
    assert indexes(read_process(path)) == list(range(2000))


def test_a_file_system_without_allocation_is_not_mapped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("os.posix_fallocate", refuse)
    writer = FrameWriter(str(path))
    for k in range(10):
        writer.write_row(make_row(k))
    assert indexes(read_process(path)) == []
    writer.maintain()
    assert indexes(read_process(path)) == list(range(10))


def test_an_unmapped_recording_keeps_what_the_disk_refuses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = FrameWriter(str(path), segment_bytes=SEGMENT, mounts=ROOT_ON.format("btrfs"))
    pwrite = os.pwrite
    full = True

    def write_until_full(file: int, data: bytes, offset: int) -> int:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(file, data, offset)

    monkeypatch.setattr("os.pwrite", write_until_full)
    for k in range(1000):
        writer.write_row(make_row(k))
        writer.maintain()
    assert writer.report_losses().reason == f"No space left on device: {path.parent}"
    full = False
    writer.close()
    assert indexes(read_process(path)) == list(range(1000))


def test_on_a_network_file_system_the_recording_is_node_local_until_closed(path: Path, local: Path) -> None:
    mounts = ROOT_ON.format("nfs4") + f"21 20 8:2 / {local} rw shared:1 - ext4 /dev/sdb rw\n"
    writer = FrameWriter(str(path), mounts=mounts)
    for k in range(50):
        writer.write_row(make_row(k))
    assert not path.exists()
    pointer = json.loads(path.with_name(path.name + ".where").read_text())
    assert Path(pointer["path"]).is_relative_to(local)
    (followed,) = read_run(path.parent.parent).processes
    assert indexes(followed) == list(range(50))
    writer.close()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert list(local.iterdir()) == []
    assert indexes(read_process(path)) == list(range(50))
    assert read_process(path).closed


def test_a_recording_left_on_another_node_is_named(path: Path, local: Path) -> None:
    mounts = ROOT_ON.format("lustre") + f"21 20 8:2 / {local} rw - tmpfs tmp rw\n"
    writer = FrameWriter(str(path), mounts=mounts)
    Path(json.loads(path.with_name(path.name + ".where").read_text())["path"]).unlink()
    (path.parent.parent / "run.json").write_text("{}")
    (line,) = read_run(path.parent.parent).health
    assert line.startswith("host-1-0-0.hlr is still on the disk of ")
    writer.close()


def test_when_home_cannot_be_reached_the_local_file_stays(path: Path, local: Path) -> None:
    mounts = ROOT_ON.format("nfs") + f"21 20 8:2 / {local} rw - ext4 /dev/sdb rw\n"
    writer = FrameWriter(str(path), mounts=mounts)
    writer.write_row(make_row(0))
    path.with_name(path.name + ".where").unlink()
    path.parent.rmdir()
    writer.close()
    (kept,) = local.glob("*/*.hlr")
    assert indexes(read_process(kept)) == [0]


def test_the_longest_mount_point_holds_a_folder() -> None:
    mounts = (
        ROOT_ON.format("ext4")
        + "21 20 0:5 / /data rw - nfs4 srv:/ rw\n22 20 0:6 / /data\\040set rw a - xfs x rw\nbad\n"
    )
    assert file_system_type("/data/runs", mounts) == "nfs4"
    assert file_system_type("/data set/runs", mounts) == "xfs"
    assert file_system_type("/database", mounts) == "ext4"
    assert file_system_type("/database", "") is None


@pytest.mark.parametrize(
    ("kind", "network"), [("nfs4", True), ("fuse.sshfs", True), ("lustre", True), ("cifs", True), ("ext4", False)]
)
def test_network_file_systems_are_told_apart(kind: str, network: bool) -> None:
    assert is_network_file_system(kind) is network


# Ends.


def test_what_comes_after_close_is_dropped(path: Path) -> None:
    writer = FrameWriter(str(path))
    writer.write_row(make_row(0))
    writer.close()
    writer.close()
    writer.write_row(make_row(1))
    writer.write_fact({"kind": "end"})
    writer.maintain()
    found = read_process(path)
    assert (indexes(found), found.lost_rows, found.facts) == ([0], 0, ())


def test_closing_from_a_signal_handler_inside_write_row_does_not_hang(path: Path) -> None:
    writer = FrameWriter(str(path))
    writer.write_row(make_row(0))
    writer._lock.acquire()  # as the interrupted frame holds it
    began = time.perf_counter()
    writer.close()
    assert time.perf_counter() - began < 5
    writer._lock.release()
    assert indexes(read_process(path)) == [0]


def test_a_row_costs_the_training_thread_a_few_microseconds(path: Path) -> None:
    writer = FrameWriter(str(path))
    writer.maintain()
    row = make_row(0)
    times_ns = []
    for k in range(1500):
        row[0] = k
        began_ns = time.perf_counter_ns()
        writer.write_row(row)
        times_ns.append(time.perf_counter_ns() - began_ns)
    # About 1.5 us on an idle machine; the bound is for a busy one, and still catches a system call or a scan.
    assert sorted(times_ns)[len(times_ns) // 10] < 15_000
