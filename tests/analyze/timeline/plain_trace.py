"""Plain rows -> a core.trace.Trace, for tests of the analyses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from real_traces import TRACES as TRACES

from hotloop.core.trace import Category, DeviceFacts, MemoryEvents, TraceFacts, TraceNote

US = 1_000
MS = 1_000_000


@dataclass
class Row:
    """One event, times in ns. ``facts`` by the names of core.trace's sparse facts."""

    category: Category
    name: str
    start_ns: int
    duration_ns: int
    thread: str = "main"
    device: int = -1
    stream: str = ""
    correlation: int = -1
    external_id: int = -1
    facts: dict[str, Any] = field(default_factory=dict)


class PlainTrace:
    """The columns of core.trace.Trace from rows in any order."""

    def __init__(
        self,
        rows: Iterable[Row],
        devices: tuple[DeviceFacts, ...] = (),
        memory: MemoryEvents | None = None,
    ) -> None:
        ordered = sorted(rows, key=lambda r: (r.start_ns, -r.duration_ns))
        names: dict[str, int] = {}
        threads: dict[str, int] = {}
        streams: dict[tuple[int, str], int] = {}

        def column(values: Iterable[int], dtype: type) -> Any:
            return np.array(list(values), dtype=dtype)

        self.start_ns = column((r.start_ns for r in ordered), np.int64)
        self.duration_ns = column((r.duration_ns for r in ordered), np.int64)
        self.name = column((names.setdefault(r.name, len(names)) for r in ordered), np.int32)
        self.category = column((r.category for r in ordered), np.int8)
        self.process = np.zeros(len(ordered), dtype=np.int32)
        self.thread = column((threads.setdefault(r.thread, len(threads)) for r in ordered), np.int32)
        self.device = column((r.device for r in ordered), np.int32)
        self.stream = column(
            (streams.setdefault((r.device, r.stream), len(streams)) if r.device >= 0 else -1 for r in ordered), np.int32
        )
        self.correlation = column((r.correlation for r in ordered), np.int64)
        self.external_id = column((r.external_id for r in ordered), np.int64)
        self.names: Sequence[str] = list(names)
        self.processes: Sequence[str] = ["1"]
        self.thread_labels: Sequence[str] = list(threads)
        self.stream_labels: Sequence[str] = [label for _, label in streams]
        self.memory = memory
        self.notes: tuple[TraceNote, ...] = ()
        self._facts: dict[str, list[tuple[int, Any]]] = {}
        for i, row in enumerate(ordered):
            for name, value in row.facts.items():
                self._facts.setdefault(name, []).append((i, value))
        self.facts = TraceFacts(
            source="plain",
            format="kineto",
            rank=None,
            rank_source="unknown",
            world_size=None,
            host=None,
            time_unit_ns=1,
            epoch_ns=0,
            unix_base_ns=None,
            devices=devices,
            process_groups={},
            has_shapes="shapes" in self._facts,
            has_stacks=False,
            has_sync=any(r.category == Category.SYNC for r in ordered),
        )

    def __len__(self) -> int:
        return len(self.start_ns)

    def integers(self, name: str) -> tuple[Any, Any]:
        found = self._facts.get(name, [])
        return np.array([i for i, _ in found], dtype=np.int64), np.array([v for _, v in found], dtype=np.int64)

    def numbers(self, name: str) -> tuple[Any, Any]:
        found = self._facts.get(name, [])
        return np.array([i for i, _ in found], dtype=np.int64), np.array([v for _, v in found], dtype=np.float64)

    def texts(self, name: str) -> tuple[Any, Any, Sequence[str]]:
        found = self._facts.get(name, [])
        table: dict[str, int] = {}
        indices = np.array([table.setdefault(v, len(table)) for _, v in found], dtype=np.int64)
        return np.array([i for i, _ in found], dtype=np.int64), indices, list(table)


def op(name: str, start_us: int, length_us: int, thread: str = "main", **facts: Any) -> Row:
    return Row(Category.CPU_OP, name, start_us * US, length_us * US, thread, facts=facts)


def mark(name: str, start_us: int, length_us: int, thread: str = "main") -> Row:
    return Row(Category.ANNOTATION, name, start_us * US, length_us * US, thread)


def frame(name: str, start_us: int, length_us: int, thread: str = "main") -> Row:
    return Row(Category.PYTHON, name, start_us * US, length_us * US, thread)


def call(name: str, start_us: int, length_us: int, correlation: int = -1, thread: str = "main") -> Row:
    return Row(Category.RUNTIME, name, start_us * US, length_us * US, thread, correlation=correlation)


def kernel(
    name: str, start_us: int, length_us: int, correlation: int = -1, stream: str = "7", device: int = 0, **facts: Any
) -> Row:
    return Row(Category.KERNEL, name, start_us * US, length_us * US, "gpu", device, stream, correlation, facts=facts)


def copy(name: str, start_us: int, length_us: int, correlation: int = -1, stream: str = "7", **facts: Any) -> Row:
    return Row(Category.MEMCPY, name, start_us * US, length_us * US, "gpu", 0, stream, correlation, facts=facts)
