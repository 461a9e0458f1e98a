from __future__ import annotations

from hotloop.analyze.timeline.reduce import reduce_trace
from hotloop.core.timeline import LaunchStats

from .plain_trace import US, PlainTrace, Row, call, kernel


def measure(*rows: Row) -> LaunchStats:
    return reduce_trace(PlainTrace(rows)).launch


def test_delays_and_the_queue_of_a_stream_are_what_was_launched_and_has_not_begun() -> None:
    """Delays of 20, 20 and 10. Depth: 1 from 0, 2 from 10, 1 from 20 (first begins), 0 from 30, 1 from 50 to 60."""
    launch = measure(
        call("cudaLaunchKernel", 0, 5, 1),
        call("cudaLaunchKernel", 10, 5, 2),
        call("cudaLaunchKernel", 50, 5, 3),
        kernel("a", 20, 10, 1),
        kernel("a", 30, 10, 2),
        kernel("a", 60, 10, 3),
    )
    assert (launch.delay_median_ns, launch.delay_p95_ns) == (20 * US, 20 * US)
    (queue,) = launch.queues
    assert (queue.label, queue.launches_count) == ("7", 3)
    assert (queue.span_ns, queue.depth_time_ns) == (60 * US, 50 * US)


def test_work_before_its_launch_is_told_not_hidden() -> None:
    assert measure(call("cudaLaunchKernel", 10, 5, 1), kernel("a", 8, 20, 1)).delay_median_ns == -2 * US


def test_graph_launches_are_no_queue() -> None:
    launch = measure(
        call("cudaGraphLaunch", 0, 5, 1), *(kernel("a", 10 + i, 1, 1) for i in range(5)), kernel("b", 40, 20)
    )
    assert (launch.queues, launch.delay_median_ns) == ((), None)


def test_short_kernels_and_late_idle_say_how_launch_bound_it_is() -> None:
    launch = measure(
        call("cudaLaunchKernel", 0, 2, 1),
        call("cudaLaunchKernel", 30, 2, 2),
        call("cudaLaunchKernel", 32, 2, 3),
        kernel("a", 10, 9, 1),
        kernel("a", 39, 10, 2),
        kernel("a", 54, 30, 3),
    )
    assert (launch.kernels_count, launch.short_kernels_ratio) == (3, 1 / 3)
    assert launch.late_idle_ratio == 20 / 25
