"""Device work and its classes -> DevicePartition of any window: compute, exposed comm, exposed mem, idle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotloop.core.timeline import DevicePartition, DeviceTimeline
from hotloop.core.trace import Trace

from .classes import COMM, COMPUTE, MEM, Classes
from .intervals import Int64s, Intervals, cover_windows, unite, unite_sets
from .links import Links


@dataclass(frozen=True, slots=True)
class DeviceCover:
    """When one device did what. The five unions that every partition is made of."""

    device: int
    work: Int64s
    """Work numbers of the device."""
    compute: Intervals
    comm: Intervals
    mem: Intervals
    compute_or_comm: Intervals
    busy: Intervals


def cover_devices(trace: Trace, links: Links, classes: Classes) -> tuple[DeviceCover, ...]:
    """The cover of every device that did work, the busiest first."""
    device = trace.device[links.device_rows]
    covers = []
    for one in np.unique(device).tolist():
        work = np.flatnonzero(device == one)
        kind, start, end = classes.kind[work], links.start_ns[work], links.end_ns[work]
        compute, comm, mem = (unite(start[kind == c], end[kind == c]) for c in (COMPUTE, COMM, MEM))
        both = unite_sets(compute, comm)
        covers.append(DeviceCover(one, work, compute, comm, mem, both, unite_sets(both, mem)))
    return tuple(sorted(covers, key=lambda c: (-c.busy.total_ns, -len(c.work), c.device)))


def partition_windows(cover: DeviceCover, low_ns: Int64s, high_ns: Int64s) -> tuple[DevicePartition, ...]:
    """The partition of every window [low, high) of the device. The windows may overlap."""
    compute, comm, mem, both, busy = (
        cover_windows(part, low_ns, high_ns).tolist()
        for part in (cover.compute, cover.comm, cover.mem, cover.compute_or_comm, cover.busy)
    )
    window = (high_ns - low_ns).tolist()
    return tuple(
        DevicePartition(
            window_ns=window[i],
            busy_ns=busy[i],
            idle_ns=window[i] - busy[i],
            compute_ns=compute[i],
            comm_ns=comm[i],
            mem_ns=mem[i],
            overlap_ns=compute[i] + comm[i] - both[i],
            exposed_comm_ns=both[i] - compute[i],
            exposed_mem_ns=busy[i] - both[i],
        )
        for i in range(len(window))
    )


def describe_device(trace: Trace, links: Links, cover: DeviceCover) -> DeviceTimeline:
    """One device over the whole trace, from its first to its last event."""
    start, end = links.start_ns[cover.work], links.end_ns[cover.work]
    low, high = int(start.min()), int(end.max())
    (partition,) = partition_windows(cover, np.array([low], dtype=np.int64), np.array([high], dtype=np.int64))
    return DeviceTimeline(
        device=cover.device,
        start_ns=low,
        end_ns=high,
        partition=partition,
        gpu_events=len(cover.work),
        unlinked_events=int(np.count_nonzero(links.launch_row[cover.work] < 0)),
        work_ns=int((end - start).sum()),
    )
