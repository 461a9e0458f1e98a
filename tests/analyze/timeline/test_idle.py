from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.timeline import IdleCauses
from hotloop.core.trace import Category
from hotloop.evidence.analyze.timeline.reduce import ReduceOptions, reduce_trace

from .plain_trace import US, PlainTrace, Row, call, copy, frame, kernel, mark, op

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def explain(*rows: Row) -> IdleCauses:
    return reduce_trace(PlainTrace(rows)).idle


def causes_us(idle: IdleCauses) -> dict[str, int]:
    names = ("sync_drained", "launch_late", "queue_dependent", "launch_latency", "unknown")
    return {name: getattr(idle, f"{name}_ns") // US for name in names if getattr(idle, f"{name}_ns")}


CAUSES = {
    "a synchronisation of an idle device drains nothing": (
        [
            call("cudaLaunchKernel", 0, 2, 1),
            kernel("a", 10, 10, 1),
            call("cudaDeviceSynchronize", 25, 5),
            call("cudaLaunchKernel", 35, 2, 2),
            kernel("a", 40, 10, 2),
        ],
        {"launch_late": 20},
        {},
    ),
    # The backward thread launches while the main one still waits.
    "a wait that returns after the launch was not what held it up": (
        [
            mark("ProfilerStep#0", 0, 100),
            call("cudaStreamSynchronize", 5, 60),
            call("cudaLaunchKernel", 0, 2, 1, "autograd"),
            kernel("a", 10, 10, 1),
            call("cudaLaunchKernel", 35, 2, 2, "autograd"),
            kernel("a", 70, 10, 2),
        ],
        {"launch_late": 50},
        {},
    ),
    "a short gap is late too when its launch was": (
        [
            call("cudaLaunchKernel", 0, 2, 1),
            kernel("a", 10, 10, 1),
            call("cudaLaunchKernel", 21, 2, 2),
            kernel("a", 26, 10, 2),
        ],
        {"launch_late": 6},
        {},
    ),
    "the allocator and the collector are told apart": (
        [
            call("cudaLaunchKernel", 0, 2, 1),
            kernel("a", 10, 10, 1),
            call("cudaMalloc", 25, 10),
            frame("<built-in function collect>", 40, 20),
            call("cudaLaunchKernel", 70, 2, 2),
            kernel("a", 80, 10, 2),
        ],
        {"launch_late": 60},
        {"late_allocator_ns": 10 * US, "late_gc_ns": 20 * US},
    ),
    "without python frames garbage collection is unknown": (
        [
            call("cudaLaunchKernel", 0, 2, 1),
            kernel("a", 10, 10, 1),
            kernel("a", 40, 5),
        ],
        {"unknown": 20},
        {"late_gc_ns": None},
    ),
    "what was queued in time waits for something else": (
        [
            call("cudaLaunchKernel", 0, 2, 1),
            call("cudaLaunchKernel", 4, 2, 2),
            call("cudaLaunchKernel", 8, 2, 3),
            kernel("a", 10, 10, 1),
            kernel("a", 26, 10, 2),
            kernel("a", 80, 10, 3),
        ],
        {"launch_latency": 6, "queue_dependent": 44},
        {},
    ),
    "a call that does not return is late though made in time": (
        [
            call("cudaLaunchKernel", 0, 2, 1),
            kernel("a", 10, 10, 1),
            call("cudaLaunchKernel", 15, 500, 2),
            kernel("a", 520, 10, 2),
        ],
        {"launch_late": 500},
        {"late_slow_call_ns": 495 * US},
    ),
    "a busy stream leaves no gap on the device": (
        [
            call("cudaLaunchKernel", 0, 2, 1),
            call("cudaLaunchKernel", 4, 2, 2),
            kernel("a", 10, 100, 1, "7"),
            kernel("b", 10, 5, 2, "24"),
            kernel("b", 60, 5, 3, "24"),
        ],
        {},
        {"idle_ns": 0, "gaps_count": 0},
    ),
    # Late by 2 ms, of which the call itself took 0.5 ms, and late by 30 us.
    "a long pause of the host is not launching": (
        [
            call("cudaLaunchKernel", 0, 2, 1),
            kernel("a", 10, 10, 1),
            call("cudaLaunchKernel", 1_520, 500, 2),
            kernel("a", 2_020, 10, 2),
            call("cudaLaunchKernel", 2_050, 5, 3),
            kernel("a", 2_060, 10, 3),
        ],
        {"launch_late": 2_030},
        {"late_slow_call_ns": 505 * US, "late_long_ns": 1_500 * US},
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_idle_time_has_its_cause(name: str) -> None:
    rows, causes, more = CAUSES[name]
    idle = explain(*rows)
    assert causes_us(idle) == causes
    assert {what: getattr(idle, what) for what in more} == more


def test_a_late_launch_is_blamed_on_what_the_host_did() -> None:
    """Idle 20-60: an operator until 45, nothing recorded until the call at 50, the call itself until it returns."""
    idle = explain(
        call("cudaLaunchKernel", 0, 2, 1),
        kernel("a", 10, 10, 1),
        op("aten::slow", 15, 30),
        call("cudaLaunchKernel", 50, 5, 2),
        kernel("a", 60, 10, 2),
    )
    assert causes_us(idle) == {"launch_late": 40}
    assert idle.launch_late_count == 1
    assert {(b.name, b.kind): b.total_ns // US for b in idle.blamed} == {
        ("aten::slow", "operator"): 25,
        ("cudaLaunchKernel", "runtime"): 5,
        ("nothing recorded", "nothing recorded"): 10,
    }
    assert idle.late_slow_call_ns == 5 * US


def test_a_synchronisation_that_drains_the_device() -> None:
    """The wait returns at 22, two after the kernel ended; all that follows is owed to it."""
    idle = explain(
        call("cudaLaunchKernel", 0, 2, 1),
        kernel("a", 10, 10, 1),
        op("aten::item", 3, 21),
        op("aten::_local_scalar_dense", 4, 19),
        call("cudaStreamSynchronize", 5, 17),
        op("aten::mm", 30, 10),
        call("cudaLaunchKernel", 35, 2, 2),
        kernel("a", 40, 10, 2),
    )
    assert causes_us(idle) == {"sync_drained": 20}
    (sync,) = idle.syncs
    assert (sync.name, sync.kind, sync.gaps_count, sync.total_ns) == ("aten::item", "operator", 1, 20 * US)


def test_what_another_thread_waits_for_drains_nothing() -> None:
    rows = [
        call("cudaLaunchKernel", 0, 2, 1),
        kernel("a", 10, 10, 1),
        call("cudaLaunchKernel", 35, 2, 2),
        kernel("a", 40, 10, 2),
    ]
    assert causes_us(explain(*rows, call("cudaEventSynchronize", 5, 17, thread="watchdog"))) == {"launch_late": 20}
    assert causes_us(explain(*rows, call("cudaEventSynchronize", 5, 17))) == {"sync_drained": 20}


def test_a_copy_to_pageable_memory_waits_whatever_its_call_is_named() -> None:
    rows = [
        op("aten::item", 8, 15),
        call("cudaMemcpyAsync", 10, 12, 1),
        call("cudaLaunchKernel", 30, 2, 2),
        kernel("a", 40, 10, 2),
    ]
    idle = explain(*rows, copy("Memcpy DtoH (Device -> Pageable)", 18, 2, 1))
    assert causes_us(idle) == {"sync_drained": 20}
    pinned = explain(*rows, copy("Memcpy DtoH (Device -> Pinned)", 18, 2, 1))
    assert causes_us(pinned) == {"launch_late": 20}


def test_a_batch_is_waited_for_with_or_without_the_synchronisation() -> None:
    """Idle 20-100: the wait ends at 22, the loader runs 30-80. Without the sync the batch is still late."""
    idle = explain(
        call("cudaLaunchKernel", 0, 2, 1),
        kernel("a", 10, 10, 1),
        call("cudaStreamSynchronize", 5, 17),
        mark(LOADER, 30, 50),
        op("aten::stack", 40, 30),
        call("cudaLaunchKernel", 90, 2, 2),
        kernel("a", 100, 10, 2),
    )
    assert causes_us(idle) == {"sync_drained": 30, "launch_late": 50}
    assert idle.late_data_wait_ns == 50 * US
    assert next(b for b in idle.blamed if b.name == LOADER).total_ns == 50 * US
    assert "aten::stack" not in {b.name for b in idle.blamed}


def test_python_lines_are_blamed_and_built_ins_count_for_their_caller() -> None:
    idle = explain(
        call("cudaLaunchKernel", 0, 2, 1),
        kernel("a", 10, 10, 1),
        frame("train.py(12): main", 0, 100),
        frame("train.py(40): log_metrics", 25, 40),
        frame("<built-in function print>", 30, 30),
        call("cudaLaunchKernel", 70, 2, 2),
        kernel("a", 80, 10, 2),
    )
    assert {b.name: b.total_ns // US for b in idle.blamed_python} == {
        "train.py(40): log_metrics": 40,
        "train.py(12): main": 20,
    }


def test_the_launching_thread_is_asked_before_the_main_one() -> None:
    idle = explain(
        mark("ProfilerStep#0", 0, 200),
        call("cudaLaunchKernel", 0, 2, 1),
        kernel("a", 10, 10, 1),
        op("aten::main_work", 20, 30),
        op("autograd::engine::evaluate_function: X", 40, 40, "autograd"),
        call("cudaLaunchKernel", 60, 2, 2, "autograd"),
        kernel("a", 70, 10, 2),
    )
    blamed = {b.name: b.total_ns // US for b in idle.blamed}
    assert blamed == {"autograd::engine::evaluate_function: X": 28, "aten::main_work": 20, "cudaLaunchKernel": 2}


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 30), st.integers(1, 20), st.booleans()), min_size=1, max_size=12
    ),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60), st.integers(0, 5)), max_size=10),
)
def test_the_causes_sum_to_the_idle_and_the_blame_to_the_late_time(
    launches: list[tuple[int, int, int, bool]], host: list[tuple[int, int, int]]
) -> None:
    """Any trace: IdleCauses refuses to exist when its parts do not sum, and no late time goes unblamed."""
    rows: list[Row] = []
    at = 0
    for i, (wait, delay, length, linked) in enumerate(launches, 1):
        at += wait
        rows.append(call("cudaLaunchKernel", at, 3, i))
        rows.append(kernel("a", at + delay, length, i if linked else -1))
        at += 4
    kinds = (LOADER, "cudaMalloc", "cudaStreamSynchronize", "aten::mm", "<built-in function collect>", "train.py(1): f")
    for start, length, kind in host:
        name = kinds[kind]
        make = {0: mark, 1: call, 2: call, 3: op, 4: frame, 5: frame}[kind]
        rows.append(make(name, start, length))
    trace = PlainTrace(rows)
    idle = reduce_trace(trace, ReduceOptions(blame_top=1000)).idle
    assert sum(b.total_ns for b in idle.blamed) == idle.sync_drained_ns + idle.launch_late_ns
    parts = idle.late_data_wait_ns + (idle.late_gc_ns or 0) + idle.late_allocator_ns
    assert parts <= idle.launch_late_ns
    assert sum(b.total_ns for b in idle.syncs) == idle.sync_drained_ns


QUEUED = (
    call("cudaLaunchKernel", 0, 2, 1),
    call("cudaStreamWaitEvent", 3, 1, 90),
    call("cudaLaunchKernel", 4, 2, 2),
    kernel("a", 10, 10, 1, "24"),
    kernel("b", 50, 10, 2),
)
"""Two streams; the second piece of work was launched early and begins 30 us after the first one ended."""


def queued_us(idle: IdleCauses) -> dict[str, int]:
    names = ("comm", "event", "graph", "untold")
    return {name: getattr(idle, f"queue_{name}_ns") // US for name in names if getattr(idle, f"queue_{name}_ns")}


def test_queued_work_waited_for_an_event_of_another_stream() -> None:
    assert queued_us(explain(*QUEUED)) == {"event": 30}
    assert queued_us(explain(*(row for row in QUEUED if row.name != "cudaStreamWaitEvent"))) == {"untold": 30}


def test_a_wait_that_was_asked_for_before_another_launch_is_not_this_one() -> None:
    other = (call("cudaLaunchKernel", 3, 1, 3), kernel("c", 12, 2, 3, "24"))
    rows = [row for row in QUEUED if row.name != "cudaStreamWaitEvent"]
    assert queued_us(explain(call("cudaStreamWaitEvent", 1, 1, 90), *rows, *other)) == {"untold": 30}


def test_a_recorded_wait_counts_only_for_its_stream() -> None:
    def sync(stream: str) -> Row:
        return Row(Category.SYNC, "Stream Wait Event", 20 * US, 30 * US, "gpu", 0, stream, 90)

    assert queued_us(explain(*QUEUED, sync("7"))) == {"event": 30}
    assert queued_us(explain(*QUEUED, sync("24"))) == {"untold": 30}


def test_queued_work_waited_for_communication() -> None:
    """The event was recorded behind a collective, or the work is one itself."""
    rows = [row for row in QUEUED if row.category is not Category.KERNEL]
    reduced = kernel("ncclDevKernel_AllReduce", 10, 10, 1, "24")
    assert queued_us(explain(*rows, reduced, kernel("b", 50, 10, 2))) == {"comm": 30}
    collective = kernel("ncclDevKernel_AllReduce", 50, 10, 2)
    assert queued_us(explain(*rows, kernel("a", 10, 10, 1, "24"), collective)) == {"comm": 30}


def test_queued_work_inside_a_graph() -> None:
    rows = [call("cudaGraphLaunch", 0, 2, 1), kernel("a", 10, 10, 1), kernel("b", 50, 10, 1)]
    assert queued_us(explain(*rows)) == {"graph": 30}


def test_the_causes_of_each_step_are_its_own() -> None:
    """Step 0 waits 40 us for a batch; step 1 waits 30 us for a slow operator, and for nothing else."""
    steps = reduce_trace(
        PlainTrace(
            [
                mark("ProfilerStep#0", 0, 100),
                call("cudaLaunchKernel", 0, 2, 1),
                kernel("a", 10, 10, 1),
                mark(LOADER, 15, 40),
                call("cudaLaunchKernel", 58, 2, 2),
                kernel("a", 60, 50, 2),
                mark("ProfilerStep#1", 100, 100),
                call("cudaLaunchKernel", 102, 2, 3),
                kernel("a", 110, 10, 3),
                op("aten::slow", 120, 28),
                call("cudaLaunchKernel", 148, 2, 4),
                kernel("a", 150, 10, 4),
            ]
        )
    ).steps
    first, second = (step.idle for step in steps)
    assert (first.idle_ns, first.launch_late_ns, first.late_data_wait_ns) == (40 * US, 40 * US, 35 * US)
    assert (first.blamed.name, first.blamed.kind, first.blamed.total_ns) == (LOADER, "range", 35 * US)
    assert (second.idle_ns, second.launch_late_ns, second.late_data_wait_ns) == (30 * US, 30 * US, 0)
    assert (second.blamed.name, second.blamed.total_ns) == ("aten::slow", 28 * US)


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 40), st.integers(0, 20), st.booleans(), st.booleans()),
        min_size=1,
        max_size=25,
    )
)
def test_the_causes_of_the_steps_sum_to_those_of_the_trace(
    launches: list[tuple[int, int, int, bool, bool]],
) -> None:
    """Work without length may begin a step inside a gap. StepWindow refuses causes that are not of its window."""
    rows: list[Row] = []
    at = begin = number = 0
    for i, (wait, delay, length, linked, last) in enumerate(launches, 1):
        rows += [call("cudaLaunchKernel", at, 2, i), kernel("a", at + delay, length, i if linked else -1)]
        at += wait + 3
        if last or i == len(launches):
            rows.append(mark(f"ProfilerStep#{number}", begin, at - begin))
            begin, number = at, number + 1
    found = reduce_trace(PlainTrace(rows))
    told = [step.idle for step in found.steps if step.idle is not None]
    for key in ("idle_ns", "launch_late_ns", "sync_drained_ns", "queue_dependent_ns", "launch_latency_ns"):
        assert sum(getattr(one, key) for one in told) <= getattr(found.idle, key)
    # Steps follow each other, so only what lies before the first one and after the last one is in none.
    windows = [step for step in found.steps if step.device_start_ns is not None and step.device_end_ns is not None]
    device = found.devices[0]
    if windows and windows[0].device_start_ns == device.start_ns and windows[-1].device_end_ns == device.end_ns:
        assert sum(one.idle_ns for one in told) == found.idle.idle_ns
