"""Plain Python rows -> TraceColumns: small traces for tests.

trace = build_trace([annotation("ProfilerStep#0", 0, 100), runtime("cudaLaunchKernel", 10, 5, correlation=1),
                     kernel("gemm", 20, 50, correlation=1)])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotloop.core.trace import (
    SPARSE_INTEGERS,
    SPARSE_NUMBERS,
    SPARSE_TEXTS,
    Category,
    MemoryEvents,
    TraceFacts,
    TraceNote,
)
from hotloop.trace.columns import SparseColumn, TraceColumns, assemble_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One event. ``stream`` is a label; streams of two devices never share an id. ``sparse`` holds the facts."""

    category: Category
    name: str
    start_ns: int
    duration_ns: int
    process: str = "1"
    thread: str = "1"
    device: int = -1
    stream: str | None = None
    correlation: int = -1
    external_id: int = -1
    sparse: Mapping[str, Any] = field(default_factory=dict)


def event(
    category: Category,
    name: str,
    start_ns: int,
    duration_ns: int,
    *,
    process: str | int = 1,
    thread: str | int = 1,
    device: int = -1,
    stream: str | int | None = None,
    correlation: int = -1,
    external_id: int = -1,
    **sparse: Any,
) -> Row:
    """A row; any name of SPARSE_* may follow as a keyword."""
    unknown = sparse.keys() - {*SPARSE_INTEGERS, *SPARSE_NUMBERS, *SPARSE_TEXTS}
    if unknown:
        raise TypeError(f"no such sparse fact: {sorted(unknown)}")
    return Row(
        category=category,
        name=name,
        start_ns=start_ns,
        duration_ns=duration_ns,
        process=str(process),
        thread=str(thread),
        device=device,
        stream=None if stream is None else str(stream),
        correlation=correlation,
        external_id=external_id,
        sparse=sparse,
    )


def cpu_op(name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    return event(Category.CPU_OP, name, start_ns, duration_ns, **rest)


def runtime(name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    return event(Category.RUNTIME, name, start_ns, duration_ns, **rest)


def annotation(name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    return event(Category.ANNOTATION, name, start_ns, duration_ns, **rest)


def python(name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    return event(Category.PYTHON, name, start_ns, duration_ns, **rest)


def kernel(name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    """On device 0, stream 7, unless told otherwise; so are the next three."""
    return event(Category.KERNEL, name, start_ns, duration_ns, **_on_device(rest))


def memcpy(name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    return event(Category.MEMCPY, name, start_ns, duration_ns, **_on_device(rest))


def memset(name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    return event(Category.MEMSET, name, start_ns, duration_ns, **_on_device(rest))


def sync(name: str, start_ns: int, duration_ns: int, **rest: Any) -> Row:
    return event(Category.SYNC, name, start_ns, duration_ns, **_on_device(rest))


def _on_device(rest: Mapping[str, Any]) -> dict[str, Any]:
    device, stream = rest.get("device", 0), rest.get("stream", 7)
    return {"process": device, "thread": f"stream {stream}", **rest, "device": device, "stream": stream}


def build_facts(**changes: Any) -> TraceFacts:
    """Facts of a file that says nothing, but for the given ones."""
    facts: dict[str, Any] = {
        "source": "built.json", "format": "built", "rank": None, "rank_source": "unknown", "world_size": None,
        "backend": None, "host": None, "time_unit_ns": 1, "epoch_ns": 0, "unix_base_ns": None, "devices": (),
        "process_groups": {}, "has_shapes": False, "has_stacks": False, "has_modules": False, "has_flops": False,
        "has_memory": False, "has_sync": False, "threads": {}, "extra": {},
    }  # fmt: skip
    unknown = changes.keys() - facts.keys()
    if unknown:
        raise TypeError(f"no such facts: {sorted(unknown)}")
    return TraceFacts(**{**facts, **changes})


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


def build_trace(
    rows: Iterable[Row],
    *,
    memory: MemoryEvents | None = None,
    notes: Sequence[TraceNote] = (),
    thread_names: Mapping[tuple[str, str], str] | None = None,
    **facts: Any,
) -> TraceColumns:
    """A trace of the rows, in any order; ``facts`` as in TraceFacts, ``thread_names`` by (process, thread).

    has_sync, has_shapes, has_stacks, has_modules, has_flops and has_memory follow from the rows unless given.
    """
    events = list(rows)
    names, processes, threads, streams = _Interned(), _Interned(), _Interned(), _Interned()
    columns = {
        "start_ns": np.array([row.start_ns for row in events], dtype=np.int64),
        "duration_ns": np.array([row.duration_ns for row in events], dtype=np.int64),
        "name": np.array([names.of(row.name) for row in events], dtype=np.int32),
        "category": np.array([int(row.category) for row in events], dtype=np.int8),
        "process": np.array([processes.of(row.process) for row in events], dtype=np.int32),
        "thread": np.array([threads.of((row.process, row.thread)) for row in events], dtype=np.int32),
        "device": np.array([row.device for row in events], dtype=np.int32),
        "stream": np.array(
            [-1 if row.stream is None else streams.of((row.device, row.stream)) for row in events], dtype=np.int32
        ),
        "correlation": np.array([row.correlation for row in events], dtype=np.int64),
        "external_id": np.array([row.external_id for row in events], dtype=np.int64),
    }
    sparse = {
        **{name: _sparse(events, name, np.int64) for name in SPARSE_INTEGERS},
        **{name: _sparse(events, name, np.float64) for name in SPARSE_NUMBERS},
        **{name: _sparse_text(events, name) for name in SPARSE_TEXTS},
    }
    found = {name for name, column in sparse.items() if len(column.rows)}
    says = {
        "has_sync": any(row.category is Category.SYNC for row in events),
        "has_shapes": "shapes" in found,
        "has_stacks": "call_stack" in found or any(row.category is Category.PYTHON for row in events),
        "has_modules": "module" in found,
        "has_flops": "flops" in found,
        "has_memory": memory is not None,
        "threads": {threads.of(key): name for key, name in (thread_names or {}).items()},
    }
    return assemble_trace(
        facts=build_facts(**{**says, **facts}),
        notes=notes,
        columns=columns,
        names=names.values,
        processes=processes.values,
        thread_labels=[thread for _, thread in threads.values],
        stream_labels=[stream for _, stream in streams.values],
        memory=memory,
        sparse=sparse,
    )


class _Interned:
    """Values in the order of their first use."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._index: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        if value not in self._index:
            self._index[value] = len(self.values)
            self.values.append(value)
        return self._index[value]


def _sparse(events: Sequence[Row], name: str, kind: type[np.generic]) -> SparseColumn:
    rows = [at for at, row in enumerate(events) if name in row.sparse]
    values = np.array([events[at].sparse[name] for at in rows], dtype=kind)
    return SparseColumn(rows=np.array(rows, dtype=np.int64), values=values)


def _sparse_text(events: Sequence[Row], name: str) -> SparseColumn:
    rows = [at for at, row in enumerate(events) if name in row.sparse]
    table = _Interned()
    indices = np.array([table.of(events[at].sparse[name]) for at in rows], dtype=np.int64)
    return SparseColumn(rows=np.array(rows, dtype=np.int64), values=indices, table=table.values)
