"""What is written is read back, on a disk that is full too."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hotloop.agent.replay import recording_writer as module
from hotloop.agent.replay.recording_writer import RecordingWriter
from hotloop.core.frames import MAX_FACT_BYTES
from hotloop.core.recording import CLOSED_BY_END, FIELD, STEP_FIELDS
from hotloop.evidence.trace.recording import read_process


def row(index: int) -> list[int]:
    values = [0] * len(STEP_FIELDS)
    values[FIELD["index"]], values[FIELD["rows_merged"]] = index, 1
    values[FIELD["start_ns"]], values[FIELD["end_ns"]], values[FIELD["forward_ns"]] = index * 10, index * 10 + 10, 10
    return values


def write(writer: RecordingWriter, rows: int) -> None:
    writer.write_fact({"kind": "process", "pid": 1})
    for index in range(rows):
        writer.write_row(row(index))


@pytest.mark.parametrize("closed", [True, False])
def test_rows_and_facts_are_read_back(tmp_path: Path, closed: bool) -> None:
    writer = RecordingWriter(tmp_path / "a.hlr")
    write(writer, 3_000)
    writer.close(closed=closed)
    read = read_process(tmp_path / "a.hlr")
    assert (len(read.rows), read.lost_rows, read.closed) == (3_000, 0, closed)
    assert read.process["pid"] == 1


def test_old_rows_are_merged_and_nothing_is_lost(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "a.hlr", raw_rows=10, level_blocks=4)
    write(writer, 100)
    writer.close()
    rows = read_process(tmp_path / "a.hlr").rows
    assert rows[:, FIELD["rows_merged"]].sum() == 100
    assert rows[:, FIELD["forward_ns"]].sum() == 1_000
    assert len(rows) < 40


def test_a_full_disk_is_waited_for_and_its_losses_are_counted(tmp_path: Path, monkeypatch) -> None:
    writer = RecordingWriter(tmp_path / "gone" / "a.hlr")
    write(writer, 10)
    writer.write_fact({"kind": "metric", "name": "x" * MAX_FACT_BYTES})  # is lost
    writer.flush()
    assert "No such file" in writer.message
    (tmp_path / "gone").mkdir()
    writer._retry_s = 0.0
    writer.flush()
    assert writer.message == ""
    real = os.write

    def full(descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "write", full)
    for index in range(10, 20):
        writer.write_row(row(index))
    writer.flush()
    assert "No space left" in writer.message
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", len(writer._waiting))
    writer.write_row(row(20))  # is lost as well
    monkeypatch.setattr(module.os, "write", real)
    writer.close()
    read = read_process(tmp_path / "gone" / "a.hlr")
    assert (len(read.rows), writer.lost_rows, writer.lost_facts) == (20, 1, 2)  # with the fact that would say so


def test_the_tail_is_never_merged(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "a.hlr", raw_rows=2, level_blocks=4)
    write(writer, 11)
    tail = row(11)
    tail[FIELD["closed_by"]] = CLOSED_BY_END
    writer.write_row(tail)
    writer.close()
    rows = read_process(tmp_path / "a.hlr").rows
    assert list(rows[:, FIELD["rows_merged"]]) == [1, 1, 2, 2, 2, 2, 1, 1]
    assert rows[-1, FIELD["closed_by"]] == CLOSED_BY_END


def test_facts_that_keep_coming_are_thinned(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "FACT_BUDGET_BYTES", 20_000)
    writer = RecordingWriter(tmp_path / "a.hlr")
    for number in range(2_000):
        writer.write_fact({"kind": "metric", "name": "loss", "row": number})
    writer.write_fact({"kind": "process", "pid": 1})
    writer.close()
    read = read_process(tmp_path / "a.hlr")
    rows = [fact["row"] for fact in read.facts if fact["kind"] == "metric"]
    assert (read.process["pid"], writer.lost_facts) == (1, 0)
    assert rows[:50] == list(range(50))
    assert rows[-1] > 1_500  # the late ones are there too


def test_totals_are_as_of_the_end_however_long_a_run_was(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "FACT_BUDGET_BYTES", 20_000)
    writer = RecordingWriter(tmp_path / "a.hlr")
    for number in range(2_000):
        for loader in (0, 1):
            writer.write_fact({"kind": "loader_stats", "id": loader, "batches": number + loader})
        writer.write_fact({"kind": "metric", "name": "loss", "row": number})
    writer.close()
    told = [fact for fact in read_process(tmp_path / "a.hlr").facts if fact["kind"] == "loader_stats"]
    assert {fact["id"]: fact["batches"] for fact in told} == {0: 1_999, 1: 2_000}
    assert (tmp_path / "a.hlr").stat().st_size < 10 * 20_000
