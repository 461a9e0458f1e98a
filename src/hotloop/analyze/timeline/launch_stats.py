"""Links -> LaunchStats: how far the host runs ahead of the device, and how small the work is that it launches."""

from __future__ import annotations

import numpy as np

from hotloop.core.timeline import IdleCauses, LaunchStats, StreamQueue
from hotloop.core.trace import Category, Trace

from .device_partition import DeviceCover
from .intervals import Int64s
from .links import Links

SHORT_KERNEL_NS = 10_000
"""About what launching a kernel costs the host: below it, the host cannot keep a device busy with single launches."""


def measure_launches(trace: Trace, links: Links, cover: DeviceCover, idle: IdleCauses | None) -> LaunchStats:
    """Launch delays, queue depths and short kernels of one device."""
    work = cover.work
    kernel = work[trace.category[links.device_rows[work]] == Category.KERNEL]
    is_short = links.end_ns[kernel] - links.start_ns[kernel] < SHORT_KERNEL_NS
    linked = work[(links.launch_row[work] >= 0) & ~links.by_graph[work]]
    called = trace.start_ns[links.launch_row[linked]]
    delay = np.sort(links.start_ns[linked] - called)
    return LaunchStats(
        delay_median_ns=_find_percentile(delay, 50),
        delay_p95_ns=_find_percentile(delay, 95),
        queues=_measure_queues(trace, links, linked, called),
        kernels_count=len(kernel),
        short_kernels_ratio=int(np.count_nonzero(is_short)) / len(kernel) if len(kernel) else None,
        late_idle_ratio=idle.launch_late_ns / idle.idle_ns if idle is not None and idle.idle_ns else None,
    )


def _find_percentile(ordered: Int64s, percent: int) -> int | None:
    """The nearest-rank percentile, which was measured; None of nothing."""
    count = len(ordered)
    return int(ordered[max(0, -(-count * percent // 100) - 1)]) if count else None


def _measure_queues(trace: Trace, links: Links, work: Int64s, called: Int64s) -> tuple[StreamQueue, ...]:
    stream = trace.stream[links.device_rows[work]]
    queues = []
    for one in np.unique(stream).tolist():
        mine = stream == one
        enter = called[mine]
        # Clocks may disagree by a little: work cannot leave the queue before it has entered.
        leave = np.maximum(links.start_ns[work[mine]], enter)
        queues.append(
            StreamQueue(
                label=trace.stream_labels[one] if one >= 0 else "",
                launches_count=len(enter),
                span_ns=int(leave.max() - enter.min()),
                depth_time_ns=int((leave - enter).sum()),
            )
        )
    return tuple(sorted(queues, key=lambda q: -q.launches_count))
