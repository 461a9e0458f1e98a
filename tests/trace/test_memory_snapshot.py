"""Memory snapshots as torch writes them, and pickles that want more than to be read."""

from __future__ import annotations

import os
import pickle
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.errors import RecordingError
from hotloop.core.findings import Where
from hotloop.core.memory_snapshot import DeviceMemory
from hotloop.evidence.trace import memory_files
from hotloop.evidence.trace.memory_files import read_memory_file
from hotloop.evidence.trace.memory_snapshot import summarize_snapshot

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
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol=protocol))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(RecordingError) as caught:
        read_memory_file(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def only_device(value: object) -> DeviceMemory:
    (device,) = summarize_snapshot(value, "s")[0].devices
    return device


@pytest.mark.parametrize("protocol", [2, 5])
def test_a_snapshot_is_summed_by_state_segment_and_device(tmp_path: Path, protocol: int) -> None:
    file, notes = read_memory_file(write(tmp_path / "s.pickle", make_snapshot(), protocol))
    assert (file, notes) == summarize_snapshot(make_snapshot(), "s.pickle")
    (device,) = file.devices
    assert (device.device, device.segment_count, device.largest_free_block_bytes) == (0, 2, 2048)
    assert (device.reserved_bytes, device.allocated_bytes, device.active_bytes) == (2560 + 2048, 1024, 1536)
    assert (device.requested_bytes, device.fragmentation_bytes) == (500 + 400 + 512, 4608 - 1536)
    assert (device.free_segment_bytes, device.split_bytes) == (2048, 1024)
    assert [(total.state, total.count, total.bytes) for total in device.blocks] == [
        ("active_allocated", 2, 1024),
        ("active_awaiting_free", 1, 512),
        ("inactive", 2, 3072),
    ]
    assert device.events == {"alloc": 3, "free_completed": 1, "free_requested": 2, "oom": 1, "segment_alloc": 1}
    assert {site.where: (site.bytes, site.count) for site in device.sites} == dict.fromkeys(
        (MODEL, TRAIN, None), (512, 1)
    )
    assert notes == ()


def test_a_library_line_stands_in_where_no_line_of_the_user_was_recorded() -> None:
    device = only_device([segment(0, block(0, 512, "active_allocated", CPP_FRAME, TORCH_FRAME))])
    assert device.sites[0].where == Where(file=str(TORCH_FRAME["filename"]), line=1773, function="_call")


def test_the_peak_is_walked_back_from_the_state_at_the_end() -> None:
    peak = only_device(make_snapshot()).peak
    assert peak is not None
    # 512 were there before the first event, 2000 and 500 came; 400 came only after 2000 had gone.
    assert (peak.requested_bytes, peak.reserved_bytes, peak.event) == (512 + 2000 + 500, 4608, 2)
    assert [(site.where, site.bytes, site.count) for site in peak.by_site] == [(MODEL, 2500, 2), (None, 512, 1)]


def test_what_was_allocated_before_the_events_and_freed_after_the_peak_has_no_line() -> None:
    events = [event("free_requested", 0, 512), event("free_completed", 0, 512)]
    peak = only_device({"segments": [segment(0, block(0, 512, "inactive"))], "device_traces": [events]}).peak
    assert peak is not None
    assert (peak.requested_bytes, peak.event) == (512, -1)
    assert [(site.where, site.bytes, site.count) for site in peak.by_site] == [(None, 512, None)]
    assert peak.by_category == {"unknown": 512}


def test_a_failed_allocation_tells_what_was_in_use() -> None:
    (failed,) = summarize_snapshot(make_snapshot(), "s")[0].out_of_memory
    assert (failed.failed_bytes, failed.device_free_bytes) == (1 << 40, 77)
    assert (failed.requested_bytes, failed.reserved_bytes, failed.where) == (3012, 4608, TRAIN)


def test_notes_say_what_a_snapshot_cannot_tell() -> None:
    contradicting = make_snapshot()
    contradicting["device_traces"][0].append(event("alloc", 5, 10_000_000))
    older = {
        "segments": [segment(0, block(0, 7 << 20), block(7 << 20, 1 << 20, "active_allocated", MODEL_FRAME))],
        "device_traces": [[event("alloc", 7 << 20, 1 << 20, MODEL_FRAME)]],
    }
    for value, code, words, has_peak in (
        (contradicting, "memory-history-contradicts", "free more than its state", False),
        ({"segments": make_snapshot()["segments"]}, "no-memory-history", "_record_memory_history", False),
        (older, "memory-older", "7 MiB of the peak were allocated before recording began", True),
    ):
        file, notes = summarize_snapshot(value, "s")
        assert (file.devices[0].peak is not None) is has_peak
        assert [words in note.message for note in notes if note.code == code] == [True]


def test_every_device_is_summed_alone() -> None:
    value = make_snapshot()
    value["segments"].append(segment(70, block(70, 256, "active_allocated"), device=3))
    devices = summarize_snapshot(value, "s")[0].devices
    assert [(device.device, device.reserved_bytes) for device in devices] == [(0, 4608), (3, 256)]


def test_segments_of_old_versions_are_read() -> None:
    """torch 1.13: no address in a block, stacks in a history, another name for a block that waits."""
    used = {"addr": 100, "real_size": 300, "frames": [MODEL_FRAME]}
    blocks = [{"size": 512, "state": "active_pending_free", "history": [used]}, {"size": 512, "state": "inactive"}]
    file, _ = summarize_snapshot([{"device": 0, "address": 100, "total_size": 1024, "blocks": blocks}], "s")
    (device,) = file.devices
    assert (device.active_bytes, device.allocated_bytes, device.requested_bytes) == (512, 0, 300)
    assert (device.sites[0].where, file.largest_blocks[0].address) == (MODEL, 100)


@pytest.mark.parametrize(
    "value",
    [{}, {"segments": 3}, [1], "text", {"segments": [{"x": 1}]}, [segment(50, block(50, 10), total_size=9)],
     [segment(0, {"size": -1, "state": "inactive"})]],
)  # fmt: skip
def test_another_value_is_refused_in_one_line(value: object) -> None:
    with pytest.raises(RecordingError, match="not a memory snapshot"):
        summarize_snapshot(value, "s")


# Hostile and damaged files


class _Reduce:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


ATTACKS: dict[str, Callable[[str], bytes]] = {
    "reduce": lambda marker: pickle.dumps({**make_snapshot(), "more": _Reduce(marker)}),
    "reduce-protocol-0": lambda marker: pickle.dumps(_Reduce(marker), protocol=0),
    "inst": lambda marker: f"(S'touch {marker}'\nios\nsystem\n.".encode(),
    "obj": lambda marker: b"(cos\nsystem\nS'touch " + marker.encode() + b"'\no.",
    "extension": lambda marker: b"\x80\x02\x82\x01.",
    "build": lambda marker: b"\x80\x02}}b.",
    "persistent-id": lambda marker: b"\x80\x02X\x01\x00\x00\x00aQ.",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_pickle_that_tries_to_run_code_is_refused_and_runs_none(tmp_path: Path, name: str) -> None:
    refusal(write(tmp_path / "bad.pickle", ATTACKS[name](str(tmp_path / "was-run"))))
    assert not (tmp_path / "was-run").exists()


EQUAL_HASHES = b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(40_000))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x04]r\xff\xff\xff\xff.", "MiB of memory"),
        (b"\x80\x04]r\x00\xc2\xeb\x0b.", "MiB of memory"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.", "MiB of memory"),
        (b"\x80\x04" + b"]" * 300_000 + b"a" * 299_999 + b".", "not a memory snapshot"),
        (b"\x80\x04}(" + EQUAL_HASHES + b"u.", "longer than 1 s"),
        (b"", "is empty"),
        (b"hello", "complete pickle"),
    ],
)
def test_a_pickle_bomb_is_refused_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str
) -> None:
    if "longer" in message:
        monkeypatch.setattr(memory_files, "LEAST_S", 1)
    began = time.monotonic()
    assert message in refusal(write(tmp_path / "bomb.pickle", data))
    assert time.monotonic() - began < 15


def test_a_snapshot_that_was_cut_off_or_is_too_large_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pickle.dumps(make_snapshot())
    for length in range(1, len(data), len(data) // 6):
        refusal(write(tmp_path / "cut.pickle", data[:length]))
    monkeypatch.setattr(memory_files, "MOST_FILE_BYTES", 10)
    assert "more than the limit of 0 MiB" in refusal(write(tmp_path / "s.pickle", data))
