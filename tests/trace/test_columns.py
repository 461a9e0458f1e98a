from __future__ import annotations

import numpy as np
import pytest
from build import build_memory, build_trace, cpu_op, kernel, runtime
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import InvariantError
from hotloop.core.trace import Trace
from hotloop.evidence.trace.columns import TraceColumns, order_events


def test_an_enclosing_event_stands_before_what_it_encloses() -> None:
    trace = build_trace([cpu_op("late", 5, 1), cpu_op("inner", 0, 3), cpu_op("outer", 0, 10)])
    assert [trace.names[index] for index in trace.name] == ["outer", "inner", "late"]


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), max_size=60))
def test_the_order_is_that_of_a_stable_sort_by_start_and_longest(pairs: list[tuple[int, int]]) -> None:
    start_ns = np.array([start for start, _ in pairs], dtype=np.int64)
    duration_ns = np.array([duration for _, duration in pairs], dtype=np.int64)
    expected = sorted(range(len(pairs)), key=lambda at: (pairs[at][0], -pairs[at][1]))
    assert order_events(start_ns, duration_ns).tolist() == expected


def test_sparse_facts_follow_their_events_through_the_sort() -> None:
    trace = build_trace(
        [
            kernel("second", 10, 5, correlation=2, bytes=7, grid="[2,1,1]", occupancy_ratio=0.5),
            kernel("first", 1, 5, correlation=1, bytes=3, grid="[1,1,1]"),
            cpu_op("zero", 0, 1),
        ]
    )
    rows, values = trace.integers("bytes")
    assert (rows.tolist(), values.tolist()) == ([1, 2], [3, 7])
    rows, indices, table = trace.texts("grid")
    assert [table[index] for index in indices] == ["[1,1,1]", "[2,1,1]"]
    rows, numbers = trace.numbers("occupancy_ratio")
    assert (rows.tolist(), numbers.tolist()) == ([2], [0.5])
    assert trace.integers("flops")[0].size == 0
    with pytest.raises(InvariantError, match="'byts' is not a fact"):
        trace.integers("byts")


def test_one_tid_of_two_processes_is_two_threads_and_one_stream_of_two_devices_is_two_streams() -> None:
    trace = build_trace(
        [
            cpu_op("a", 0, 1, process=1, thread=9),
            cpu_op("b", 1, 1, process=2, thread=9),
            kernel("c", 2, 1, device=0, stream=7),
            kernel("d", 3, 1, device=1, stream=7),
        ]
    )
    assert trace.thread[0] != trace.thread[1]
    assert trace.stream[2] != trace.stream[3]
    assert [trace.stream_labels[index] for index in trace.stream[2:]] == ["7", "7"]


def test_the_columns_are_a_trace_and_refuse_to_be_written() -> None:
    trace: Trace = build_trace([runtime("cudaLaunchKernel", 0, 1, correlation=4)], memory=build_memory([]))
    assert isinstance(trace, TraceColumns)
    assert len(trace) == 1
    with pytest.raises(ValueError, match="read-only"):
        trace.start_ns[0] = 5
