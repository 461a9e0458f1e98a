"""Device work -> compute, comm or mem, and the partition of any window: compute, exposed comm, exposed mem, idle.

Copies and sets are mem. A kernel is comm if the file describes a collective on it, if the innermost operator or range
around its launch is a collective, or, failing both, if only communication has such a name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.timeline import CommGroup, DevicePartition, DeviceTimeline
from hotloop.core.trace import Category, Trace

from .intervals import Int64s, Intervals, cover_windows, unite, unite_sets
from .links import Links, match_names

Int8s = NDArray[np.int8]

COMPUTE, COMM, MEM = 0, 1, 2
CLASS_NAMES = ("compute", "comm", "mem")
BY_NONE, BY_METADATA, BY_NAME = 0, 1, 2
SOURCE_NAMES = (None, "metadata", "name")

COLLECTIVE_RANGE = re.compile(
    r"^(?:record_param_comms$|c10d::|_?c10d_functional::|nccl:|rccl:|gloo:|mpi:|ucc:|hccl:|xccl:|symm_mem::(?!fused_)"
    r"|deep_ep::|DeepEP)"
)
"""Operators and ranges whose own kernels move data between ranks. This does not include kernels of operators nested in
them: aten operators launch the copies around a collective."""

COMM_NAME = re.compile(
    r"^(?:void\s+)?(?:nccl|rccl|msccl|mscclpp|oneccl|hccl|xccl)(?:[A-Z_:]|pp)"
    r"|ncclDevKernel|ncclKernel|mscclKernel"
    r"|\bdeep_ep::|\b(?:inter|intra)node(?:_ll)?::|\bnvshmem|\brocshmem"
    r"|cross_device_reduce_[12]stage|(?:one|two)_?shot_?all_?reduce|all_?reduce_?(?:one|two)_?shot"
    r"|(?:one|two)ShotAllReduce|multimem_(?:all|one|two|reduce)|allreduce_fusion_kernel|\buserbuffers_fp16_sum|quick_?reduce::"
)
"""Names of kernels that only communication has: NCCL, RCCL, MSCCL, oneCCL, DeepEP (its forks
too, by the namespaces of its kernels), NVSHMEM, the custom all-reduces of
vLLM, PyTorch's symmetric memory, FlashInfer, Transformer Engine and AITER."""


@dataclass(frozen=True, slots=True)
class Classes:
    """One entry for each work number of Links."""

    kind: Int8s
    """COMPUTE, COMM or MEM."""
    source: Int8s
    """How it was recognized as comm: BY_METADATA, BY_NAME; BY_NONE for the rest."""


def classify_work(trace: Trace, links: Links) -> Classes:
    """The class of all device work of a trace."""
    rows = links.device_rows
    kernel = trace.category[rows] == Category.KERNEL
    described = np.zeros(len(rows), dtype=bool)
    for fact in ("collective", "process_group"):
        with_fact, _, _ = trace.texts(fact)
        described |= np.isin(rows, with_fact)
    place = links.op_place
    known = np.flatnonzero(place >= 0)
    if len(known):
        range_names = trace.name[links.ranges.rows[place[known]]]
        described[known] |= match_names(trace, range_names, COLLECTIVE_RANGE)
    described &= kernel
    named = kernel & ~described & match_names(trace, trace.name[rows], COMM_NAME)
    kind = np.where(kernel, COMPUTE, MEM)
    kind[described | named] = COMM
    source = np.where(described, BY_METADATA, np.where(named, BY_NAME, BY_NONE))
    return Classes(kind.astype(np.int8), source.astype(np.int8))


def list_comm_groups(trace: Trace, links: Links, classes: Classes) -> tuple[CommGroup, ...]:
    """The communication kernels by name and by how they were recognized, the longest in total first."""
    at = np.flatnonzero(classes.kind == COMM)
    key = trace.name[links.device_rows[at]].astype(np.int64) * 4 + classes.source[at]
    groups = []
    for one in np.unique(key).tolist():
        mine = at[key == one]
        groups.append(
            CommGroup(
                name=trace.names[one // 4],
                comm_source=SOURCE_NAMES[one % 4] or "name",
                count=len(mine),
                total_ns=int((links.end_ns[mine] - links.start_ns[mine]).sum()),
            )
        )
    return tuple(sorted(groups, key=lambda g: (-g.total_ns, g.name)))


@dataclass(frozen=True, slots=True)
class DeviceCover:
    """When one device did what: the five unions that every partition is made of."""

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
