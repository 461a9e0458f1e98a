"""Plain Python rows -> TraceColumns: small traces for tests; and small trace files.

trace = build_trace([runtime("cudaLaunchKernel", 10, 5, correlation=1), kernel("gemm", 20, 50, correlation=1)])
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.trace import SPARSE_INTEGERS, SPARSE_NUMBERS, SPARSE_TEXTS, Category, MemoryEvents, TraceFacts
from hotloop.evidence.trace.columns import COLUMN_TYPES, Interner, SparseColumn, TraceColumns, assemble_trace

Row = dict[str, Any]


def event(category: Category, name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    """One event. ``stream`` is a label; streams of two devices never share an id. Any name of SPARSE_* may follow."""
    row = {"category": int(category), "name": name, "start_ns": start_ns, "duration_ns": duration_ns}
    return {
        **row,
        "process": 1,
        "thread": 1,
        "device": -1,
        "stream": None,
        "correlation": -1,
        "external_id": -1,
        **rest,
    }


def cpu_op(name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    return event(Category.CPU_OP, name, start_ns, duration_ns, **rest)


def runtime(name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    return event(Category.RUNTIME, name, start_ns, duration_ns, **rest)


def kernel(name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    """On device 0, stream 7, unless told otherwise."""
    place = {"device": 0, "stream": 7, **rest}
    return event(Category.KERNEL, name, start_ns, duration_ns, thread=f"stream {place['stream']}", **place)


def build_memory(rows: Iterable[tuple[int, int, int, int, int, int, int]]) -> MemoryEvents:
    """Of (time_ns, address, bytes, allocated_bytes, reserved_bytes, device_type, device_index) in time order."""
    table = np.array(list(rows), dtype=np.int64).reshape(-1, 7)
    return MemoryEvents(
        time_ns=table[:, 0],
        address=table[:, 1],
        bytes=table[:, 2],
        allocated_bytes=table[:, 3],
        reserved_bytes=table[:, 4],
        device_type=table[:, 5].astype(np.int32),
        device_index=table[:, 6].astype(np.int32),
    )


def build_trace(rows: Sequence[Row], *, memory: MemoryEvents | None = None, **facts: Any) -> TraceColumns:
    """A trace of the rows, in any order; ``facts`` as in TraceFacts."""
    names, processes, threads, streams = (Interner() for _ in range(4))
    numbered = {
        "name": [names[row["name"]] for row in rows],
        "process": [processes[row["process"]] for row in rows],
        "thread": [threads[row["process"], row["thread"]] for row in rows],
        "stream": [-1 if row["stream"] is None else streams[row["device"], row["stream"]] for row in rows],
    }
    columns = {
        name: np.array(numbered.get(name) or [row[name] for row in rows], dtype=kind)
        for name, kind in COLUMN_TYPES.items()
    }
    return assemble_trace(
        facts=build_facts(**facts),
        notes=(),
        columns=columns,
        names=list(names),
        processes=[str(process) for process in processes],
        thread_labels=[str(thread) for _, thread in threads],
        stream_labels=[str(stream) for _, stream in streams],
        memory=memory,
        sparse={fact: _gather(rows, fact) for fact in (*SPARSE_INTEGERS, *SPARSE_NUMBERS, *SPARSE_TEXTS)},
    )


def _gather(rows: Sequence[Row], fact: str) -> SparseColumn:
    at = [number for number, row in enumerate(rows) if fact in row]
    table = Interner()
    values = [table[rows[number][fact]] if fact in SPARSE_TEXTS else rows[number][fact] for number in at]
    kind = np.float64 if fact in SPARSE_NUMBERS else np.int64
    return SparseColumn(rows=np.array(at, dtype=np.int64), values=np.array(values, dtype=kind), table=list(table))


def build_facts(**changes: Any) -> TraceFacts:
    """Facts of a file that says nothing, but for the given ones."""
    facts: Mapping[str, Any] = {
        "source": "built.json", "format": "built", "rank": None, "rank_source": "unknown", "world_size": None,
        "host": None, "time_unit_ns": 1, "epoch_ns": 0, "unix_base_ns": None, "devices": (), "process_groups": {},
        "has_shapes": False, "has_stacks": False, "has_sync": False,
    }  # fmt: skip
    return TraceFacts(**{**facts, **changes})


def write_trace(
    path: Path, *, rank: int | None = None, world_size: int = 4, count: int = 5, packed: bool = False
) -> Path:
    """A file of so many operators."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op {at}", "pid": 1, "tid": 1, "ts": at, "dur": 1} for at in range(count)
    ]
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world_size}}
    text = json.dumps({"schemaVersion": 1, **info, "traceEvents": events}, indent=1).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if packed else text)
    return path
