"""Run folders as they are found: whole, cut off, foreign, from the future, or empty."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from hotloop.core.errors import RecordingError
from hotloop.core.frames import KIND_FACT, KIND_ROW, MAGIC, encode_frame, encode_header
from hotloop.core.recording import CLOSED_BY_END, FIELD, STEP_FIELDS, UNKNOWN
from hotloop.evidence.trace.recording import count_rows, fill_device_times, find_newer, find_run, read_process, read_run
from tests.recordings import InstantWriter


def make_row(index: int) -> list[int]:
    row = [0] * len(STEP_FIELDS)
    row[FIELD["index"]] = index
    row[FIELD["rows_merged"]] = 1
    return row


def make_recording(path: Path, rows: int = 3) -> Path:
    writer = InstantWriter(str(path))
    writer.write_fact({"kind": "process", "t": 0, "rank": 0})
    for index in range(rows):
        writer.write_row(make_row(index))
    writer.close()
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / ".hotloop" / "first"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"schema": "hotloop.run/1", "started_wall_s": 10.0}')
    make_recording(folder / "processes" / "host-1-0-0.hlr")
    return folder


def write_rows(path: Path, *rows: list[int]) -> Path:
    frames = (encode_frame(KIND_ROW, struct.pack(f"<{len(row)}q", *row)) for row in rows)
    path.write_bytes(encode_header() + b"".join(frames))
    return path


def fill(*facts: dict[str, object], merged: int = 1) -> list[list[int]]:
    """device_forward_ns and device_h2d_ns of rows 0, 1 and 2 (or, with ``merged``, of blocks) behind some facts."""
    rows = np.full((3, len(STEP_FIELDS)), UNKNOWN, dtype=np.int64)
    rows[:, FIELD["index"]] = np.arange(3) * merged
    rows[:, FIELD["rows_merged"]] = merged
    filled = fill_device_times(rows, facts)
    return filled[:, [FIELD["device_forward_ns"], FIELD["device_h2d_ns"]]].tolist()


@pytest.mark.parametrize(
    ("fact", "row", "expected"),
    [
        ({"row": 1, "forward_ns": 700, "backward_ns": None, "h2d_ns": 0}, 1, [700, 0]),
        ({"row": 1, "forward_ns": None, "h2d_ns": 5}, 1, [UNKNOWN, 5]),
        *[({"row": row, "forward_ns": 7}, 0, [UNKNOWN, UNKNOWN]) for row in (3, -1, True, "1", None, 1 << 80)],
        *[({"row": 0, "forward_ns": value}, 0, [UNKNOWN, UNKNOWN]) for value in (-5, True, 1.5, "7", 1 << 80)],
    ],
)
def test_device_times_fill_the_row_that_they_name(fact: dict[str, object], row: int, expected: list[int]) -> None:
    found = fill({"kind": "device_times", **fact})
    assert found.pop(row) == expected
    assert found == [[UNKNOWN, UNKNOWN]] * 2
    assert fill({"kind": "device_times", **fact}, merged=4)[1] == [UNKNOWN, UNKNOWN]  # a block has no time of one row


def test_device_times_in_a_file_reach_its_rows(tmp_path: Path) -> None:
    writer = InstantWriter(str(tmp_path / "one.hlr"))
    unknown = make_row(0)
    unknown[FIELD["device_backward_ns"]] = UNKNOWN
    writer.write_row(unknown)
    writer.write_fact({"kind": "device_times", "t": 9, "row": 0, "backward_ns": 40})
    writer.close()
    assert read_process(tmp_path / "one.hlr").rows[0, FIELD["device_backward_ns"]] == 40


def test_a_run_is_read_whole(run: Path) -> None:
    (run / "outcome.json").write_text('{"ended": "completed", "exit_code": 0}')
    found = read_run(run)
    assert found.manifest == {"schema": "hotloop.run/1", "started_wall_s": 10.0}
    assert found.outcome == {"ended": "completed", "exit_code": 0}
    assert found.probe is None
    assert found.health == ()
    (process,) = found.processes
    assert process.process["rank"] == 0
    assert process.rows.tolist() == [make_row(k) for k in range(3)]
    assert (process.lost_rows, process.closed) == (0, True)


@pytest.mark.parametrize(("missing", "lost"), [([], 0), ([0], 1), ([4, 5], 2), ([0, 8], 2)])
def test_missing_rows_are_counted_and_reported(run: Path, missing: list[int], lost: int) -> None:
    path = write_rows(run / "processes" / "a.hlr", *(make_row(k) for k in range(10) if k not in missing))
    assert read_process(path).lost_rows == lost
    assert count_rows(path, 0) == 10
    assert bool(read_run(run).health) == bool(missing)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PAR1" * 5000, "{} is not a hotloop recording"),
        (MAGIC + bytes(8), "{} was written by another version"),
        (None, "cannot read {}: Is a directory"),
    ],
)
def test_what_is_no_recording_is_refused_in_one_line(run: Path, data: bytes | None, words: str) -> None:
    path = run / "processes" / "host-1-0-0.hlr"
    path.unlink()
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    with pytest.raises(RecordingError) as refused:
        read_run(run)
    assert str(refused.value).startswith(words.format(path))
    assert "\n" not in str(refused.value)
    with pytest.raises(RecordingError, match="no run at"):
        read_run(run / "nothing")
    with pytest.raises(RecordingError, match="contains no recording"):
        read_run(run.parent)


def test_hostile_frames_and_sizes_are_bounded(run: Path) -> None:
    path = run / "processes" / "host-1-0-0.hlr"
    with path.open("ab") as file:
        for payload in (b"[1]", b"{", b"[" * 100_000, b'"x"', b"\xff"):
            file.write(encode_frame(KIND_FACT, payload))
    assert [fact["kind"] for fact in read_process(path).facts] == ["process"]
    os.truncate(path, 1 << 40)
    with pytest.raises(RecordingError, match="a recording has at most"):
        read_process(path)


def test_one_bad_file_among_good_ones_is_a_health_line(run: Path) -> None:
    (run / "processes" / "bad.hlr").write_bytes(b"x" * 100)
    found = read_run(run)
    assert len(found.processes) == 1
    assert found.health == (f"{run / 'processes' / 'bad.hlr'} is not a hotloop recording",)


@pytest.mark.parametrize("data", [b"", bytes(1 << 16)])
def test_a_file_whose_writer_was_killed_at_once_is_a_health_line(run: Path, data: bytes) -> None:
    (run / "processes" / "host-1-0-0.hlr").write_bytes(data)
    found = read_run(run)
    assert found.processes == ()
    assert found.health == ("host-1-0-0.hlr is empty: its process ended before it could record anything",)


def test_a_pipe_in_place_of_a_recording_is_not_waited_for(run: Path) -> None:
    os.mkfifo(run / "processes" / "host-9-9-0.hlr")
    assert any("host-9-9-0.hlr is a pipe" in line for line in read_run(run).health)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": NaN', "\udcff"])
def test_a_damaged_manifest_is_a_health_line(run: Path, text: str) -> None:
    (run / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    found = read_run(run)
    assert found.manifest is None
    assert found.health == ("run.json is damaged: it contains no JSON object",)


def add_run(beside: Path, name: str, started_s: float, rows: int | None = None) -> Path:
    folder = beside.parent / name
    (folder / "processes").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"started_wall_s": started_s}))
    if rows is not None:
        make_recording(folder / "processes" / "host-1-0-0.hlr", rows)
    return folder


def test_runs_are_found_by_name_by_path_and_as_the_last(run: Path, tmp_path: Path) -> None:
    second = add_run(run, "second", 20, rows=1)
    os.utime(run / "run.json", (4e9, 4e9))
    (run.parent / "no-run").mkdir()
    assert find_run("last", tmp_path) == second
    assert find_run("first", tmp_path) == run
    assert find_run(".hotloop/first", tmp_path) == run
    assert find_run(str(run), tmp_path / "elsewhere") == run


def test_last_is_the_last_training(run: Path, tmp_path: Path) -> None:
    add_run(run, "typo", 20)
    newest = add_run(run, "no-step", 30, rows=0)
    assert find_run("last", tmp_path) == run
    assert find_newer(run) == newest
    assert find_newer(newest) is None
    ended = [*make_row(0)]
    ended[FIELD["closed_by"]] = CLOSED_BY_END
    write_rows(newest / "processes" / "host-2-0-0.hlr", ended)
    assert find_run("last", tmp_path) == run


def test_last_is_the_newest_run_where_none_trained_and_where_it_is_damaged(run: Path, tmp_path: Path) -> None:
    newest = add_run(run, "newest", 20)
    (run / "processes" / "host-1-0-0.hlr").unlink()
    assert find_run("last", tmp_path) == newest
    third = add_run(run, "third", 15)
    (third / "processes" / "host-1-0-0.hlr").write_bytes(b"no recording, but no empty file either")
    assert find_run("last", tmp_path) == third


@pytest.mark.parametrize(
    "text", ["{}", "[1]", "not JSON", '{"exit_code": "0"}', '{"exit_code": true}', '{"exit_code": 0, "signal": 9}']
)
def test_an_outcome_that_says_nothing_is_lost_and_told(run: Path, text: str) -> None:
    assert not read_run(run).outcome_lost
    (run / "outcome.json").write_text(text)
    found = read_run(run)
    assert found.outcome is None
    assert found.outcome_lost
    assert [line for line in found.health if "outcome.json is damaged" in line]
