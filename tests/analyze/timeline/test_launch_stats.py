from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hotloop.analyze.timeline.reduce import reduce_trace
from hotloop.analyze.timeline.tables import describe_spread
from hotloop.core.timeline import LaunchStats

from .plain_trace import US, PlainTrace, Row, call, kernel


def measure(*rows: Row) -> LaunchStats:
    launch = reduce_trace(PlainTrace(rows)).launch
    assert launch is not None
    return launch


def test_delays_count_from_the_start_and_from_the_end_of_the_call() -> None:
    launch = measure(
        call("cudaLaunchKernel", 0, 5, 1),
        call("cudaLaunchKernel", 10, 5, 2),
        kernel("a", 3, 20, 1),
        kernel("a", 23, 20, 2),
    )
    assert launch.delay_from_start is not None
    assert launch.delay_from_end is not None
    assert (launch.delay_from_start.min_ns, launch.delay_from_start.max_ns) == (3 * US, 13 * US)
    assert (launch.delay_from_end.min_ns, launch.delay_from_end.max_ns) == (-2 * US, 8 * US)
    assert launch.delay_from_start.mean_ns == 8 * US


def test_work_before_its_launch_is_counted_not_hidden() -> None:
    launch = measure(call("cudaLaunchKernel", 10, 5, 1), kernel("a", 8, 20, 1))
    assert launch.before_launch_count == 1
    assert launch.delay_from_start is not None
    assert launch.delay_from_start.min_ns == -2 * US


def test_the_queue_of_a_stream_is_what_was_launched_and_has_not_begun() -> None:
    """Depth: 1 from 0, 2 from 10, 1 from 20 (first begins), 0 from 30, 1 from 50 to 60."""
    launch = measure(
        call("cudaLaunchKernel", 0, 5, 1),
        call("cudaLaunchKernel", 10, 5, 2),
        call("cudaLaunchKernel", 50, 5, 3),
        kernel("a", 20, 10, 1),
        kernel("a", 30, 10, 2),
        kernel("a", 60, 10, 3),
    )
    (queue,) = launch.queues
    assert (queue.label, queue.launches_count, queue.max_depth_count) == ("7", 3, 2)
    assert (queue.span_ns, queue.empty_ns, queue.depth_time_ns) == (60 * US, 20 * US, 50 * US)
    assert queue.full_ns == 0


def test_graph_launches_are_no_queue() -> None:
    launch = measure(
        call("cudaGraphLaunch", 0, 5, 1), *(kernel("a", 10 + i, 1, 1) for i in range(5)), kernel("b", 40, 20)
    )
    assert (launch.queues, launch.graph_events_count, launch.delay_from_start) == ((), 5, None)


def test_the_limit_of_the_queue_is_known_for_cuda_only() -> None:
    launch = measure(call("hipLaunchKernel", 0, 5, 1), kernel("a", 10, 1, 1))
    assert launch.queues[0].full_ns is None


def test_short_kernels_and_late_idle_say_how_launch_bound_it_is() -> None:
    launch = measure(
        call("cudaLaunchKernel", 0, 2, 1),
        call("cudaLaunchKernel", 30, 2, 2),
        call("cudaLaunchKernel", 32, 2, 3),
        kernel("a", 10, 9, 1),
        kernel("a", 39, 10, 2),
        kernel("a", 54, 30, 3),
    )
    assert (launch.kernels_count, launch.short_kernels_count, launch.short_kernels_ns) == (3, 1, 9 * US)
    assert launch.short_kernels_ratio == 1 / 3
    assert launch.late_idle_ratio == 20 / 25


def test_slow_calls_leave_out_those_that_are_meant_to_wait() -> None:
    launch = measure(
        call("cudaLaunchKernel", 0, 60, 1),
        call("cudaLaunchKernel", 70, 5, 2),
        call("cudaDeviceSynchronize", 80, 500),
        kernel("a", 100, 10, 1),
    )
    calls = {c.name: c for c in launch.calls}
    assert (calls["cudaLaunchKernel"].outliers_count, calls["cudaLaunchKernel"].outliers_ns) == (1, 60 * US)
    assert (calls["cudaDeviceSynchronize"].outliers_count, calls["cudaDeviceSynchronize"].max_ns) == (0, 500 * US)


@given(st.lists(st.integers(-1000, 10**15), min_size=1, max_size=60))
def test_percentiles_are_measured_values_in_order(values: list[int]) -> None:
    spread = describe_spread(np.array(values, dtype=np.int64))
    assert spread is not None
    ranks = [spread.min_ns, spread.median_ns, spread.p95_ns, spread.p99_ns, spread.max_ns]
    assert ranks == sorted(ranks)
    assert set(ranks) <= set(values)
    assert sum(v < spread.median_ns for v in values) <= len(values) / 2 <= sum(v <= spread.median_ns for v in values)
    assert spread.total_ns == sum(values)
    assert abs(spread.mean_ns * len(values) - sum(values)) <= len(values) / 2
