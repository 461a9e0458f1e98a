"""Memory events -> peak, fragmentation, growth and who allocated, and the peak by category."""

from __future__ import annotations

import numpy as np
import pytest

from hotloop.core.graph import DeviceMemoryTimeline
from hotloop.core.trace import MemoryEvents
from hotloop.evidence.analyze.timeline.anatomy import find_host_phases
from hotloop.evidence.analyze.timeline.links import link_device_work
from hotloop.evidence.analyze.timeline.memory import OUTSIDE, describe_memory
from hotloop.evidence.analyze.timeline.steps import find_steps
from hotloop.evidence.trace.inputs import find_traces, read_trace_file

from .plain_trace import TRACES, US, PlainTrace, Row, mark, op

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the public traces are not at {TRACES}")

Event = tuple[int, int, int, int, int]
"""(us, address, bytes, allocated after, reserved after)."""


def events(rows: list[Event], device_type: int = 1, index: int = 0) -> MemoryEvents:
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return MemoryEvents(
        time_ns=table[:, 0] * US,
        address=table[:, 1],
        bytes=table[:, 2],
        allocated_bytes=table[:, 3],
        reserved_bytes=table[:, 4],
        device_type=np.full(len(table), device_type, dtype=np.int32),
        device_index=np.full(len(table), index, dtype=np.int32),
    )


def describe(memory: MemoryEvents | None, rows: list[Row]) -> tuple[DeviceMemoryTimeline, ...]:
    trace = PlainTrace(rows, memory=memory)
    links = link_device_work(trace)
    steps = find_steps(trace, links)
    return describe_memory(trace, links, steps, find_host_phases(trace, links, steps))


ROWS = [mark("ProfilerStep#0", 0, 100), op("aten::mm", 10, 20), op("aten::empty", 12, 5), op("aten::relu", 40, 10)]
ALLOCATIONS: list[Event] = [
    (13, 1, 100, 600, 1000),
    (20, 2, 50, 650, 1000),
    (25, 2, -50, 600, 1000),
    (45, 3, 400, 1000, 2048),
    (60, 1, -100, 900, 2048),
    (70, 3, -400, 500, 2048),
]


def test_peak_and_fragmentation_by_hand() -> None:
    (found,) = describe(events(ALLOCATIONS), ROWS)
    assert (found.device_type, found.device, found.events_count, found.is_absolute) == ("cuda", 0, 6, True)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (1000, 2048)
    assert (found.fragmentation_bytes, found.held_at_peak_bytes) == (1048, 500)


def test_allocations_belong_to_the_innermost_operator() -> None:
    """The block that is freed before the peak is not held there; the one of 'aten::mm' itself is."""
    (found,) = describe(events([*ALLOCATIONS, (200, 9, 8, 508, 2048)]), ROWS)
    assert [(o.name, o.allocated_bytes, o.count, o.at_peak_bytes) for o in found.ops] == [
        ("aten::relu", 400, 1, 400),
        ("aten::empty", 100, 1, 100),
        ("aten::mm", 50, 1, 0),
        (OUTSIDE, 8, 1, 0),
    ]


def test_unknown_totals_make_levels_relative_and_the_cpu_reserves_nothing() -> None:
    rows: list[Event] = [(10, 1, 100, -1, -1), (20, 2, 30, -1, -1), (30, 1, -100, -1, -1)]
    (found,) = describe(events(rows), ROWS)
    assert not found.is_absolute
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes, found.fragmentation_bytes) == (130, None, None)
    (cpu,) = describe(events([(10, 1, 100, 100, 0)], device_type=0, index=-1), ROWS)
    assert (cpu.device_type, cpu.peak_reserved_bytes) == ("cpu", None)


def test_devices_are_apart_and_accelerators_first() -> None:
    a, b = events(ALLOCATIONS, 0, -1), events(ALLOCATIONS, 1, 3)
    both = MemoryEvents(**{f: np.concatenate([getattr(a, f), getattr(b, f)]) for f in a.__slots__})
    assert [(d.device_type, d.device, d.events_count) for d in describe(both, ROWS)] == [("cuda", 3, 6), ("cpu", -1, 6)]


def test_growth_is_the_slope_over_the_steps() -> None:
    """Every step leaves 64 bytes behind; what comes and goes within does not count."""
    marks = [mark(f"ProfilerStep#{i}", 100 * i, 100) for i in range(12)]
    rows: list[Event] = []
    for i in range(12):
        base = 1000 + 64 * i
        rows += [
            (100 * i + 10, 10 * i, 5000, base + 5000, 9000),
            (100 * i + 50, 10 * i + 1, 64, base + 5064, 9000),
            (100 * i + 90, 10 * i, -5000, base + 64, 9000),
        ]
    (found,) = describe(events(rows), marks)
    assert found.growth_bytes_per_step == pytest.approx(64)
    (few,) = describe(events(rows[:9]), marks[:3])
    assert few.growth_bytes_per_step is None


@needs_traces
def test_a_real_cpu_trace() -> None:
    (file,) = find_traces([TRACES / "cpu" / "mem.pt.trace.json.gz"]).files
    (trace,) = read_trace_file(file)
    links = link_device_work(trace)
    steps = find_steps(trace, links)
    (found,) = describe_memory(trace, links, steps, find_host_phases(trace, links, steps))
    memory = trace.memory
    assert found.events_count == len(memory.time_ns)
    assert found.device_type == "cpu"
    assert found.peak_allocated_bytes == int(memory.allocated_bytes.max())
    assert found.fragmentation_bytes is None
    assert sum(o.at_peak_bytes for o in found.ops) == found.held_at_peak_bytes


def test_the_peak_by_category_by_hand() -> None:
    """One step: a batch, a forward that keeps one of two blocks, a backward, and a state that the optimizer keeps."""
    evaluate = "autograd::engine::evaluate_function: MmBackward0"
    rows = [
        mark("ProfilerStep#0", 0, 100),
        op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 10),
        op("aten::mm", 12, 20),
        op(evaluate, 40, 20, thread="autograd"),
        op("Optimizer.step#AdamW.step", 70, 20),
    ]
    found = describe(
        events(
            [
                (5, 1, 7, 1007, 5000),
                (15, 2, 20, 1027, 5000),
                (16, 3, 300, 1327, 5000),
                (18, 3, -300, 1027, 5000),
                (41, 4, 400, 1427, 5000),
                (45, 2, -20, 1407, 5000),
                (72, 5, 5000, 6407, 9000),
                (95, 6, 1, 6408, 9000),
            ]
        ),
        rows,
    )[0]
    assert found.peak_by_category == {"optimizer_state": 5000, "input": 7, "gradient": 400, "unknown": 1001}
    before = describe(events([(5, 1, 7, 1007, 5000), (15, 2, 20, 1027, 5000), (41, 4, 400, 1427, 5000)]), rows)[0]
    assert before.peak_by_category == {"input": 7, "activation": 20, "unknown": 1400}
