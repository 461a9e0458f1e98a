"""Paths, ranks, the cache and the worker processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from build import write_trace

from hotloop.core.errors import TraceError
from hotloop.evidence.trace import inputs
from hotloop.evidence.trace.columns import TraceColumns
from hotloop.evidence.trace.inputs import fetch_remote, find_traces, is_remote, map_traces


def count_events(trace: TraceColumns) -> tuple[int, int]:
    return len(trace), os.getpid()


def name_source(trace: TraceColumns) -> str:
    return trace.facts.source


# Files and ranks


def test_a_folder_gives_its_traces_one_level_deep_and_nothing_else(tmp_path: Path) -> None:
    write_trace(tmp_path / "b10.json")
    write_trace(tmp_path / "b9.json.gz", packed=True)
    write_trace(tmp_path / "inner" / "c.pt.trace.json")
    write_trace(tmp_path / "inner" / "deeper" / "d.json")
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "notes.txt").write_text('{"traceEvents": []}')
    (tmp_path / ".hidden.json").write_text('{"traceEvents": []}')
    found = find_traces([tmp_path])
    assert [file.source for file in found.files] == ["b9.json.gz", "b10.json", "inner/c.pt.trace.json"]
    (note,) = found.notes
    assert (note.code, note.count) == ("other-files", 1)
    assert "config.json" in note.message
    assert len(find_traces([tmp_path / "b10.json", tmp_path, str(tmp_path / "b10.json")]).files) == 3
    (tmp_path / "empty").mkdir()
    for path, words in ((tmp_path / "empty", r"no trace found.*\.json"), (tmp_path / "nowhere", "does not exist")):
        with pytest.raises(TraceError, match=words):
            find_traces([path])


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-70.Mar_25.pt.trace.json", 70), ("rank3.json", 3), ("x_rank_12.json", 12),
        ("worker0_step_12.169.json", 0),
        ("worker10.1623143089861.pt.trace.json", 10), ("model_rank1.json", 1), ("trace[3].json", 3),
        ("RANK007.json", 7), ("host_12.34.json", None), ("crank5.json", None), ("rank12345678.json", None),
        ("rank5/trace.json", 5), ("rank5/worker2.json", 2),
    ],
)  # fmt: skip
def test_the_rank_is_found_in_the_name_of_a_file_or_its_folder(tmp_path: Path, name: str, rank: int | None) -> None:
    assert inputs.rank_of_name(tmp_path / "folder" / name) == rank


def test_what_the_file_says_goes_before_its_name_and_its_name_before_its_order(tmp_path: Path) -> None:
    write_trace(tmp_path / "a.json")
    write_trace(tmp_path / "rank2.json")
    write_trace(tmp_path / "rank9.json", rank=0)
    write_trace(tmp_path / "z.json")
    mapped = map_traces([tmp_path], name_source)
    assert [(trace.facts.rank, trace.facts.rank_source, trace.result) for trace in mapped.traces] == [
        (0, "distributedInfo", "rank9.json"), (1, "order", "a.json"), (2, "file name", "rank2.json"),
        (3, "order", "z.json"),
    ]  # fmt: skip
    assert {note.code for note in mapped.notes} == {"guessed-ranks"}


def test_ranks_that_are_there_twice_or_missing_are_noted(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write_trace(tmp_path / name, rank=1)
    notes = {note.code: note for note in map_traces([tmp_path], name_source).notes}
    assert "rank 1: a.json, b.json" in notes["duplicate-ranks"].message
    assert notes["missing-ranks"].count == 3


def test_real_ranks_are_told_by_their_files(real_traces: Path) -> None:
    found = find_traces([real_traces / "dlrm_8ranks_v100"])
    assert [(file.rank, file.rank_source) for file in found.files] == [(rank, "distributedInfo") for rank in range(8)]


def test_a_file_that_cannot_be_read_does_not_take_the_others_along(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank0.json")
    bad = tmp_path / "rank1.json"
    bad.write_bytes(b'{"schemaVersion": 1, "traceEv')
    mapped = map_traces([tmp_path], count_events)
    assert [trace.facts.rank for trace in mapped.traces] == [0]
    (error,) = [note for note in mapped.notes if note.code == "unreadable-file"]
    assert "rank1.json" in error.message
    with pytest.raises(TraceError, match=r"rank1\.json"):
        map_traces([bad], count_events)


def test_each_file_is_reduced_in_a_process_of_its_own(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path / f"rank{rank}.json", count=3 + rank)
    seen: list[tuple[int, int]] = []
    # numpy and os are imported by name in a fresh interpreter, so the function must not come from this file.
    mapped = map_traces([tmp_path], len, 2, progress=lambda done, total: seen.append((done, total)))
    assert [trace.result for trace in mapped.traces] == [3, 4]
    assert seen[-1][0] == seen[-1][1]


# Remote


def test_a_remote_folder_is_copied_with_its_traces(tmp_path: Path) -> None:
    assert [is_remote(path) for path in ("s3://b/a.json", "C:/a.json", "file:///a.json", Path("s3://b"))] == [
        True, False, False, False,
    ]  # fmt: skip
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/run/rank0.json", b"[]")
    memory.pipe("/run/inner/rank1.json", b"[]")
    memory.pipe("/run/notes.txt", b"no")
    place = fetch_remote("memory://run", tmp_path)
    assert sorted(str(path.relative_to(place)) for path in place.rglob("*.json")) == ["inner/rank1.json", "rank0.json"]
    assert not list(place.rglob("*.txt"))
    assert fetch_remote("memory://run/rank0.json", tmp_path / "one").read_bytes() == b"[]"
    with pytest.raises(TraceError, match="does not exist"):
        fetch_remote("memory://run/nowhere.json", tmp_path)
