"""The dependency graph edge kind by edge kind, and the path that it makes, all worked out by hand; then real traces."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.core.trace import Category
from hotloop.core.trace_analysis import StepPath
from hotloop.evidence.analyze.timeline.classes import classify_work
from hotloop.evidence.analyze.timeline.critical_path import (
    choose_step,
    falls_behind,
    find_critical_path,
    find_device_ends,
)
from hotloop.evidence.analyze.timeline.dependencies import build_graph
from hotloop.evidence.analyze.timeline.links import link_device_work
from hotloop.evidence.analyze.timeline.step_graph import FAR_BACK_NS, ROLE, StepGraph, order_edges, replay
from hotloop.evidence.analyze.timeline.steps import find_steps
from hotloop.evidence.trace.columns import TraceColumns
from hotloop.evidence.trace.inputs import find_traces, read_trace_file

from .plain_trace import TRACES, US, PlainTrace, Row, call, copy, kernel, mark, op

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the public traces are not at {TRACES}")


NODE = "autograd::engine::evaluate_function: "


def sync(name: str, start_us: int, length_us: int, correlation: int, stream: str = "", **facts: object) -> Row:
    return Row(Category.SYNC, name, start_us * US, length_us * US, "gpu", 0, stream, correlation, facts=dict(facts))


def path_of(rows: list[Row], place: int | None = None) -> StepPath:
    trace = PlainTrace(rows)
    links = link_device_work(trace)
    return find_critical_path(trace, links, classify_work(trace, links), find_steps(trace, links), place)


def graph_of(trace: PlainTrace | TraceColumns, first: int = 0, last: int = 0) -> StepGraph:
    links = link_device_work(trace)
    return build_graph(trace, links, classify_work(trace, links), find_steps(trace, links), first, last)


def bound(path: StepPath) -> dict[str, int]:
    """us by kind, without what is 0."""
    return {kind: ns // US for kind, ns in path.bound_ns.items() if ns}


def length_ns(path: StepPath) -> int:
    return sum(path.bound_ns.values())


PATHS = {
    # 10 us of an operator, 5 of its launch, the rest Python; the kernel runs beside it.
    "a host that never waits is the path": (
        [
            mark("ProfilerStep#0", 0, 100),
            op("aten::mm", 20, 15),
            call("cudaLaunchKernel", 25, 5, 1),
            kernel("gemm", 32, 40, 1),
        ],
        None,
        {"host": 95, "launch": 5},
        {},
    ),
    # Launch at 10, kernel 15..75, the wait begins at 20 and ends 5 us after the kernel: 10 host, 5 from the start of
    # the call to the kernel, 60 kernel, 5 until the call returns, 20 host.
    "a device wide wait leads into the device": (
        [
            mark("ProfilerStep#0", 0, 100),
            op("aten::mm", 8, 7),
            call("cudaLaunchKernel", 10, 4, 1),
            kernel("gemm", 15, 60, 1),
            call("cudaDeviceSynchronize", 20, 60),
        ],
        None,
        {"host": 30, "launch": 5, "device_compute": 60, "sync": 5},
        {},
    ),
    # The kernel ended at 30, the call at 40..46 waits for nothing.
    "a wait that the device was ready for is host time": (
        [
            mark("ProfilerStep#0", 0, 100),
            call("cudaLaunchKernel", 10, 4, 1),
            kernel("gemm", 15, 15, 1),
            call("cudaDeviceSynchronize", 40, 6),
        ],
        None,
        {"host": 90, "launch": 4, "sync": 6},
        {},
    ),
    # Stream 8 waits for the event that was recorded after 'first' and before 'other': 'first' holds it, although
    # 'other' on the same stream is queued before the wait is.
    "a recorded stream wait joins two streams": (
        [
            mark("ProfilerStep#0", 0, 200),
            call("cudaLaunchKernel", 0, 2, 1),
            kernel("first", 5, 50, 1),
            call("cudaEventRecord", 3, 1, 50),
            call("cudaLaunchKernel", 5, 2, 2),
            kernel("other", 56, 80, 2),
            call("cudaStreamWaitEvent", 8, 1, 51),
            sync(
                "Stream Wait Event",
                8,
                1,
                51,
                "8",
                sync_kind="Stream Wait Event",
                wait_on_stream=7,
                wait_on_record_correlation=50,
            ),
            call("cudaLaunchKernel", 10, 2, 3),
            kernel("second", 58, 30, 3, stream="8"),
            call("cudaStreamSynchronize", 13, 80, 52),
            sync("Stream Sync", 13, 80, 52, "8", sync_kind="Stream Sync"),
        ],
        None,
        {"host": 107, "launch": 5, "device_compute": 80, "sync": 8},
        {"has_sync_events": True},
    ),
    "an event synchronize waits for the recorded work only": (
        [
            mark("ProfilerStep#0", 0, 200),
            call("cudaLaunchKernel", 0, 2, 1),
            kernel("first", 5, 50, 1),
            call("cudaEventRecord", 3, 1, 50),
            call("cudaLaunchKernel", 5, 2, 2),
            kernel("other", 56, 100, 2),
            call("cudaEventSynchronize", 8, 50, 51),
            sync("Event Sync", 8, 50, 51, "", sync_kind="Event Sync", wait_on_stream=7, wait_on_record_correlation=50),
        ],
        None,
        {"host": 142, "launch": 5, "device_compute": 50, "sync": 3},
        {},
    ),
    "without records the thread s last stream is inferred": (
        [
            mark("ProfilerStep#0", 0, 100),
            call("cudaLaunchKernel", 0, 2, 1),
            kernel("gemm", 5, 50, 1),
            call("cudaStreamSynchronize", 10, 50),
        ],
        None,
        {"host": 40, "launch": 5, "device_compute": 50, "sync": 5},
        {"has_sync_events": False},
    ),
    "a pageable copy holds its call": (
        [
            mark("ProfilerStep#0", 0, 100),
            call("cudaMemcpyAsync", 10, 50, 1),
            copy("Memcpy DtoH (Device -> Pageable)", 14, 40, 1),
        ],
        None,
        {"host": 50, "launch": 4, "memcpy": 40, "sync": 6},
        {},
    ),
    # A kernel of step 0 runs until 160, 60 us into step 1, which waits for it.
    "work of an earlier step counts from the step on": (
        [
            mark("ProfilerStep#0", 0, 100),
            call("cudaLaunchKernel", 10, 2, 1),
            kernel("long", 20, 140, 1),
            mark("ProfilerStep#1", 100, 100),
            call("cudaDeviceSynchronize", 110, 55),
        ],
        1,
        {"host": 35, "device_compute": 60, "sync": 5},
        {},
    ),
    "input and launches are told apart": (
        [
            mark("ProfilerStep#0", 0, 100),
            mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 30),
            op("aten::stack", 10, 10),
            call("cudaLaunchKernel", 50, 20, 1),
            kernel("k", 71, 1, 1),
        ],
        None,
        {"input": 30, "launch": 20, "host": 50},
        {},
    ),
    # The kernel begins 60 us after its launch on an idle device.
    "a wait that nothing explains is said": (
        [
            mark("ProfilerStep#0", 0, 200),
            call("cudaLaunchKernel", 10, 2, 1),
            kernel("early", 14, 4, 1),
            call("cudaLaunchKernel", 20, 2, 2),
            kernel("late", 80, 50, 2, stream="9"),
            call("cudaDeviceSynchronize", 30, 102),
        ],
        None,
        {"host": 86, "launch": 6, "device_compute": 50, "sync": 58},
        {},
    ),
    # The first launch takes 500 us; its kernel begins 505 us after it, and the second one's 4 after its own.
    "a call that loads a module first explains its late kernel": (
        [
            mark("ProfilerStep#0", 0, 700),
            call("cudaLaunchKernel", 10, 500, 1),
            kernel("first", 515, 100, 1),
            call("cudaDeviceSynchronize", 511, 106),
            call("cudaLaunchKernel", 650, 2, 2),
            kernel("second", 654, 9, 2),
        ],
        None,
        {"host": 91, "launch": 507, "device_compute": 100, "sync": 2},
        {},
    ),
    # No record of a wait; but 'second' begins 3 us after 'first' ends on another stream, and was launched after it.
    "a stream that goes on when another one is done waited for it": (
        [
            mark("ProfilerStep#0", 0, 200),
            call("cudaLaunchKernel", 0, 2, 1),
            kernel("first", 5, 100, 1),
            call("cudaLaunchKernel", 10, 2, 2),
            kernel("second", 108, 50, 2, stream="9"),
            call("cudaDeviceSynchronize", 20, 142),
        ],
        None,
        {"host": 38, "launch": 5, "device_compute": 150, "sync": 7},
        {},
    ),
    # 'small' begins 20 us before 'huge' on another stream ends, 480 us after its launch.
    "a kernel that finds no room waits for the one that fills the device": (
        [
            mark("ProfilerStep#0", 0, 1000),
            call("cudaLaunchKernel", 0, 2, 1),
            kernel("huge", 5, 520, 1),
            call("cudaLaunchKernel", 25, 2, 2),
            kernel("small", 505, 10, 2, stream="9"),
            call("cudaStreamSynchronize", 30, 487, 3),
            sync("Stream Sync", 30, 487, 3, "9", sync_kind="Stream Sync"),
        ],
        None,
        {"host": 483, "launch": 5, "device_compute": 510, "sync": 2},
        {},
    ),
    # The host is done at 50, the kernel at 164: the path is 10 host, 4 to the kernel, 150 of it.
    "a single step ends with its device where that needs longer": (
        [mark("ProfilerStep#0", 0, 50), call("cudaLaunchKernel", 10, 2, 1), kernel("long", 14, 150, 1)],
        None,
        {"host": 10, "launch": 4, "device_compute": 150},
        {"paced_by": "device"},
    ),
}


@pytest.mark.parametrize("name", PATHS)
def test_what_holds_the_step_is_the_path(name: str) -> None:
    rows, place, bounds, more = PATHS[name]
    path = path_of(rows, place)
    assert bound(path) == bounds
    assert {what: getattr(path, what) for what in more} == more


def test_kernels_on_a_stream_follow_each_other() -> None:
    """Both are launched at once; the second begins 2 us after the first: 2 us of launch, not of compute."""
    rows = [
        mark("ProfilerStep#0", 0, 100),
        call("cudaLaunchKernel", 0, 4, 1),
        call("cudaLaunchKernel", 5, 4, 2),
        kernel("first", 5, 40, 1),
        kernel("second", 47, 30, 2),
        call("cudaDeviceSynchronize", 10, 70),
    ]
    path = path_of(rows)
    assert bound(path) == {"host": 20, "launch": 7, "device_compute": 70, "sync": 3}


def test_a_backward_pass_on_another_thread() -> None:
    """The main thread stands still from 30 to 80; autograd works from 35 to 75."""
    rows = [
        mark("ProfilerStep#0", 0, 100),
        op("aten::linear", 10, 20, sequence_number=5, forward_thread=0),
        op(f"{NODE}AddmmBackward0", 35, 20, "autograd", sequence_number=5, forward_thread=1),
        op(f"{NODE}TBackward0", 60, 15, "autograd", sequence_number=6, forward_thread=1),
        op("aten::zero_", 80, 5),
    ]  # fmt: skip
    trace = PlainTrace(rows)
    path = path_of(rows)
    assert bound(path) == {"host": 100}
    graph = graph_of(trace)
    assert graph.inferred_count == 2
    # A faster operator of the pass makes the step shorter, though it is on another thread: 20 us less.
    weight = graph.weight_ns.copy()
    row = int(np.flatnonzero(trace.name == trace.names.index(f"{NODE}AddmmBackward0"))[0])
    weight[graph.row == row] = 0
    assert replay(graph, weight)[graph.boundaries[-1]] == 80 * US


def test_a_full_queue_leads_into_the_device() -> None:
    """1400 kernels of 10 us, launched in 1 us each until 1000 are queued; from then on a call returns 1 us after a
    kernel begins. The host does nothing but launch, and yet the path is the device."""
    rows, now, begins = [], 0, [5 + 10 * i for i in range(1400)]
    for i, begin in enumerate(begins):
        room = i - 1000
        length = 1 if room < 0 or begins[room] <= now else begins[room] + 1 - now
        rows += [call("cudaLaunchKernel", now, length, i + 1), kernel("k", begin, 10, i + 1)]
        now += length
    # A second step of one operator shows that the device does not fall behind for long.
    path = path_of([mark("ProfilerStep#0", 0, now), *rows, mark("ProfilerStep#1", now, 11_000), op("x", now, 9)], 0)
    assert length_ns(path) == (begins[399] + 1) * US
    # 5 to the first kernel, 399 kernels until the 400th begins, 1 until the last call returns.
    assert bound(path) == {"launch": 5, "device_compute": 3990, "sync": 1}


def test_a_device_that_falls_behind_sets_the_pace() -> None:
    """Steps of 100 us on the host, of 200 us on the device: the path of a step leads over the device's 200."""
    rows: list[Row] = []
    for i in range(6):
        rows.append(mark(f"ProfilerStep#{i}", 100 * i, 100))
        rows.append(call("cudaLaunchKernel", 100 * i + 10, 2, i + 1))
        rows.append(kernel("k", 14 + 200 * i, 200, i + 1))
    trace = PlainTrace(rows)
    links = link_device_work(trace)
    steps = find_steps(trace, links)
    ends = find_device_ends(links, trace, steps)
    assert ends.tolist() == [(214 + 200 * i) * US for i in range(6)]
    assert falls_behind(trace, links, steps)
    path = path_of(rows, 3)
    assert path.paced_by == "device"
    assert length_ns(path) == 200 * US
    assert bound(path) == {"device_compute": 200}


def test_the_median_step_is_looked_at() -> None:
    rows = [mark(f"ProfilerStep#{i}", s, n) for i, (s, n) in enumerate([(0, 50), (50, 90), (140, 70)])]
    trace = PlainTrace(rows)
    steps = find_steps(trace, link_device_work(trace))
    assert choose_step(steps) == 2
    assert path_of(rows).step == 2


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_order_of_events_keeps_the_laws(data: st.DataObject) -> None:
    """The path sums to the step, the replay is never later than what was measured, edges are never late."""
    draw = data.draw
    rows = [mark("ProfilerStep#0", 0, 400)]
    now, device_end = 0, {"7": 0, "8": 0}
    for i in range(draw(st.integers(1, 12))):
        now += draw(st.integers(0, 30))
        length = draw(st.integers(0, 6))
        if now + length > 390:
            break
        what = draw(st.sampled_from(["launch", "sync", "op", "wait"]))
        if what == "launch":
            stream = draw(st.sampled_from(["7", "8"]))
            begin = max(now, device_end[stream]) + draw(st.integers(0, 40))
            rows += [call("cudaLaunchKernel", now, length, i + 1)]
            rows += [kernel("k", begin, draw(st.integers(0, 40)), i + 1, stream=stream)]
            device_end[stream] = begin + rows[-1].duration_ns // US
        elif what == "sync":
            end = max(now + length, min(390, draw(st.sampled_from([*device_end.values(), 0]))))
            rows.append(call(draw(st.sampled_from(["cudaDeviceSynchronize", "cudaStreamSynchronize"])), now, end - now))
            length = end - now
        elif what == "wait":
            rows.append(call("cudaStreamWaitEvent", now, length, 100 + i))
            rows.append(sync("w", now, length, 100 + i, "8", sync_kind="Stream Wait Event", wait_on_stream=7))
        else:
            rows.append(op("aten::x", now, length, draw(st.sampled_from(["main", "other"]))))
        now += length
    trace = PlainTrace(rows)
    graph = graph_of(trace)
    path = path_of(rows)
    assert length_ns(path) == 400 * US
    assert (replay(graph, graph.weight_ns) <= graph.time_ns).all()
    assert (graph.time_ns[graph.source] + graph.weight_ns <= graph.time_ns[graph.target]).all()
    late = np.maximum(graph.unexplained, 0)
    assert (replay(graph, graph.weight_ns, late) == graph.time_ns).all()


# ---- real traces


@cache
def read(name: str) -> TraceColumns:
    (file,) = find_traces([TRACES / name]).files
    (trace,) = read_trace_file(file)
    return trace


@cache
def real_path(name: str) -> StepPath:
    trace = read(name)
    links = link_device_work(trace)
    return find_critical_path(trace, links, classify_work(trace, links), find_steps(trace, links))


@needs_traces
def test_event_synchronisation_of_a_real_trace() -> None:
    """A spin kernel is waited for by an event and by the whole device; HolisticTraceAnalysis finds the same two."""
    path = real_path("cp_event_sync")
    assert path.step == 100
    assert length_ns(path) == 3154 * US
    # The wait for the event: the kernel (36 us) is on the path, and what follows until its call returns.
    assert bound(path)["device_compute"] == 36
    assert path.has_sync_events


@needs_traces
def test_a_stream_waits_for_the_stream_of_the_recorded_event() -> None:
    """The event is recorded on stream 20 while 28 was used last: the copy on 24 waits for the kernel on 20."""
    trace = read("cp_event_sync_multi")
    links = link_device_work(trace)
    graph = build_graph(trace, links, classify_work(trace, links), find_steps(trace, links), 0, 0)
    (edge,) = np.flatnonzero(graph.role == ROLE["stream_wait"]).tolist()
    source = int(graph.work[np.flatnonzero(graph.work_end == graph.source[edge])[0]])
    target = int(graph.work[np.flatnonzero(graph.work_begin == graph.target[edge])[0]])
    label = [trace.stream_labels[trace.stream[links.device_rows[w]]] for w in (source, target)]
    assert label == ["20", "24"]
    assert trace.correlation[links.device_rows[source]] == 27


@needs_traces
@pytest.mark.parametrize(
    ("name", "paced_by", "bound_by"),
    [
        ("resnet50_workers_0", "host", "host"),
        ("resnet50_workers_4", "host", "host"),
        ("v100_ns_resolution", "device", "device_compute"),
        ("mi300x_resnet_rccl", "device", "comm"),
        ("a100_ddp_rank3of8", "host", "host"),
        ("cpu/plain.pt.trace.json.gz", "host", "host"),
    ],
)
def test_what_bounds_the_real_traces(name: str, paced_by: str, bound_by: str) -> None:
    """The V100 spends three quarters of its host time in launching calls, because the queue is full: the device is what
    holds it. The MI300X waits in all-reduce."""
    path = real_path(name)
    bounds = path.bound_ns
    assert (path.paced_by, max(bounds, key=bounds.__getitem__)) == (paced_by, bound_by)


@needs_traces
def test_input_is_two_fifths_of_the_resnet_path() -> None:
    path = real_path("resnet50_workers_0")
    assert path.bound_ns["input"] / length_ns(path) == pytest.approx(0.40, abs=0.02)


def walk_naively(time_ns: list[int], edges: list[tuple[int, int, int]], late: list[int] | None) -> list[int | None]:
    """The instants of a graph by brute force: every node after all that leads to it, until nothing moves."""
    time: list[int | None] = [0, *[None] * (len(time_ns) - 1)]
    for _ in range(len(time) + 1):
        for node in range(1, len(time)):
            reached = [time[s] + w for s, t, w in edges if t == node and time[s] is not None]
            time[node] = max(reached) + (0 if late is None else late[node]) if reached else None
    return time


@given(
    times=st.lists(st.integers(0, 12), min_size=2, max_size=14),
    pairs=st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13), st.integers(0, 4)), max_size=24),
    late=st.none() | st.lists(st.integers(0, 5), min_size=14, max_size=14),
)
@settings(max_examples=150, deadline=None)
def test_a_replay_visits_every_edge_after_all_that_lead_to_it(
    times: list[int], pairs: list[tuple[int, int, int]], late: list[int] | None
) -> None:
    """Any graph, in numbers that follow no order, with ties, rings and edges back by a tick."""
    count = len(times)
    time = np.array([0, *times[1:]], dtype=np.int64)
    edges = [(s, t, w) for s, t, w in pairs if s < count and 0 < t < count and s != t and time[s] <= time[t] + 1]
    columns = [np.array([edge[i] for edge in edges], dtype=np.int64) for i in range(3)]
    order = order_edges(time, columns[0], columns[1])
    source, target, weight = (column[order] for column in columns)
    graph = dataclasses.replace(
        graph_of(PlainTrace([mark("ProfilerStep#0", 0, 9)])), time_ns=time, source=source, target=target, low_ns=0
    )
    behind = None if late is None else np.array(late[:count], dtype=np.int64)
    replayed = replay(graph, weight, behind).tolist()
    naive = walk_naively(time.tolist(), list(zip(source.tolist(), target.tolist(), weight.tolist(), strict=True)), late)
    assert [instant if instant > FAR_BACK_NS // 2 else None for instant in replayed] == naive
