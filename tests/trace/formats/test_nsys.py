"""Exports of nsys as its versions write them, and databases that want more than to be read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import RecordingError
from hotloop.core.trace import Category
from hotloop.evidence.trace.columns import TraceColumns
from hotloop.evidence.trace.formats.nsys import read_nsys

HOST_ID = 1 << 48  # machine 0, hypervisor 1: as on a real machine
PID, MAIN, AUTOGRAD = 4001, 4001, 4050
PROCESS = HOST_ID | PID << 24
THREAD = PROCESS | MAIN
BACKWARD_THREAD = PROCESS | AUTOGRAD
INVALID = 0xFFFFFFFF

# Columns as the exporter declares them: an early schema and a late one.
EARLY: Mapping[str, str] = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, "
    "globalPid INT, demangledName INT, shortName INT, gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, "
    "blockZ INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, "
    "globalPid INT, bytes INT, copyKind INT, deprecatedSrcId INT, srcKind INT, dstKind INT",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, "
    "globalPid INT, value INT, bytes INT, graphNodeId INT, memKind INT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT, "
    "returnValue INT, callchainId INT",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INT, end INT, deviceId INT, contextId INT, streamId INT, "
    "correlationId INT, globalPid INT, syncType INT, eventId INT",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT, "
    "eventId INT",
    "NVTX_EVENTS": "start INT, end INT, eventType INT, rangeId INT, category INT, color INT, text TEXT, globalTid INT, "
    "endGlobalTid INT, textId INT, domainId INT",
    "PROFILER_OVERHEAD": "start INT, end INT, globalTid INT, nameId INT, returnValue INT",
    "TARGET_INFO_GPU": "vmId INT, id INT, name TEXT, totalMemory INT, smCount INT, computeMajor INT, computeMinor INT, "
    "threadsPerWarp INT, maxWarpsPerSm INT, cuDevice INT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INT, devStateName TEXT, name TEXT, nameEnum INT, value TEXT",
    "EXPORT_META_DATA": "name TEXT, value TEXT",
}
LATE: Mapping[str, str] = {
    **{name: columns for name, columns in EARLY.items() if name != "EXPORT_META_DATA"},
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, "
    "greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, "
    "shortName INTEGER, mangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, "
    "blockY INTEGER, blockZ INTEGER, graphNodeId INTEGER, graphId INTEGER, clusterX INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, "
    "greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, deprecatedSyncType INTEGER, "
    "syncType INTEGER, eventId INTEGER, eventSyncId INTEGER",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "timestamp INTEGER, deviceId INTEGER, contextId INTEGER, greenContextId INTEGER, "
    "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, eventId INTEGER, eventSyncId INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, "
    "greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER, "
    "graphExecId INTEGER",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, "
    "correlationId INTEGER, nameId INTEGER, overheadType INTEGER",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT, numMultiprocessors INTEGER",
    "DIAGNOSTIC_EVENT": "timestamp INTEGER, timestampType INTEGER, source INTEGER, severity INTEGER, text TEXT, "
    "globalPid INTEGER",
}


class Export:
    """Builds a database row by row; strings are interned as the exporter does."""

    def __init__(self, path: Path, schema: Mapping[str, str]) -> None:
        self.path = path
        self.schema = schema
        self.strings: dict[str, int] = {}
        self.database = sqlite3.connect(path)
        for table, columns in schema.items():
            self.database.execute(f"CREATE TABLE {table} ({columns})")

    def text(self, value: str) -> int:
        if value not in self.strings:
            self.strings[value] = len(self.strings) + 1
            self.database.execute("INSERT INTO StringIds VALUES (?, ?)", (self.strings[value], value))
        return self.strings[value]

    def add(self, table: str, **values: Any) -> None:
        names = ", ".join(values)
        marks = ", ".join("?" * len(values))
        self.database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))

    def call(self, name: str, start: int, end: int, correlation: int, thread: int = THREAD) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start, end=end, eventClass=0, globalTid=thread, correlationId=correlation, nameId=self.text(name),
            returnValue=0,
        )  # fmt: skip

    def kernel(self, name: str, start: int, end: int, correlation: int, **more: Any) -> None:
        values = dict(
            start=start, end=end, deviceId=0, contextId=1, streamId=7, correlationId=correlation, globalPid=PROCESS,
            demangledName=self.text(name), shortName=self.text(name.split("(")[0]),
            gridX=132, gridY=2, gridZ=1, blockX=256, blockY=1, blockZ=1,
        )  # fmt: skip
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", **{**values, **more})

    def nvtx(self, text: str | None, start: int | None, end: int | None, **more: Any) -> None:
        values = dict(start=start, end=end, eventType=59, text=text, globalTid=THREAD, domainId=0)
        self.add("NVTX_EVENTS", **{**values, **more})

    def gpu(self, **more: Any) -> None:
        values = dict(
            id=0, name="NVIDIA H100", totalMemory=80 << 30, smCount=132, computeMajor=9, computeMinor=0,
            threadsPerWarp=32, maxWarpsPerSm=64, cuDevice=0,
        )  # fmt: skip
        self.add("TARGET_INFO_GPU", **{**values, **more})

    def close(self) -> Path:
        self.database.commit()
        self.database.close()
        return self.path


def fill_step(export: Export) -> None:
    """One step: two ranges, a copy in, two kernels, a memset, a wait, and the calls that made them."""
    export.gpu()
    export.nvtx("step", 1000, 9000)
    export.nvtx(None, 1100, 4000, textId=export.text("forward"))
    export.call("cudaMemcpyAsync_v3020", 1200, 1300, 11)
    export.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        start=1400, end=1500, deviceId=0, contextId=1, streamId=13, correlationId=11, globalPid=PROCESS, bytes=4096,
        copyKind=1, srcKind=1, dstKind=2,
    )  # fmt: skip
    export.call("cudaLaunchKernel_v7000", 1600, 1650, 12)
    export.kernel("void gemm<float>(float*)", 2000, 3000, 12)
    export.call("cudaLaunchKernel_v7000", 4100, 4150, 13, BACKWARD_THREAD)
    export.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 4200, 6200, 13, streamId=20)
    export.call("cudaMemsetAsync_v3020", 6300, 6310, 14)
    export.add(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        start=6400, end=6450, deviceId=0, contextId=1, streamId=7, correlationId=14, globalPid=PROCESS, value=0,
        bytes=512, memKind=2,
    )  # fmt: skip
    export.call("cudaDeviceSynchronize_v3020", 6500, 8000, 15)
    export.add("PROFILER_OVERHEAD", start=8100, end=8200, globalTid=THREAD, nameId=export.text("Buffer flush"))


def make_early(path: Path) -> Path:
    export = Export(path, EARLY)
    fill_step(export)
    export.add(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        start=6510, end=7990, deviceId=0, contextId=1, streamId=INVALID, correlationId=15, globalPid=PROCESS,
        syncType=1, eventId=INVALID,
    )  # fmt: skip
    export.add("EXPORT_META_DATA", name="EXPORT_PRODUCT_VERSION", value="2021.5.1.117")
    export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node3")
    return export.close()


def make_late(path: Path) -> Path:
    export = Export(path, LATE)
    fill_step(export)
    export.add(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        start=6510, end=7990, deviceId=0, contextId=1, streamId=INVALID, correlationId=15, globalPid=PROCESS,
        syncType=4, eventId=INVALID,
    )  # fmt: skip
    for name, value in {
        "EXPORT_PRODUCT_VERSION": "2025.5.2.266",
        "EXPORT_SCHEMA_VERSION": "3.24.0",
        "EXPORT_PARAM_TIME_SHIFT": "0",
    }.items():
        export.add("META_DATA_EXPORT", name=name, value=value)
    for name, value in [
        ("PROCESS_0:ENVIRONMENT_VARIABLE", 'WANDB_API_KEY="secret"'),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", 'RANK="3"'),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", 'WORLD_SIZE="8"'),
        ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph"),
    ]:
        export.add("META_DATA_CAPTURE", name=name, value=value)
    export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node3")
    export.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value="HF_TOKEN=hf_secret;PATH=/bin")
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_750_000_000_000_000_000)
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=PID)
    return export.close()


def read_one(path: Path) -> TraceColumns:
    (trace,) = read_nsys(path)
    return trace


def rows_of(trace: TraceColumns, *categories: Category) -> list[tuple[Any, ...]]:
    """(category, name, start, duration, thread label, stream label, correlation) on the file's own clock."""
    return [
        (
            Category(int(trace.category[row])).name,
            trace.names[trace.name[row]],
            int(trace.start_ns[row]) + trace.facts.epoch_ns,
            int(trace.duration_ns[row]),
            trace.thread_labels[trace.thread[row]],
            trace.stream_labels[trace.stream[row]] if trace.stream[row] >= 0 else None,
            int(trace.correlation[row]),
        )
        for row in range(len(trace))
        if not categories or Category(int(trace.category[row])) in categories
    ]


def facts_of(trace: TraceColumns, name: str) -> dict[str, Any]:
    """Value of a sparse integer fact by the name of the event."""
    rows, values = trace.integers(name)
    return {trace.names[trace.name[row]]: value for row, value in zip(rows.tolist(), values.tolist(), strict=True)}


@pytest.mark.parametrize("make", [make_early, make_late])
def test_every_table_becomes_events(tmp_path: Path, make: Any) -> None:
    trace = read_one(make(tmp_path / "r.sqlite"))
    assert rows_of(trace) == [
        ("ANNOTATION", "step", 1000, 8000, "4001", None, -1),
        ("ANNOTATION", "forward", 1100, 2900, "4001", None, -1),
        ("RUNTIME", "cudaMemcpyAsync", 1200, 100, "4001", None, 11),
        ("MEMCPY", "Memcpy HtoD (Pinned -> Device)", 1400, 100, "stream 13", "13", 11),
        ("RUNTIME", "cudaLaunchKernel", 1600, 50, "4001", None, 12),
        ("KERNEL", "void gemm<float>(float*)", 2000, 1000, "stream 7", "7", 12),
        ("RUNTIME", "cudaLaunchKernel", 4100, 50, "4050", None, 13),
        ("KERNEL", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 4200, 2000, "stream 20", "20", 13),
        ("RUNTIME", "cudaMemsetAsync", 6300, 10, "4001", None, 14),
        ("MEMSET", "Memset (Device)", 6400, 50, "stream 7", "7", 14),
        ("RUNTIME", "cudaDeviceSynchronize", 6500, 1500, "4001", None, 15),
        ("SYNC", "Context Sync", 6510, 1480, "gpu", None, 15),
        ("OVERHEAD", "Buffer flush", 8100, 100, "4001", None, -1),
    ]
    assert trace.processes == ("4001",)
    assert trace.device.tolist().count(0) == 5
    assert facts_of(trace, "bytes") == {"Memcpy HtoD (Pinned -> Device)": 4096, "Memset (Device)": 512}
    assert trace.facts.has_sync
    assert not [note for note in trace.notes if note.level != "info"]


def test_what_the_export_says_about_itself(tmp_path: Path) -> None:
    trace = read_one(make_late(tmp_path / "r.sqlite"))
    assert "secret" not in repr(trace.facts) + repr(trace.notes) + repr(trace.names)
    facts = trace.facts
    assert (facts.format, facts.source, facts.host) == ("nsys", "r.sqlite", "node3")
    assert (facts.rank, facts.rank_source, facts.world_size) == (3, "environment", 8)
    assert (facts.epoch_ns, facts.unix_base_ns) == (1000, 1_750_000_000_000_000_000)
    (device,) = facts.devices
    assert (device.index, device.name, device.sm_count) == (0, "NVIDIA H100", 132)
    early = read_one(make_early(tmp_path / "early.sqlite")).facts
    assert (early.rank, early.unix_base_ns) == (None, None)


@pytest.mark.parametrize(
    ("shift", "normalized", "expected"),
    [("0", "false", 1_750_000_000_000_000_000), ("100", "false", 1_749_999_999_999_999_900), ("100", "true", -100)],
)
def test_times_that_the_exporter_moved_are_moved_back(
    tmp_path: Path, shift: str, normalized: str, expected: int
) -> None:
    path = make_late(tmp_path / "r.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE META_DATA_EXPORT SET value = ? WHERE name = 'EXPORT_PARAM_TIME_SHIFT'", (shift,))
        database.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PARAM_TIME_NORMALIZE', ?)", (normalized,))
    database.close()
    assert read_one(path).facts.unix_base_ns == expected


def test_operators_that_torch_emits_are_operators(tmp_path: Path) -> None:
    export = Export(tmp_path / "r.sqlite", LATE)
    export.call("cudaLaunchKernel_v7000", 30, 40, 1)
    export.kernel("k", 50, 60, 1)
    export.nvtx("aten::mm, seq = 12, op_id = 34, sizes = [[2, 3], [3, 4], []], input_op_ids = [(1,0)]", 10, 90)
    export.nvtx("aten::view, op_id = 35", 12, 13)
    export.nvtx("MmBackward0, seq = 12", 100, 110, globalTid=BACKWARD_THREAD)
    export.nvtx("aten::empty", 14, 15)
    export.nvtx("epoch, part = 2", 1, 200)
    trace = read_one(export.close())
    assert [(kind, name) for kind, name, *_ in rows_of(trace, Category.CPU_OP, Category.ANNOTATION)] == [
        ("ANNOTATION", "epoch, part = 2"),
        ("CPU_OP", "aten::mm"),
        ("CPU_OP", "aten::view"),
        ("CPU_OP", "aten::empty"),
        ("CPU_OP", "MmBackward0"),
    ]
    assert facts_of(trace, "sequence_number") == {"aten::mm": 12, "MmBackward0": 12}
    rows, indices, table = trace.texts("shapes")
    assert [table[index] for index in indices] == ["[[2,3],[3,4],[]]"]
    assert trace.names[trace.name[rows[0]]] == "aten::mm"
    assert trace.facts.has_shapes


def test_ranges_domains_and_open_ranges(tmp_path: Path) -> None:
    export = Export(tmp_path / "r.sqlite", LATE)
    export.call("cudaLaunchKernel_v7000", 30, 40, 1)
    export.kernel("k", 50, 60, 1)
    export.nvtx("NCCL", 0, None, eventType=75, domainId=2)
    export.nvtx("ncclAllReduce", 20, 45, domainId=2)
    export.nvtx("across threads", 10, 70, eventType=60, endGlobalTid=BACKWARD_THREAD, rangeId=9)
    export.nvtx("never closed", 15, None)
    export.nvtx("a point", 16, None, eventType=34)
    export.nvtx("a category", None, None, eventType=33)
    trace = read_one(export.close())
    assert [name for _, name, *_ in rows_of(trace, Category.ANNOTATION)] == ["across threads", "ncclAllReduce"]
    assert {note.code: note.count for note in trace.notes} == {"open-ranges": 1, "nvtx-marks": 1}


def test_waits_for_events_name_the_record_that_they_wait_for(tmp_path: Path) -> None:
    """By number in late files; in early ones by the last record before, whatever syncType says."""
    for schema in (EARLY, LATE):
        export = Export(tmp_path / f"{len(schema)}.sqlite", schema)
        export.kernel("k", 50, 60, 1)
        late = schema is LATE
        for correlation, stream, number in ((5, 20, 1), (9, 21, 2), (30, 22, 3)):
            record = dict(
                deviceId=0, contextId=1, streamId=stream, correlationId=correlation, globalPid=PROCESS, eventId=4
            )
            export.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", **record, **({"eventSyncId": number} if late else {}))
        for start, stream, event, correlation, number in (
            (100, 7, 4, 10, 2),
            (110, INVALID, 4, 6, 1),
            (120, 7, INVALID, 11, None),
            (130, 7, 4, 4, None),
            (140, 7, 99, 12, None),
        ):
            wait = dict(start=start, end=start + 5, deviceId=0, contextId=1, streamId=stream, correlationId=correlation)
            wait |= dict(globalPid=PROCESS, syncType=2, eventId=event)
            export.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **wait, **({"eventSyncId": number} if late else {}))
        trace = read_one(export.close())
        syncs = np.flatnonzero(trace.category == Category.SYNC)
        assert [trace.names[trace.name[row]] for row in syncs] == [
            "Stream Wait Event", "Event Sync", "Stream Sync", "Stream Wait Event", "Stream Wait Event",
        ]  # fmt: skip
        rows, correlations = trace.integers("wait_on_record_correlation")
        assert dict(zip(rows.tolist(), correlations.tolist(), strict=True)) == {syncs[0]: 9, syncs[1]: 5}
        assert trace.integers("wait_on_stream")[1].tolist() == [21, 20]


def test_whole_graphs_are_device_work_with_a_warning(tmp_path: Path) -> None:
    export = Export(tmp_path / "r.sqlite", LATE)
    export.call("cudaGraphLaunch_v10000", 10, 20, 1)
    export.add(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        start=30, end=90, deviceId=0, contextId=1, streamId=7, correlationId=1, globalPid=PROCESS, graphId=5,
        graphExecId=6,
    )  # fmt: skip
    export.call("cudaGraphLaunch_v10000", 100, 120, 2)
    export.kernel("inside", 130, 140, 2, graphNodeId=77, graphId=5)
    trace = read_one(export.close())
    assert [row[1:4] for row in rows_of(trace, Category.KERNEL)] == [("CUDA graph 5", 30, 60), ("inside", 130, 10)]
    (note,) = [note for note in trace.notes if note.level == "warning"]
    assert (note.code, note.count) == ("whole-graphs", 1)
    assert "--cuda-graph-trace=node" in note.message


def test_each_process_with_a_gpu_is_a_trace_of_its_own(tmp_path: Path) -> None:
    export = Export(tmp_path / "r.sqlite", LATE)
    export.gpu()
    export.gpu(id=1, cuDevice=1, name="NVIDIA A40", smCount=84)
    export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value='RANK="0"')  # of the launcher
    for number, (pid, card) in enumerate(((600, 1), (500, 0))):
        thread = HOST_ID | pid << 24 | pid
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=card, cudaId=0, pid=pid)
        export.call("cudaLaunchKernel_v7000", 10, 20, 7, thread)
        export.kernel(f"k{pid}", 30 + number, 40, 7, globalPid=HOST_ID | pid << 24)
    loader = HOST_ID | 700 << 24 | 700
    export.nvtx("read", 1, 2, globalTid=loader)
    traces = read_nsys(export.close())
    assert [trace.processes for trace in traces] == [("600",), ("500",)]
    assert [[row[1] for row in rows_of(trace)] for trace in traces] == [
        ["cudaLaunchKernel", "k600"],
        ["cudaLaunchKernel", "k500"],
    ]
    assert [(trace.facts.rank, trace.facts.rank_source) for trace in traces] == [(None, "unknown")] * 2
    assert [trace.facts.devices[0].name for trace in traces] == ["NVIDIA A40", "NVIDIA H100"]
    assert [(note.code, note.count) for note in traces[0].notes if note.code == "other-processes"] == [
        ("other-processes", 1)
    ]


def test_missing_tables_and_columns_are_said(tmp_path: Path) -> None:
    schema = {
        "StringIds": "id INTEGER, value TEXT",
        "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER, end INTEGER, demangledName INTEGER",
        "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER, bytes INTEGER",
    }
    export = Export(tmp_path / "r.sqlite", schema)
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", start=10, end=30, demangledName=export.text("k"))
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", start=40, end=50, demangledName=12345)
    trace = read_one(export.close())
    assert [row[1:4] for row in rows_of(trace)] == [("k", 10, 20), ("(unnamed kernel)", 40, 10)]
    assert {note.code for note in trace.notes} == {"missing-columns", "no-runtime-events"}
    texts = " ".join(note.message for note in trace.notes)
    assert "CUPTI_ACTIVITY_KIND_MEMCPY was not read: it has no start and end" in texts
    assert "deviceId, streamId, correlationId, globalPid" in texts


def test_an_export_without_device_work_gives_its_busiest_process(tmp_path: Path) -> None:
    export = Export(tmp_path / "r.sqlite", EARLY)
    export.nvtx("busy", 1, 2)
    export.nvtx("busier", 3, 4)
    export.nvtx("other", 5, 6, globalTid=HOST_ID | 9 << 24 | 9)
    trace = read_one(export.close())
    assert [row[1] for row in rows_of(trace)] == ["busy", "busier"]
    assert {"no-device-events", "no-runtime-events", "other-processes"} == {note.code for note in trace.notes}


def test_complaints_of_nsys_about_lost_events_are_passed_on(tmp_path: Path) -> None:
    export = Export(tmp_path / "r.sqlite", LATE)
    export.kernel("k", 1, 2, 1)
    for severity, text in (
        (2, "Not all CUDA events might have been collected."),
        (2, "Unable to collect CPU kernel IP samples.\nTry\nsudo"),
        (1, "Number of CUDA events lost: 0"),
    ):
        export.add("DIAGNOSTIC_EVENT", severity=severity, text=text)
    notes = read_one(export.close()).notes
    assert [note.message for note in notes if note.code == "nsys-diagnostic"] == [
        "nsys reports: Not all CUDA events might have been collected."
    ]


@pytest.mark.parametrize("name", ["run 1.nsys-rep", "old.qdrep", "BIG.NSYS-REP"])
def test_a_report_in_nvidias_format_names_the_command(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"anything")
    with pytest.raises(RecordingError, match="nsys export --type sqlite --output") as caught:
        read_nsys(path)
    assert str(path.with_suffix(".sqlite")) in str(caught.value)
    assert "\n" not in str(caught.value)


# Hostile and damaged files


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    text = tmp_path / "a.sqlite"
    text.write_bytes(b"hello")
    nothing = Export(tmp_path / "b.sqlite", {"people": "name TEXT"}).close()
    empty = Export(tmp_path / "c.sqlite", EARLY).close()
    for path, message in (
        (text, "not an SQLite database"),
        (nothing, "without nsys event tables"),
        (empty, "without events"),
        (tmp_path / "missing.sqlite", "cannot be read"),
    ):
        with pytest.raises(RecordingError, match=message) as caught:
            read_nsys(path)
        assert "\n" not in str(caught.value)


def test_reading_writes_nothing_beside_the_file(tmp_path: Path) -> None:
    path = make_late(tmp_path / "it's #1 100%?.sqlite")
    before = path.read_bytes()
    path.chmod(0o444)
    read_one(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_file_that_was_cut_off_is_one_clear_error(tmp_path: Path) -> None:
    data = make_late(tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    for length in range(0, len(data), len(data) // 20):
        path.write_bytes(data[:length])
        with pytest.raises(RecordingError) as caught:
            read_nsys(path)
        assert "\n" not in str(caught.value)


@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=20))
def test_a_damaged_file_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, changes: Sequence[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = folder / "nsys-whole.sqlite"
    if not whole.exists():
        make_late(whole)
    data = bytearray(whole.read_bytes())
    for at, byte in changes:
        data[at % len(data)] = byte
    path = folder / "nsys-damaged.sqlite"
    path.write_bytes(bytes(data))
    try:
        traces: Iterable[TraceColumns] = read_nsys(path)
    except RecordingError:
        return
    for trace in traces:
        assert (np.diff(trace.start_ns) >= 0).all()
        assert (trace.duration_ns >= 0).all()
