"""Memory snapshots as torch writes them, and pickles that want more than to be read."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_traces import TRACES

from hotloop.core.errors import RecordingError
from hotloop.core.findings import Where
from hotloop.core.memory_snapshot import TIMELINE_CATEGORIES
from hotloop.trace.formats.memory_snapshot import (
    SnapshotLimits,
    read_memory_snapshot,
    read_memory_timeline,
    read_plain_pickle,
    summarize_snapshot,
)

TIMELINE = TRACES / "memory" / "memory_timeline.raw.gz"

TORCH_FRAME = {
    "filename": "/env/lib/python3.11/site-packages/torch/nn/modules/module.py",
    "line": 1773,
    "name": "_call",
}
CPP_FRAME = {"filename": "CUDACachingAllocator.cpp", "line": 0, "name": "c10::malloc"}
MODEL_FRAME = {"filename": "/home/me/model.py", "line": 12, "name": "forward"}
TRAIN_FRAME = {"filename": "/home/me/train.py", "line": 40, "name": "main"}
MODEL = Where(file="/home/me/model.py", line=12, function="forward")
TRAIN = Where(file="/home/me/train.py", line=40, function="main")


def block(
    address: int, size: int, state: str = "active_allocated", *frames: dict[str, Any], **more: Any
) -> dict[str, Any]:
    requested = more.pop("requested", size)
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": list(frames),
        **more,
    }


def segment(address: int, *blocks: dict[str, Any], device: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "device": device,
        "address": address,
        "total_size": sum(part["size"] for part in blocks),
        "allocated_size": sum(part["size"] for part in blocks if part["state"] == "active_allocated"),
        "active_size": sum(part["size"] for part in blocks if part["state"] != "inactive"),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": list(blocks),
        **more,
    }


def event(action: str, address: int, size: int, *frames: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": list(frames), **more}


def make_snapshot() -> dict[str, Any]:
    """Two segments; three allocations live at the end, one of them older than the events; a higher peak before."""
    return {
        "segments": [
            segment(
                1000,
                block(1000, 512, "active_allocated", TORCH_FRAME, MODEL_FRAME, TRAIN_FRAME, requested=500),
                block(1512, 1024, "inactive"),
                block(2536, 512, "active_awaiting_free", TRAIN_FRAME, requested=400),
                block(3048, 512, "active_allocated", CPP_FRAME, requested=512),
            ),
            segment(9000, block(9000, 2048, "inactive")),
        ],
        "device_traces": [
            [
                event("segment_alloc", 9000, 2048, time_us=1_700_000_000_000_000),
                event("alloc", 9000, 2000, MODEL_FRAME, time_us=1_700_000_000_000_001),
                event("alloc", 1000, 500, TORCH_FRAME, MODEL_FRAME, TRAIN_FRAME, time_us=1_700_000_000_000_002),
                {
                    "action": "oom",
                    "size": 1 << 40,
                    "stream": 0,
                    "device_free": 77,
                    "frames": [TRAIN_FRAME],
                    "time_us": 1_700_000_000_000_003,
                },
                event("free_requested", 9000, 2000, TRAIN_FRAME, time_us=1_700_000_000_000_004),
                event("free_completed", 9000, 2000, TRAIN_FRAME, time_us=1_700_000_000_000_005),
                event("alloc", 2536, 400, TRAIN_FRAME, time_us=1_700_000_000_000_006),
                event("free_requested", 2536, 400, TRAIN_FRAME, time_us=1_700_000_000_000_007),
            ]
        ],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1, "roundup": {"1": 0}},
        "external_annotations": [],
    }


def write(path: Path, value: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_is_summed_by_state_segment_and_device(tmp_path: Path, protocol: int) -> None:
    snapshot = read_memory_snapshot(write(tmp_path / "s.pickle", make_snapshot(), protocol))
    (device,) = snapshot.devices
    assert (device.device, device.segment_count) == (0, 2)
    assert device.reserved_bytes == 2560 + 2048
    assert device.allocated_bytes == 1024
    assert device.active_bytes == 1536
    assert device.requested_bytes == 500 + 400 + 512
    assert device.fragmentation_bytes == 4608 - 1536
    assert (device.free_segment_bytes, device.split_bytes) == (2048, 1024)
    assert device.largest_free_block_bytes == 2048
    assert [(total.state, total.count, total.bytes) for total in device.blocks] == [
        ("active_allocated", 2, 1024),
        ("active_awaiting_free", 1, 512),
        ("inactive", 2, 3072),
    ]
    assert device.events == {"alloc": 3, "free_completed": 1, "free_requested": 2, "oom": 1, "segment_alloc": 1}
    assert snapshot.settings == {"expandable_segments": False, "max_split_size": -1}
    assert snapshot.notes == ()


def test_active_memory_is_put_down_to_the_innermost_line_of_the_user() -> None:
    (device,) = summarize_snapshot(make_snapshot(), source="s").devices
    assert {site.where: (site.bytes, site.count) for site in device.sites} == {
        MODEL: (512, 1),
        TRAIN: (512, 1),
        None: (512, 1),
    }


def test_a_library_line_stands_in_where_no_line_of_the_user_was_recorded() -> None:
    value = {"segments": [segment(0, block(0, 512, "active_allocated", CPP_FRAME, TORCH_FRAME))]}
    (device,) = summarize_snapshot(value, source="s").devices
    assert device.sites[0].where == Where(file=str(TORCH_FRAME["filename"]), line=1773, function="_call")


def test_the_peak_is_walked_back_from_the_state_at_the_end() -> None:
    (device,) = summarize_snapshot(make_snapshot(), source="s").devices
    assert device.peak is not None
    # 512 were there before the first event, 2000 and 500 came; 400 came only after 2000 had gone.
    assert device.peak.requested_bytes == 512 + 2000 + 500
    assert device.peak.reserved_bytes == 4608
    assert device.peak.event == 2
    assert device.peak.unix_ns == 1_700_000_000_000_002_000
    assert [(site.where, site.bytes, site.count) for site in device.peak.by_site] == [(MODEL, 2500, 2), (None, 512, 1)]


def test_what_was_allocated_before_the_events_and_freed_after_the_peak_has_no_line() -> None:
    value = {
        "segments": [segment(0, block(0, 512, "inactive"))],
        "device_traces": [[event("free_requested", 0, 512), event("free_completed", 0, 512)]],
    }
    (device,) = summarize_snapshot(value, source="s").devices
    assert device.peak is not None
    assert (device.peak.requested_bytes, device.peak.event, device.peak.unix_ns) == (512, -1, None)
    assert [(site.where, site.bytes, site.count) for site in device.peak.by_site] == [(None, 512, None)]
    assert device.peak.by_category == {"unknown": 512}


def test_what_is_older_than_the_recording_is_said() -> None:
    value = {
        "segments": [segment(0, block(0, 7 << 20), block(7 << 20, 1 << 20, "active_allocated", MODEL_FRAME))],
        "device_traces": [[event("alloc", 7 << 20, 1 << 20, MODEL_FRAME)]],
    }
    snapshot = summarize_snapshot(value, source="s")
    (note,) = (note for note in snapshot.notes if note.code == "memory-older")
    assert "7 MiB of the peak were allocated before recording began" in note.message


def test_a_failed_allocation_tells_what_was_in_use() -> None:
    (failed,) = summarize_snapshot(make_snapshot(), source="s").out_of_memory
    assert failed.failed_bytes == 1 << 40
    assert failed.device_free_bytes == 77
    assert failed.requested_bytes == 3012
    assert failed.reserved_bytes == 4608
    assert failed.where == TRAIN
    assert failed.unix_ns == 1_700_000_000_000_003_000


def test_events_that_contradict_the_state_give_no_peak_but_a_note() -> None:
    value = make_snapshot()
    value["device_traces"][0].append(event("alloc", 5, 10_000_000))
    snapshot = summarize_snapshot(value, source="s")
    assert snapshot.devices[0].peak is None
    assert [note.code for note in snapshot.notes] == ["memory-history-contradicts"]
    assert snapshot.out_of_memory[0].requested_bytes is None


def test_a_snapshot_without_history_says_how_to_record_it() -> None:
    snapshot = summarize_snapshot({"segments": make_snapshot()["segments"], "device_traces": [[]]}, source="s")
    assert snapshot.devices[0].peak is None
    assert [note.code for note in snapshot.notes] == ["no-memory-history"]
    assert "_record_memory_history" in snapshot.notes[0].message


def test_every_device_is_summed_alone() -> None:
    value = make_snapshot()
    value["segments"].append(segment(70, block(70, 256, "active_allocated"), device=3))
    value["device_traces"] += [[], [], [event("alloc", 70, 256)]]
    snapshot = summarize_snapshot(value, source="s")
    assert [(device.device, device.active_bytes) for device in snapshot.devices] == [(0, 1536), (3, 256)]
    assert snapshot.devices[1].peak is not None
    assert snapshot.devices[1].peak.requested_bytes == 256
    assert [(found.device, found.bytes) for found in snapshot.largest_blocks] == [(0, 512)] * 3 + [(3, 256)]


def test_segments_of_old_versions_are_read() -> None:
    """torch 1.13: no address in a block, stacks in a history, another name for a block that waits."""
    old = {
        "segments": [
            {
                "device": 0,
                "address": 100,
                "total_size": 1024,
                "stream": 0,
                "segment_type": "small",
                "blocks": [
                    {"size": 512, "state": "active_pending_free", "history": [
                        {"addr": 100, "real_size": 300, "frames": [MODEL_FRAME]}
                    ]},
                    {"size": 512, "state": "inactive"},
                ],
            }
        ]
    }  # fmt: skip
    snapshot = summarize_snapshot(old, source="s")
    (device,) = snapshot.devices
    assert (device.active_bytes, device.allocated_bytes, device.requested_bytes) == (512, 0, 300)
    assert device.sites[0].where == MODEL
    assert snapshot.largest_blocks[0].address == 100
    assert snapshot.segments[0].pool is None


def test_blocks_that_cannot_be_are_counted_and_left_out() -> None:
    value = make_snapshot()
    value["segments"][0]["blocks"].append({"size": -1, "state": "inactive"})
    value["segments"].append({"address": "here"})
    value["segments"].append(segment(50, block(50, 10, "inactive"), total_size=9))
    value["device_traces"][0].append("event")
    snapshot = summarize_snapshot(value, source="s")
    assert {note.code: note.count for note in snapshot.notes} == {
        "unreadable-block": 1,
        "unreadable-segment": 2,
        "unreadable-event": 1,
    }
    assert snapshot.devices[0].reserved_bytes == 4608


@pytest.mark.parametrize("value", [{}, {"segments": 3}, [1], "text", None, {"segments": [{"x": 1}]}])
def test_another_pickle_is_refused_in_one_line(tmp_path: Path, value: object) -> None:
    with pytest.raises(RecordingError, match="not a memory snapshot") as caught:
        read_memory_snapshot(write(tmp_path / "other.pickle", value))
    assert "\n" not in str(caught.value)


# The pickle machine


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=8), inner, max_size=6)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner)
        | st.lists(inner, min_size=4, max_size=6).map(tuple)
    ),
    max_leaves=30,
)


@given(value=plain, protocol=st.sampled_from([3, 4, 5]))  # 2 builds bytes by a call
def test_plain_values_are_read_as_pickle_reads_them(
    tmp_path_factory: pytest.TempPathFactory, value: Any, protocol: int
) -> None:
    path = tmp_path_factory.getbasetemp() / f"plain{os.getpid()}.pickle"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    assert read_plain_pickle(path) == value


@pytest.mark.parametrize("count", [3, 200, 70_000])
def test_shared_values_are_read_as_pickle_reads_them(tmp_path: Path, count: int) -> None:
    frames = [{"name": f"f{number}", "line": number} for number in range(400)]
    value = [frames[number % 400] for number in range(count)] + [frames[:3], frames[300:]]
    found = read_plain_pickle(write(tmp_path / "shared.pickle", value))
    assert found == value
    assert isinstance(found, list)
    assert found[0] is found[-2][0]


class _Reduce:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


class _Plain:
    """Pickled with NEWOBJ and BUILD."""

    def __init__(self) -> None:
        self.x = 1


def _attacks() -> dict[str, Callable[[str], bytes]]:
    return {
        "reduce": lambda marker: pickle.dumps({"segments": [_Reduce(marker)]}),
        "reduce-protocol-0": lambda marker: pickle.dumps(_Reduce(marker), protocol=0),
        "reduce-protocol-2": lambda marker: pickle.dumps(_Reduce(marker), protocol=2),
        "reduce-in-the-middle": lambda marker: pickle.dumps({**make_snapshot(), "more": _Reduce(marker)}),
        "global": lambda marker: f"cos\nsystem\n(S'touch {marker}'\ntR.".encode(),
        "stack-global": lambda marker: (
            b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c"
            + bytes([len(marker) + 6])
            + f"touch {marker}".encode()
            + b"\x85R."
        ),
        "inst": lambda marker: f"(S'touch {marker}'\nios\nsystem\n.".encode(),
        "obj": lambda marker: b"(cos\nsystem\nS'touch " + marker.encode() + b"'\no.",
        "new-object-and-build": lambda marker: pickle.dumps(_Plain(), protocol=4),
        "ext1": lambda marker: b"\x80\x02\x82\x01.",
        "ext2": lambda marker: b"\x80\x02\x83\x01\x00.",
        "ext4": lambda marker: b"\x80\x02\x84\x01\x00\x00\x00.",
        "build": lambda marker: b"\x80\x02}}b.",
        "persistent-id": lambda marker: b"\x80\x02X\x01\x00\x00\x00aQ.",
        "persistent-id-text": lambda marker: b"Pabc\n.",
    }


@pytest.mark.parametrize("name", sorted(_attacks()))
def test_a_pickle_that_tries_to_run_code_is_refused_and_runs_none(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "was-run"
    path = tmp_path / "bad.pickle"
    path.write_bytes(_attacks()[name](str(marker)))
    with pytest.raises(RecordingError, match=r"can run code|which memory snapshots do not have") as caught:
        read_memory_snapshot(path)
    assert "\n" not in str(caught.value)
    assert not marker.exists()


def test_the_attack_does_run_where_pickle_itself_loads_it(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    marker = tmp_path / "was-run"
    pickle.loads(_attacks()["reduce"](str(marker)))
    assert marker.exists()


def _bombs() -> dict[str, tuple[bytes, str]]:
    doubling = b"\x80\x04]\x94" + b"".join(
        b"(h" + bytes([index]) + b"h" + bytes([index]) + b"t\x94" for index in range(200)
    )
    return {
        "text-of-an-exabyte": (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.", "announces"),
        "bytes-of-4-gigabytes": (b"\x80\x04B" + struct.pack("<I", 0xFFFFFFFF) + b"x.", "announces"),
        "huge-integer": (b"\x80\x04\x8a\xff" + b"\x01" * 255 + b".", "integer of 255 bytes"),
        "long-integer-opcode": (
            b"\x80\x04\x8b" + struct.pack("<I", 1 << 30) + b"\x01.",
            "which memory snapshots do not have",
        ),
        "decimal-integer": (b"I" + b"9" * 100_000 + b"\n.", "which memory snapshots do not have"),
        "nesting-by-marks": (b"\x80\x04" + b"(" * 100_000, "containers"),
        "nesting-by-lists": (b"\x80\x04" + b"]" * 3_000_000 + b"a" * 2_999_999 + b".", "its stack exceeds"),
        "many-containers": (
            b"\x80\x04(" + b"}0" * 10 + b"}" * 900_000 + b"l.",
            "which memory snapshots do not have|memory",
        ),
        "doubling": (doubling + b".", "ends in the middle"),
        "dict-of-tuples": (b"\x80\x04}(K\x01K\x02\x86K\x03u.", "not text"),
        "dict-of-integers": (b"\x80\x04}K\x01K\x02s.", "not text"),
        "append-to-a-dict": (b"\x80\x04}K\x01a.", "not a list"),
        "set-in-a-list": (b"\x80\x04]\x8c\x01aK\x01s.", "not a dict"),
        "pop-below-the-stack": (b"\x80\x04a.", "damaged"),
        "no-mark": (b"\x80\x04]K\x01e.", "damaged"),
        "not-utf-8": (b"\x80\x04\x8c\x02\xff\xfe.", "not a pickle of plain values"),
        "future-protocol": (b"\x80\x09N.", "protocol 9"),
        "empty": (b"", "empty"),
        "text-file": (b"hello", "which memory snapshots do not have|damaged"),
    }


@pytest.mark.parametrize("name", sorted(_bombs()))
def test_a_pickle_bomb_costs_neither_time_nor_memory(tmp_path: Path, name: str) -> None:
    data, message = _bombs()[name]
    path = tmp_path / "bomb.pickle"
    path.write_bytes(data)
    began = time.monotonic()
    with pytest.raises(RecordingError, match=message):
        read_memory_snapshot(path)
    assert time.monotonic() - began < 10


def test_a_value_remembered_far_away_costs_nothing(tmp_path: Path) -> None:
    """C's unpickler makes a table up to that number, 32 GiB."""
    path = tmp_path / "far.pickle"
    path.write_bytes(b"\x80\x04]r\xff\xff\xff\xff.")
    assert read_plain_pickle(path) == []


def test_memory_and_size_are_bounded(tmp_path: Path) -> None:
    path = write(tmp_path / "s.pickle", make_snapshot())
    with pytest.raises(RecordingError, match="more than the limit of 0 MiB"):
        read_memory_snapshot(path, SnapshotLimits(file_bytes=10))
    with pytest.raises(RecordingError, match="MiB of memory"):
        read_memory_snapshot(path, SnapshotLimits(memory_bytes=100))
    with pytest.raises(RecordingError, match="more blocks and events"):
        read_memory_snapshot(path, SnapshotLimits(visits=5))


def test_a_long_read_is_given_up(tmp_path: Path) -> None:
    path = write(tmp_path / "long.pickle", [[number] for number in range(200_000)])
    with pytest.raises(RecordingError, match="longer than 0 s"):
        read_plain_pickle(path, SnapshotLimits(seconds=0.0))


def test_a_list_that_holds_itself_is_no_snapshot(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecordingError, match="not a memory snapshot"):
        read_memory_snapshot(write(tmp_path / "loop.pickle", loop))


def test_one_shared_segment_a_million_times_is_not_walked_for_ever(tmp_path: Path) -> None:
    shared = segment(0, *[block(0, 0, "inactive")] * 100_000)
    path = write(tmp_path / "shared.pickle", {"segments": [shared] * 100_000})
    with pytest.raises(RecordingError, match="more blocks and events"):
        read_memory_snapshot(path, SnapshotLimits(visits=1_000_000))


def test_a_snapshot_cut_off_anywhere_is_one_clear_error(tmp_path: Path) -> None:
    data = pickle.dumps(make_snapshot())
    path = tmp_path / "cut.pickle"
    for length in range(1, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(RecordingError) as caught:
            read_memory_snapshot(path)
        assert "\n" not in str(caught.value)


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_damaged_snapshot_is_read_or_refused_but_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    data = bytearray(pickle.dumps(make_snapshot()))
    data[at % len(data)] = byte
    path = tmp_path_factory.getbasetemp() / f"damaged{os.getpid()}.pickle"
    path.write_bytes(bytes(data))
    try:
        snapshot = read_memory_snapshot(path)
    except RecordingError:
        return
    assert all(device.fragmentation_bytes >= 0 for device in snapshot.devices)


# The raw timeline


def write_timeline(path: Path, rows: object) -> Path:
    path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    return path


ROWS = [
    [-1, 1, 100, 0],
    [1_700_000_000_000_000_000, 2, 50, 4],
    [1_700_000_000_000_000_005, 3, -50, 4],
    [1_700_000_000_000_000_005, 3, 50, 5],
    [1_700_000_000_000_000_010, 2, 7, 7],
    [1_700_000_000_000_000_020, 4, -50, 5],
]


def test_a_raw_timeline_is_summed_by_category(tmp_path: Path) -> None:
    timeline = read_memory_timeline(write_timeline(tmp_path / "t.raw.json.gz", ROWS))
    assert timeline.peak_bytes == 157
    assert (timeline.peak_row, timeline.peak_unix_ns) == (4, 1_700_000_000_000_000_010)
    assert {key: value for key, value in timeline.peak_by_category.items() if value} == {
        "parameter": 100,
        "gradient": 50,
        "unknown": 7,
    }
    assert timeline.final_bytes == 107
    assert timeline.unix_ns.tolist()[0] == -1
    assert timeline.notes == ()


def test_a_timeline_in_microseconds_becomes_nanoseconds(tmp_path: Path) -> None:
    timeline = read_memory_timeline(
        write_timeline(tmp_path / "t.raw.json.gz", [[-1, 1, 5, 0], [1_700_000_000_000_000, 2, 5, 0]])
    )
    assert timeline.unix_ns.tolist() == [-1, 1_700_000_000_000_000_000]


def test_an_empty_timeline_has_no_peak(tmp_path: Path) -> None:
    timeline = read_memory_timeline(write_timeline(tmp_path / "t.raw.json.gz", []))
    assert (timeline.peak_row, timeline.peak_bytes, timeline.peak_unix_ns) == (-1, 0, None)


def test_odd_rows_are_counted(tmp_path: Path) -> None:
    rows = [*ROWS, [1, 2, 3], [1.5, 1, 1, 0], [1, 9, 1, 0], [1, 1, 1, 8], [1, 1, 1 << 60, 0], [True, 1, 1, 0]]
    timeline = read_memory_timeline(write_timeline(tmp_path / "t.raw.json.gz", rows))
    assert timeline.final_bytes == 107
    assert [(note.code, note.count) for note in timeline.notes] == [("unreadable-rows", 6)]


@pytest.mark.parametrize("rows", [{}, 3, [3], [["x"]], [[1, 2], [[1], [2]]]])
def test_another_json_is_refused(tmp_path: Path, rows: object) -> None:
    with pytest.raises(RecordingError, match="not a raw"):
        read_memory_timeline(write_timeline(tmp_path / "t.json.gz", rows))


def test_a_damaged_or_endless_timeline_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.raw.json.gz"
    path.write_bytes(gzip.compress(json.dumps(ROWS).encode())[:-12])
    with pytest.raises(RecordingError, match="cannot be read"):
        read_memory_timeline(path)
    path.write_bytes(gzip.compress(b" " * 5_000_000))
    with pytest.raises(RecordingError, match="unpacks to more than"):
        read_memory_timeline(path, SnapshotLimits(unpacked_bytes=1_000_000))
    path.write_bytes(b"[" * 200_000)
    with pytest.raises(RecordingError, match="not a raw memory timeline"):
        read_memory_timeline(path)


@pytest.mark.skipif(not TIMELINE.exists(), reason="the shared traces are not beside the repository")
def test_a_real_timeline_of_resnet50() -> None:
    timeline = read_memory_timeline(TIMELINE)
    assert len(timeline.bytes) == 16_845
    assert timeline.notes == ()
    assert timeline.peak_bytes == 3_082_832_104
    assert timeline.peak_row == 1639
    assert timeline.peak_by_category == dict(
        zip(
            TIMELINE_CATEGORIES,
            [102440608, 102228128, 19395584, 0, 2592465920, 67858432, 64225280, 134218152],
            strict=True,
        )
    )
    assert timeline.final_bytes == 332_060_904
    assert np.all(np.diff(timeline.unix_ns) >= 0)


STEP_FRAME = {"filename": f"{TORCH_FRAME['filename'][:-21]}/optim/adamw.py", "line": 1, "name": "step"}


@pytest.mark.parametrize(("after", "category"), [([], "optimizer_state"), ([{"action": "oom", "size": 1}], "unknown")])
def test_a_snapshot_that_the_program_wrote_was_written_after_the_step(
    after: list[dict[str, Any]], category: str
) -> None:
    """One that was written because memory ran out may be from the middle of it."""
    value = {
        "segments": [segment(0, block(0, 64, "active_allocated", STEP_FRAME))],
        "device_traces": [[event("alloc", 0, 64, STEP_FRAME), *after]],
    }
    (device,) = summarize_snapshot(value, source="s").devices
    assert device.peak is not None
    assert device.peak.by_category == {category: 64}
