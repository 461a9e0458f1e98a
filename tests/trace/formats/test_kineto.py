"""Kineto's traces: the real ones exactly, odd ones by what matters, damaged ones without a traceback."""

from __future__ import annotations

import gzip
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.core.errors import HotloopError, TraceError
from hotloop.core.trace import DEVICE_WORK, Category
from hotloop.evidence.trace.columns import TraceColumns
from hotloop.evidence.trace.formats.kineto import read_kineto


def read(path: Path, **rest: Any) -> TraceColumns:
    (trace,) = read_kineto(path, **rest)
    return trace


def write(folder: Path, content: bytes | str | dict[str, Any] | list[Any], name: str = "t.json") -> Path:
    path = folder / name
    if not isinstance(content, (bytes, str)):
        content = json.dumps(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def op(**changes: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 10, "dur": 5}
    return {key: value for key, value in {**event, **changes}.items() if value is not ...}


def gemm(**changes: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": 3, **changes.pop("args", {})}
    return op(**{"cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "args": args, **changes})


def codes(trace: TraceColumns) -> set[str]:
    return {note.code for note in trace.notes}


def names(trace: TraceColumns) -> list[str]:
    return [trace.names[at] for at in trace.name]


# Real traces


def test_every_event_of_every_real_trace_is_there_to_the_nanosecond(real_traces: Path) -> None:
    paths = [
        path
        for path in sorted(real_traces.rglob("*.json*"))
        if path.parent.name not in ("expected", "memory") and path.is_file()
    ]
    assert len(paths) >= 30
    for path in paths:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        content = json.loads(text, parse_float=Decimal)
        events = content if isinstance(content, list) else content["traceEvents"]
        complete = [event for event in events if event["ph"] == "X"]
        trace = read(path)
        assert len(trace) == len(complete), path
        assert int(trace.duration_ns.sum()) == sum(int(Decimal(event["dur"]) * 1000) for event in complete), path
        starts = sum(int(Decimal(event["ts"]) * 1000) for event in complete)
        assert sum(trace.start_ns.tolist()) + trace.facts.epoch_ns * len(trace) == starts, path
        instants = sum(event.get("name") == "[memory]" for event in events)
        assert (len(trace.memory.time_ns) if trace.memory else 0) == instants, path
        kept = {event["args"]["correlation"] for event in complete if "correlation" in event.get("args", {})}
        assert set(trace.correlation[trace.correlation >= 0].tolist()) == kept - {0}, path


def test_device_events_and_their_span_are_those_expected(real_traces: Path) -> None:
    folders = {
        "a100_cp_simple_add", "a100_ddp_rank3of8", "cp_event_sync", "cp_event_sync_multi", "dlrm_8ranks_v100",
        "mi300x_resnet_rccl", "v100_ns_resolution",
    }  # fmt: skip
    for folder in sorted(folders):
        expected = json.loads((real_traces / "expected" / f"{folder}.json").read_text())["exact"]
        for path in sorted((real_traces / folder).glob("*.json.gz")):
            trace = read(path)
            work = np.isin(trace.category, DEVICE_WORK)
            exact = expected[str(trace.facts.rank)]
            start_ns, end_ns = trace.start_ns[work], (trace.start_ns + trace.duration_ns)[work]
            tolerance_ns = 0 if trace.facts.time_unit_ns == 1000 else 2 + 1e-8 * exact["span_us"] * 1000
            assert int(work.sum()) == exact["n_gpu_events"]
            assert abs(int(end_ns.max() - start_ns.min()) - exact["span_us"] * 1000) <= tolerance_ns
            assert len(set(trace.stream[work].tolist())) == exact["n_streams"]


def test_small_windows_give_the_same_columns_as_one_large_one(real_traces: Path) -> None:
    path = real_traces / "cpu" / "mem.pt.trace.json.gz"
    one, many = read(path, window_bytes=64 << 20), read(path, window_bytes=20_000)
    for name in ("start_ns", "duration_ns", "name", "category", "thread", "external_id", "correlation"):
        assert np.array_equal(getattr(one, name), getattr(many, name)), name
    assert one.facts == many.facts
    assert one.texts("shapes")[2] == many.texts("shapes")[2]
    assert np.array_equal(one.texts("shapes")[1], many.texts("shapes")[1])


def test_old_files_in_whole_microseconds_have_the_same_categories_as_new_ones(real_traces: Path) -> None:
    (path,) = (real_traces / "resnet50_workers_0").glob("*.json.gz")
    trace = read(path)
    count = {kind: int((trace.category == kind).sum()) for kind in Category}
    assert count[Category.KERNEL] == 8772
    assert count[Category.RUNTIME] == 11923
    assert (count[Category.MEMCPY], count[Category.MEMSET]) == (12, 312)
    assert count[Category.CPU_OP] + count[Category.ANNOTATION] == 23646
    assert trace.facts.time_unit_ns == 1000
    kernels = trace.category == Category.KERNEL
    assert (trace.external_id[kernels] > 0).any(), "'external id' in lower case is read"
    assert all(trace.names[at].startswith(("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer."))
               for at in set(trace.name[trace.category == Category.ANNOTATION].tolist()))  # fmt: skip


def test_a_new_file_tells_its_rank_groups_base_time_and_devices(real_traces: Path) -> None:
    facts = read(real_traces / "mi300x_resnet_rccl" / "resnet_act_checkpoint.json.gz").facts
    assert (facts.rank, facts.rank_source, facts.world_size) == (0, "distributedInfo", 8)
    assert facts.process_groups == {"0": tuple(range(8))}
    assert (facts.unix_base_ns, facts.time_unit_ns) == (1767189312000000000, 1)
    assert facts.devices[0].sm_count == 304
    assert facts.has_stacks
    assert facts.has_shapes


def test_collectives_carry_their_metadata(real_traces: Path) -> None:
    trace = read(real_traces / "mi300x_resnet_rccl" / "resnet_act_checkpoint.json.gz")
    rows, indices, table = trace.texts("collective")
    assert len(rows) == 30
    assert {table[at] for at in indices} >= {"allreduce", "broadcast"}
    assert int((trace.category[rows] == Category.KERNEL).sum()) == 12
    assert set(trace.integers("group_size")[1].tolist()) == {1, 8}


def test_synchronisation_says_what_it_waits_for(real_traces: Path) -> None:
    trace = read(real_traces / "cp_event_sync_multi" / "event_sync_trace.json.gz")
    assert trace.facts.has_sync
    rows, indices, table = trace.texts("sync_kind")
    assert (trace.category[rows] == Category.SYNC).all()
    assert "Stream Wait Event" in {table[at] for at in indices} or "Event Sync" in {table[at] for at in indices}
    whole_device = trace.stream[rows] == -1
    assert whole_device.any(), "a wait without a stream has none"


def test_a_kernel_without_args_lies_on_its_process_and_thread(real_traces: Path) -> None:
    (path,) = (real_traces / "odd").glob("rank-70.*")
    trace = read(path)
    (row,) = np.flatnonzero(trace.category == Category.KERNEL).tolist()
    assert (trace.device[row], trace.stream_labels[trace.stream[row]]) == (0, "0")
    assert "no-runtime-events" in codes(trace)


# Layouts


@pytest.mark.parametrize("indent", [None, 0, 1, 2, 4, "\t"])
def test_every_layout_of_the_same_events_gives_the_same_columns(tmp_path: Path, indent: Any) -> None:
    events = [
        op(name=f"op {at}", ts=at * 10, args={"Input Dims": [[at, 2], []], "nested": [{"name": "x"}, {"name": "y"}]})
        for at in range(200)
    ]
    content = json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "x"}, indent=indent)
    trace = read(write(tmp_path, content), window_bytes=3000)
    assert names(trace) == [f"op {at}" for at in range(200)]
    assert trace.texts("shapes")[2][7] == "[[7,2],[]]"
    assert not codes(trace) & {"truncated", "salvaged", "lost-events"}


def test_times_may_be_text_and_streams_may_be_text(tmp_path: Path) -> None:
    trace = read(write(tmp_path, [gemm(ts="1.5", dur="2.25", args={"stream": "stream 9"}), gemm(ts=1e3, dur=0.001)]))
    assert trace.duration_ns.tolist() == [2250, 1]
    assert trace.start_ns.tolist() == [0, 998500]
    assert [trace.stream_labels[at] for at in trace.stream] == ["stream 9", "7"]


def test_memory_instants_become_columns(tmp_path: Path) -> None:
    args = {
        "Device Type": 1,
        "Device Id": 0,
        "Bytes": -512,
        "Addr": 2**63 + 5,
        "Total Allocated": 1,
        "Total Reserved": 2,
    }
    instant = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 12.5, "s": "t", "args": args}
    trace = read(write(tmp_path, [op(), instant, {**instant, "ts": 11, "args": {"Bytes": 4}}, {**instant, "ts": "?"}]))
    assert trace.memory is not None
    assert trace.memory.time_ns.tolist() == [1000, 2500]
    assert trace.memory.bytes.tolist() == [4, -512]
    assert trace.memory.allocated_bytes.tolist() == [-1, 1]
    assert trace.memory.address.tolist() == [-1, 5 - 2**63]


# Notes


def test_events_without_duration_are_left_out_and_counted(tmp_path: Path) -> None:
    events = [op(), op(dur=...), op(dur=None), op(ts=...), op(dur=-1), op(ts="soon"), op(dur={"a": 1})]
    trace = read(write(tmp_path, events))
    assert len(trace) == 1
    counts = {note.code: note.count for note in trace.notes}
    assert (counts["no-duration"], counts["wrong-times"], counts["negative-duration"]) == (2, 3, 1)


def test_events_at_time_zero_of_a_late_clock_are_left_out(tmp_path: Path) -> None:
    late_us = 1_700_000_000_000_000
    assert len(read(write(tmp_path, [op(ts=0), op(ts=9)]))) == 2, "a clock that begins at zero"
    events = [op(ts=late_us, args={"Sequence number": 4}), gemm(ts=0, dur=0), op(ts=late_us + 7, name="b")]
    trace = read(write(tmp_path, events))
    assert trace.start_ns.tolist() == [0, 7000]
    assert trace.integers("sequence_number")[0].tolist() == [0]
    assert "zero-times" in codes(trace)


def test_device_events_of_another_clock_are_left_out_if_they_are_few(tmp_path: Path) -> None:
    late_us, day_us = 1_700_000_000_000_000, 86_400_000_000
    host = [op(ts=late_us), op(ts=late_us + 900)]
    early, good = gemm(ts=late_us - day_us), [gemm(ts=late_us + 10, dur=5), gemm(ts=late_us + 20, dur=5)]
    trace = read(write(tmp_path, [*host, early, *good]))
    assert sorted(trace.start_ns.tolist()) == [0, 10_000, 20_000, 900_000]
    assert {note.code: note.count for note in trace.notes}["impossible-times"] == 1
    assert "impossible-times" not in codes(read(write(tmp_path, [*host, early, {**early, "ts": 5}, good[0]])))
    assert "impossible-times" not in codes(read(write(tmp_path, [*host, *good])))


def test_links_between_host_and_device_are_judged(tmp_path: Path) -> None:
    launch = op(cat="cuda_runtime", name="cudaLaunchKernel", ts=100, args={"correlation": 3})
    trace = read(write(tmp_path, [launch, gemm(ts=90), gemm(ts=200, args={"correlation": 8})]))
    counts = {note.code: note.count for note in trace.notes}
    assert counts["unlinked-kernels"] == 1
    assert counts["negative-launch-delay"] == 1
    healthy = read(write(tmp_path, [launch, gemm(ts=110)]))
    assert not codes(healthy) & {"unlinked-kernels", "negative-launch-delay"}


# Damage


def some_events(count: int = 300) -> bytes:
    events = [op(name=f"op {at}", ts=at * 10, args={"External id": at + 1}) for at in range(count)]
    return json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 2}, "traceEvents": events}, indent=1).encode()


def test_a_file_cut_at_any_byte_keeps_every_event_before_the_cut(tmp_path: Path) -> None:
    whole = some_events(20)
    first = whole.index(b'"traceEvents"')
    ends = [at + 4 for at in range(len(whole)) if whole.startswith(b"\n  }", at) and whole[at + 4 : at + 5] in b",\n"]
    assert len(ends) == 20
    for cut in range(0, len(whole), 3):
        path = write(tmp_path, whole[:cut])
        if cut < first + len(b'"traceEvents": ['):
            with pytest.raises(TraceError):
                read(path)
            continue
        trace = read(path)
        assert len(trace) == sum(end <= cut for end in ends), cut
        closed = whole[:cut].rstrip().endswith((b"]", b"}")) and cut > ends[-1] + 2
        assert ("truncated" in codes(trace)) is not closed, cut
        assert trace.facts.rank == 2


@pytest.mark.parametrize("window_bytes", [2000, 1 << 20])
@pytest.mark.parametrize(
    ("bad", "kept"),
    [
        (b'"name": NaN', 300), (b'"name": "a\xff\xfeb"', 300), (b'"name": "a\x01b"', 300),
        (b'"name": "two\nlines"', 300),
        (b'"name": N/A', 300), (b'"name": -Infinity', 300), (b'"name": ["list"]', 299), (b'"name": }', 299),
        (b'"name" "x"', 299), (b'"name": {"a": 1}', 299), (b'"pid": [1]', 299), (b'"name": ]', 299),
    ],
)  # fmt: skip
def test_one_bad_event_does_not_take_its_neighbours_along(
    tmp_path: Path, bad: bytes, kept: int, window_bytes: int
) -> None:
    trace = read(write(tmp_path, some_events().replace(b'"name": "op 150"', bad)), window_bytes=window_bytes)
    assert len(trace) == kept
    assert {f"op {at}" for at in range(300) if at != 150} <= set(names(trace))
    assert trace.facts.rank == 2
    if kept == 299:
        assert "lost-events" in codes(trace)


def test_no_events_is_a_note_and_not_an_error(tmp_path: Path) -> None:
    for content in (
        b'{"traceEvents": [{"ph": ' + b"[" * 200_000,
        {"traceEvents": []},
        [],
        {"schemaVersion": 1, "traceEvents": [], "traceName": "x"},
    ):
        trace = read(write(tmp_path, content))
        assert len(trace) == 0
        assert "no-events" in codes(trace)


@pytest.mark.parametrize(
    "content",
    [b"", b"   \n", b"hello", b"\x80\x04\x95", b"PK\x03\x04", b'{"a": 1}', b"null", b'"traceEvents": []',
     b"{" * 100_000, gzip.compress(some_events())[:200] + bytes(40),
     b"\x1f\x8b", b"\x1f\x8bgarbage, not gzip", gzip.compress(b"", mtime=0), b"\xff\xfe{\x00"],
)  # fmt: skip
def test_what_is_no_trace_gives_one_clear_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(TraceError) as error:
        read(write(tmp_path, content))
    assert "t.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_gzip_that_was_cut_off_keeps_what_came_before_and_members_are_one_file(tmp_path: Path) -> None:
    random.seed(4)
    events = [op(name=f"op {random.random()}", ts=at * 10) for at in range(5_000)]
    text = json.dumps(events, indent=1).encode()
    packed = gzip.compress(text)
    cut = read(write(tmp_path, packed[: len(packed) // 2], "cut.json.gz"))
    assert 2_000 < len(cut) < 5_000
    assert ["gzip" in note.message for note in cut.notes if note.code == "truncated"] == [True]
    members = gzip.compress(text[:5000]) + gzip.compress(text[5000:]) + bytes(512)
    assert len(read(write(tmp_path, members, "t.json.gz"))) == 5_000


_SEED = some_events(30)


def assert_one_line(error: HotloopError) -> None:
    assert "\n" not in str(error)


@settings(max_examples=300, deadline=2000)
@given(
    st.lists(
        st.tuples(st.integers(0, len(_SEED) - 1), st.binary(max_size=6), st.integers(0, 40)), min_size=1, max_size=4
    )
)
def test_mutated_files_never_end_in_a_traceback(tmp_path_factory: Any, edits: list[tuple[int, bytes, int]]) -> None:
    text = _SEED
    for at, insert, removed in edits:
        text = text[:at] + insert + text[at + removed :]
    path = write(tmp_path_factory.mktemp("fuzz"), text)
    try:
        trace = read(path, window_bytes=1500)
    except HotloopError as error:
        assert_one_line(error)
        return
    assert len(trace) <= 30 + sum(len(insert) for _, insert, _ in edits)
    assert len(trace) >= 30 - 2 * sum(1 + removed // 20 for _, _, removed in edits) or trace.notes
    assert (trace.duration_ns >= 0).all()
