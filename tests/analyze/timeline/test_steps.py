from __future__ import annotations

import pytest

from hotloop.core.timeline import RankTimeline
from hotloop.core.trace import Category
from hotloop.evidence.analyze.timeline.reduce import reduce_trace

from .plain_trace import US, PlainTrace, Row, call, kernel, mark, op


def reduce(*rows: Row) -> RankTimeline:
    return reduce_trace(PlainTrace(rows))


def device_windows(t: RankTimeline) -> list[tuple[int, int] | None]:
    return [
        None
        if s.device_start_ns is None or s.device_end_ns is None
        else (s.device_start_ns // US, s.device_end_ns // US)
        for s in t.steps
    ]


def test_events_belong_to_the_step_that_launched_them() -> None:
    """The device runs behind: step 7 still runs while the host is in step 8."""
    t = reduce(
        mark("ProfilerStep#7", 0, 100),
        call("cudaLaunchKernel", 10, 2, 1),
        call("cudaLaunchKernel", 20, 2, 2),
        mark("ProfilerStep#8", 100, 100),
        call("cudaLaunchKernel", 110, 2, 3),
        kernel("a", 50, 40, 1),
        kernel("a", 90, 60, 2),
        kernel("a", 155, 100, 3),
    )
    assert t.step_source == "ProfilerStep"
    assert [s.index for s in t.steps] == [7, 8]
    assert device_windows(t) == [(50, 155), (155, 255)]
    assert [s.gpu_events for s in t.steps] == [2, 1]
    assert [s.is_tail_inclusive for s in t.steps] == [False, True]
    first, last = (s.partition for s in t.steps)
    assert (first.idle_ns, last.idle_ns) == (5 * US, 0)


def test_kernels_of_a_graph_belong_to_the_step_of_its_launch() -> None:
    t = reduce(
        mark("ProfilerStep#0", 0, 100),
        call("cudaGraphLaunch", 90, 5, 1),
        mark("ProfilerStep#1", 100, 100),
        call("cudaGraphLaunch", 150, 5, 2),
        *(kernel("a", 110 + 10 * i, 10, 1) for i in range(4)),
        *(kernel("a", 170 + 10 * i, 10, 2) for i in range(4)),
    )
    assert [s.gpu_events for s in t.steps] == [4, 4]
    assert device_windows(t) == [(110, 170), (170, 210)]


def test_unlinked_events_go_by_their_time_and_are_counted() -> None:
    t = reduce(
        mark("ProfilerStep#0", 0, 100),
        call("cudaLaunchKernel", 10, 2, 1),
        mark("ProfilerStep#1", 100, 100),
        call("cudaLaunchKernel", 110, 2, 2),
        kernel("before", 5, 5),
        kernel("a", 50, 10, 1),
        kernel("lost", 70, 10),
        kernel("lost", 80, 10, 0),
        kernel("a", 120, 10, 2),
    )
    assert [(s.gpu_events, s.unlinked_events) for s in t.steps] == [(3, 2), (1, 0)]
    assert t.devices[0].unlinked_events == 3
    assert {n.code: n.count for n in t.notes}["outside-steps"] == 1


def test_a_step_without_device_work_has_no_device_window() -> None:
    t = reduce(
        mark("ProfilerStep#0", 0, 100),
        mark("ProfilerStep#1", 100, 100),
        call("cudaLaunchKernel", 110, 2, 2),
        kernel("a", 120, 10, 2),
    )
    assert device_windows(t) == [None, (120, 130)]
    assert t.steps[0].partition is None


def test_work_that_overtakes_on_another_stream_moves_the_edge() -> None:
    """Step 1 copies on its own stream before the last kernel of step 0 has begun: windows still follow each other."""
    t = reduce(
        mark("ProfilerStep#0", 0, 100),
        call("cudaLaunchKernel", 10, 2, 1),
        mark("ProfilerStep#1", 100, 100),
        call("cudaLaunchKernel", 110, 2, 2),
        call("cudaLaunchKernel", 120, 2, 3),
        kernel("a", 130, 50, 1, "7"),
        kernel("b", 115, 10, 2, "24"),
        kernel("a", 180, 50, 3, "7"),
    )
    assert device_windows(t) == [(115, 115), (115, 230)]


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SGD, ADAM = "Optimizer.step#SGD.step", "Optimizer.step#Adam.step"
MM = op("aten::mm", 10, 5)


@pytest.mark.parametrize(
    ("rows", "source", "windows", "complete"),
    [
        ([mark("step 1", 0, 90), mark("step 2", 100, 90), MM], "range step", [(0, 90), (100, 190)], [True, True]),
        (
            [mark("train_step", 0, 90), mark("train_step", 100, 90)],
            "range train_step",
            [(0, 90), (100, 190)],
            [True] * 2,
        ),
        ([mark("## iteration 4 ##", at, 90) for at in (0, 100)], "range iteration", [(0, 90), (100, 190)], [True] * 2),
        ([MM, mark(SGD, 40, 10), mark(SGD, 90, 10)], "optimizer", [(10, 50), (50, 100)], [False, True]),
        # the optimizer that steps least ends the steps
        (
            [*(mark(ADAM, 10 * i, 2) for i in range(1, 7)), mark(SGD, 35, 2), mark(SGD, 65, 2)],
            "optimizer",
            [(10, 37), (37, 67)],
            [False, True],
        ),
        ([mark(LOADER, 10, 5), mark(LOADER, 50, 5), op("x", 70, 5)], "dataloader", [(10, 50), (50, 75)], [True, False]),
        ([mark(SGD, 40, 10)], "whole trace", [(40, 50)], [True]),
        # the profiler's own span is no host activity
        ([Row(Category.OTHER, "PyTorch Profiler (0)", 0, 900 * US), MM], "whole trace", [(10, 15)], [True]),
    ],
)
def test_what_marks_steps_cuts_windows(
    rows: list[Row], source: str, windows: list[tuple[int, int]], complete: list[bool]
) -> None:
    t = reduce(*rows)
    assert t.step_source == source
    assert [(s.host_start_ns // US, s.host_end_ns // US) for s in t.steps] == windows
    assert [s.is_complete for s in t.steps] == complete


@pytest.mark.parametrize(
    "name",
    [
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "Optimizer.step#SGD.step",
        "ProfilerStep#1",
        "step 1",
    ],
)
def test_ranges_that_take_no_time_mark_no_steps(name: str) -> None:
    t = reduce(op("aten::mm", 0, 50), mark(name, 10, 0), mark(name, 20, 0), mark(name, 30, 0))
    assert t.step_source == "whole trace"


def test_without_marks_the_whole_trace_is_one_window_and_says_so() -> None:
    t = reduce(op("aten::mm", 0, 50), call("cudaLaunchKernel", 10, 2, 1), kernel("a", 20, 10, 1), kernel("a", 40, 10))
    assert t.step_source == "whole trace"
    assert [(s.gpu_events, s.unlinked_events) for s in t.steps] == [(2, 1)]
    assert "no-steps" in {n.code for n in t.notes}


def test_a_trace_of_the_device_alone_is_cut_by_nothing() -> None:
    t = reduce(kernel("a", 0, 10), kernel("a", 30, 10))
    assert (t.step_source, t.anatomy.breakdown) == ("whole trace", None)
    assert t.devices[0].partition.idle_ns == 20 * US
    assert {"no-host", "unlinked-kernels"} <= {n.code for n in t.notes}
