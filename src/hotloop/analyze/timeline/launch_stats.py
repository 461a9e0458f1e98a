"""Links -> LaunchStats: how far the host runs ahead of the device, and how small the work is that it launches."""

from __future__ import annotations

import re

import numpy as np

from hotloop.core.timeline import IdleCauses, LaunchStats, SlowCall, Spread, StreamQueue
from hotloop.core.trace import Category, Trace

from .device_partition import DeviceCover
from .idle import SYNC_CALL
from .intervals import Int64s
from .links import Links
from .names import match_names

SHORT_KERNEL_NS = 10_000
"""About what launching a kernel costs the host: below it, the host cannot keep a device busy with single launches."""
SLOW_CALL_NS = 50_000
CUDA_CALL = re.compile(r"^cu")
FULL_QUEUE = 1000
"""CUDA takes 1024 launches on a stream before the launching call waits. Markers of events count too, so that in real
traces the depth stands at 1015 to 1022 kernels while calls wait."""


def measure_launches(trace: Trace, links: Links, cover: DeviceCover, idle: IdleCauses | None, top: int) -> LaunchStats:
    """Launch delays, queue depths, short kernels and slow calls of one device."""
    work = cover.work
    kernel = work[trace.category[links.device_rows[work]] == Category.KERNEL]
    duration = links.end_ns[kernel] - links.start_ns[kernel]
    short = duration < SHORT_KERNEL_NS
    linked = work[(links.launch_row[work] >= 0) & ~links.by_graph[work]]
    called = trace.start_ns[links.launch_row[linked]]
    returned = called + trace.duration_ns[links.launch_row[linked]]
    delay = links.start_ns[linked] - called
    return LaunchStats(
        delay_from_start=describe_spread(delay),
        delay_from_end=describe_spread(links.start_ns[linked] - returned),
        before_launch_count=int(np.count_nonzero(delay < 0)),
        graph_events_count=int(np.count_nonzero(links.by_graph[work])),
        queues=_measure_queues(trace, links, linked, called, cover.device),
        kernels_count=len(kernel),
        short_kernels_count=int(np.count_nonzero(short)),
        short_kernels_ns=int(duration[short].sum()),
        short_kernels_ratio=int(np.count_nonzero(short)) / len(kernel) if len(kernel) else None,
        late_idle_ratio=idle.launch_late_ns / idle.idle_ns if idle is not None and idle.idle_ns else None,
        calls=_list_slow_calls(trace, top),
    )


def describe_spread(value_ns: Int64s) -> Spread | None:
    """The spread of some times; None when there are none. Percentiles are nearest-rank."""
    count = len(value_ns)
    if count == 0:
        return None
    ordered = np.sort(value_ns)
    total = int(ordered.sum())

    def rank(percent: int) -> int:
        return int(ordered[max(0, -(-count * percent // 100) - 1)])

    return Spread(
        count=count,
        total_ns=total,
        mean_ns=_divide(total, count),
        min_ns=int(ordered[0]),
        median_ns=rank(50),
        p95_ns=rank(95),
        p99_ns=rank(99),
        max_ns=int(ordered[-1]),
    )


def _divide(total: int, count: int) -> int:
    """The quotient, rounded to the nearest without a float."""
    return (2 * total + count) // (2 * count)


def _measure_queues(trace: Trace, links: Links, work: Int64s, called: Int64s, device: int) -> tuple[StreamQueue, ...]:
    stream = trace.stream[links.device_rows[work]]
    is_cuda = bool(match_names(trace, trace.name[links.launch_row[work]], CUDA_CALL).all())
    queues = []
    for one in np.unique(stream).tolist():
        mine = stream == one
        # Clocks may disagree by a little: work cannot leave the queue before it has entered.
        enter = called[mine]
        leave = np.maximum(links.start_ns[work[mine]], enter)
        time = np.concatenate([enter, leave])
        change = np.concatenate([np.ones(len(enter), dtype=np.int64), np.full(len(leave), -1, dtype=np.int64)])
        order = np.lexsort((-change, time))
        time, depth = time[order], np.cumsum(change[order])
        lasting = np.diff(time)
        before = depth[:-1]
        queues.append(
            StreamQueue(
                stream=one,
                label=trace.stream_labels[one] if one >= 0 else "",
                device=device,
                launches_count=len(enter),
                max_depth_count=int(depth.max()),
                span_ns=int(time[-1] - time[0]),
                empty_ns=int(lasting[before == 0].sum()),
                depth_time_ns=int((lasting * before).sum()),
                full_ns=int(lasting[before >= FULL_QUEUE].sum()) if is_cuda else None,
            )
        )
    return tuple(sorted(queues, key=lambda q: (-q.launches_count, q.stream)))


def _list_slow_calls(trace: Trace, top: int) -> tuple[SlowCall, ...]:
    """All calls of the runtime by name; calls that are meant to wait have no outliers."""
    rows = np.flatnonzero(trace.category == Category.RUNTIME)
    if len(rows) == 0:
        return ()
    name, duration = trace.name[rows], trace.duration_ns[rows]
    order = np.argsort(name, kind="stable")
    name, duration = name[order], duration[order]
    first = np.flatnonzero(np.concatenate([[True], name[1:] != name[:-1]]))
    waiting = match_names(trace, name, SYNC_CALL)
    slow = (duration > SLOW_CALL_NS) & ~waiting
    count = np.diff(np.append(first, len(name)))
    total, longest = np.add.reduceat(duration, first), np.maximum.reduceat(duration, first)
    outliers = np.add.reduceat(slow.astype(np.int64), first)
    outliers_ns = np.add.reduceat(np.where(slow, duration, 0), first)
    calls = [
        SlowCall(
            name=trace.names[int(name[at])],
            count=int(count[i]),
            total_ns=int(total[i]),
            max_ns=int(longest[i]),
            outliers_count=int(outliers[i]),
            outliers_ns=int(outliers_ns[i]),
        )
        for i, at in enumerate(first.tolist())
    ]
    return tuple(sorted(calls, key=lambda c: (-c.total_ns, c.name))[:top])
