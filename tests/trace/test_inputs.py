"""Paths, ranks, the cache and the worker processes."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build import build_memory, build_trace, cpu_op, kernel, write_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.core.errors import TraceError
from hotloop.trace import cache, inputs
from hotloop.trace.cache import load_columns, make_key, store_columns, trim_folder
from hotloop.trace.columns import TraceColumns
from hotloop.trace.inputs import FORMATS, TraceFile, fetch_remote, find_traces, is_remote, map_traces, read_trace_file


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


def test_without_fsspec_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(TraceError, match=r"pip install 'hotloop\[remote\]'"):
        fetch_remote("s3://bucket/a.json", tmp_path)


# Cache


def sample_trace() -> TraceColumns:
    return build_trace(
        [cpu_op("a", 0, 10, shapes="[[1]]", sequence_number=4), kernel("b", 3, 4, correlation=2, occupancy_ratio=0.5)],
        memory=build_memory([(1, 2, 3, 4, 5, 1, 0)]),
        threads={0: "main"},
        process_groups={"0": (0, 1)},
        extra={"process_names": {"1": "python"}, "schemaVersion": 1},
    )


def assert_same(left: TraceColumns, right: TraceColumns) -> None:
    assert left.facts == right.facts
    assert left.notes == right.notes
    for name in cache.COLUMN_TYPES:
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
        assert getattr(left, name).dtype == getattr(right, name).dtype
    assert [*left.names, *left.processes, *left.thread_labels, *left.stream_labels] == [
        *right.names, *right.processes, *right.thread_labels, *right.stream_labels,
    ]  # fmt: skip
    assert left.sparse.keys() == right.sparse.keys()
    for name, column in left.sparse.items():
        other = right.sparse[name]
        assert np.array_equal(column.rows, other.rows)
        assert np.array_equal(column.values, other.values)
        assert list(column.table) == list(other.table)
    assert (left.memory is None) == (right.memory is None)
    if left.memory is not None and right.memory is not None:
        assert left.memory.bytes.tolist() == right.memory.bytes.tolist()


def test_columns_come_back_from_the_cache_as_they_went_in(tmp_path: Path) -> None:
    traces = (sample_trace(), build_trace([]))
    assert store_columns(tmp_path / "c", "key", traces)
    loaded = load_columns(tmp_path / "c", "key")
    assert loaded is not None
    for before, after in zip(traces, loaded, strict=True):
        assert_same(before, after)
    assert load_columns(tmp_path / "c", "other key") is None
    assert load_columns(tmp_path / "nowhere", "key") is None
    with pytest.raises(ValueError, match="read-only"):
        loaded[0].start_ns[0] = 1
    assert [path.name for path in tmp_path.iterdir()] == ["c"], "no temporary file stays"


def test_real_columns_come_back_from_the_cache_as_they_were_read(real_traces: Path, tmp_path: Path) -> None:
    for path in ("mi300x_resnet_rccl/resnet_act_checkpoint.json.gz", "cpu/mem.pt.trace.json.gz"):
        traces = FORMATS["kineto"].read(real_traces / path, None)
        assert store_columns(tmp_path / "c", "key", traces)
        loaded = load_columns(tmp_path / "c", "key")
        assert loaded is not None
        assert_same(traces[0], loaded[0])


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 10**9), flip=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_cache_is_absent_or_whole(tmp_path_factory: Any, at: int, flip: int, cut: bool) -> None:
    place = tmp_path_factory.mktemp("cache") / "c"
    store_columns(place, "key", [sample_trace()])
    content = bytearray(place.read_bytes())
    at %= len(content)
    if cut:
        content = content[:at]
    else:
        content[at] ^= flip
    place.write_bytes(content)
    loaded = load_columns(place, "key")
    if loaded is not None:  # padding, or a text that is still a text
        assert loaded[0].start_ns.tolist() == [0, 3]
        assert loaded[0].name.max() < len(loaded[0].names)


def cached_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> TraceFile:
    monkeypatch.setattr(inputs, "MIN_TRACE_BYTES", 0)
    path = write_trace(folder / "a.json")
    (file,) = find_traces([path]).files
    return file


def test_the_second_reading_comes_from_the_cache_folder_and_nothing_lies_beside_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cached_file(tmp_path / "traces", monkeypatch)
    (first,) = read_trace_file(file, cache_folder=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["a.json"]
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.suffix == ".hlcols"
    monkeypatch.setitem(FORMATS._load(), "kineto", replace(FORMATS["kineto"], read=refuse_to_read))
    (second,) = read_trace_file(file, cache_folder=tmp_path / "cache")
    assert_same(first, second)


def refuse_to_read(path: Path, progress: Any) -> tuple[TraceColumns, ...]:
    raise AssertionError("the cache should have been used")


def test_a_changed_trace_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = cached_file(tmp_path / "traces", monkeypatch)
    read_trace_file(file, cache_folder=tmp_path / "cache")
    write_trace(file.path, count=9)
    for _ in range(2):
        (trace,) = read_trace_file(file, cache_folder=tmp_path / "cache")
        assert len(trace) == 9
        for kept in (tmp_path / "cache").iterdir():
            kept.write_bytes(kept.read_bytes()[:200])


def test_a_change_of_same_size_and_time_is_seen_in_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = cached_file(tmp_path, monkeypatch)
    before = make_key(file.path, "kineto", 1)
    facts = file.path.stat()
    file.path.write_bytes(file.path.read_bytes().replace(b"op 3", b"op 8"))
    os.utime(file.path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert make_key(file.path, "kineto", 1) != before
    assert make_key(file.path, "kineto", 2) != make_key(file.path, "kineto", 1)


def test_no_cache_is_left_where_none_is_wanted_or_the_trace_is_small(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json")
    (file,) = find_traces([path]).files
    read_trace_file(file)
    read_trace_file(file, cache_folder=tmp_path / "cache")
    assert list(tmp_path.iterdir()) == [path]


def test_the_cache_folder_is_kept_within_its_limit(tmp_path: Path) -> None:
    for at in range(4):
        place = tmp_path / f"{at}.hlcols"
        place.write_bytes(bytes(100))
        os.utime(place, (at, at))
    (tmp_path / "other").write_bytes(bytes(1000))
    trim_folder(tmp_path, limit_bytes=250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.hlcols", "3.hlcols", "other"]
