"""Segments by keyword -> rows and recordings as the agent would have written them, for tests of analyze."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotloop.core.recording import (
    CLOSED_BY_BACKWARD,
    CLOSED_BY_END,
    CLOSED_BY_OPTIMIZER,
    CLOSED_BY_SCALER_SKIP,
    FIELD,
    STEP_FIELDS,
    TIME_FIELDS,
    UNKNOWN,
)
from hotloop.evidence.analyze.segments import IntColumn

MS = 1_000_000
UNKNOWN_AT_FIRST = (
    "synced_backwards",
    "recompute_ns",
    "padded_tokens",
    "tokens",
    "padding_tokens",
    "longest_tokens",
    "device_forward_ns",
    "device_backward_ns",
    "device_optimizer_ns",
    "device_h2d_ns",
    "device_allocated_bytes",
    "device_reserved_bytes",
)


@dataclass
class Rows:
    """Collects segments that follow each other without a gap."""

    clock_ns: int = 0
    rows: list[list[int]] = field(default_factory=list)

    def segment(self, closed_by: int, optimizer: int, fields: Mapping[str, int]) -> None:
        row = [0] * len(STEP_FIELDS)
        for name in UNKNOWN_AT_FIRST:
            row[FIELD[name]] = UNKNOWN
        row[FIELD["index"]] = len(self.rows)
        row[FIELD["closed_by"]] = closed_by
        row[FIELD["optimizer_index"]] = optimizer
        row[FIELD["rows_merged"]] = 1
        for name, value in fields.items():
            row[FIELD[name]] = value
        row[FIELD["start_ns"]] = self.clock_ns
        self.clock_ns += sum(row[FIELD[name]] for name in TIME_FIELDS)
        row[FIELD["end_ns"]] = self.clock_ns
        self.rows.append(row)

    def step(self, optimizer: int = 0, **fields: int) -> None:
        """A segment that an optimizer's step closed: by default one forward and one backward, 10 ms."""
        self.segment(CLOSED_BY_OPTIMIZER, optimizer, {**work(), **fields})

    def skipped(self, optimizer: int = 0, **fields: int) -> None:
        self.segment(CLOSED_BY_SCALER_SKIP, optimizer, {**work(), **fields})

    def backward(self, **fields: int) -> None:
        self.segment(CLOSED_BY_BACKWARD, UNKNOWN, {**work(), **fields})

    def end(self, **fields: int) -> None:
        self.segment(CLOSED_BY_END, UNKNOWN, fields)

    def array(self) -> IntColumn:
        return np.array(self.rows, dtype=np.int64).reshape(len(self.rows), len(STEP_FIELDS))


def steps(each: Iterable[Mapping[str, int]]) -> Rows:
    """Steps that differ from a plain one by the given fields."""
    rows = Rows()
    for fields in each:
        rows.step(**fields)
    return rows


def work() -> dict[str, int]:
    """A plain training segment of 10 ms: 1 wait, 3 forward, 5 backward, 1 optimizer."""
    return {
        "input_wait_ns": 1 * MS,
        "forward_ns": 3 * MS,
        "backward_ns": 5 * MS,
        "optimizer_ns": 1 * MS,
        "batches": 1,
        "micro_batches": 1,
        "forwards": 1,
        "backwards": 1,
        "samples": 16,
    }


@dataclass(frozen=True)
class FakeRecording:
    """What the reader of a recording offers of one process."""

    rows: IntColumn
    process: Mapping[str, Any] = field(default_factory=dict)
    facts: Sequence[Mapping[str, Any]] = ()
    lost_rows: int = 0
    closed: bool = True


def process_fact(**fields: Any) -> dict[str, Any]:
    """A process fact of a single CPU process; fields override."""
    return {
        "kind": "process",
        "host": "box",
        "pid": 100,
        "ppid": 1,
        "rank": 0,
        "local_rank": 0,
        "world_size": 1,
        "local_world_size": 1,
        "restart": 0,
        "argv": ["python", "train.py"],
        "anchor_wall_s": 1000.0,
        "process_start_wall_s": 998.0,
        "cores": 4,
        "torch_threads": 4,
        "interop_threads": 4,
        "accelerator": None,
        "memory_total_bytes": 1 << 34,
        **fields,
    }


def recording(rows: Rows, *facts: Mapping[str, Any], **process: Any) -> FakeRecording:
    return FakeRecording(rows=rows.array(), process=process_fact(**process), facts=facts)
