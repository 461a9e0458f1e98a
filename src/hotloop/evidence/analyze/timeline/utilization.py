"""Device work, operators and steps of a trace -> key ratios, and how much of the device and of its peak was used."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.core.timeline import Ratios
from hotloop.core.trace import Category, Trace
from hotloop.core.utilization import Utilization, rate_over_peak

from .anatomy import DEVICE_TO_HOST_COPY, HOST_COPY
from .classes import DeviceCover, partition_windows
from .flops import find_peaks
from .intervals import Int64s, Intervals, unite
from .links import Links, match_names
from .steps import BACKWARD_NAME, DeviceSteps, StepWindows
from .tables import MATRIX_KERNEL, NO_MATRIX_KERNEL, LeafCalls

PAGEABLE = re.compile(r"Pageable", re.IGNORECASE)
PINNED = re.compile(r"Pinned", re.IGNORECASE)
RECOMPUTE_ANCHOR = re.compile(r"(?:Checkpoint\w*Backward)$")
"""The backward of a reentrant checkpoint: calls from it with a forward's sequence number are computed again."""


def measure_ratios(trace: Trace, links: Links, cover: DeviceCover | None, steps: StepWindows) -> Ratios:
    """The recomputed part of the device window of the entire trace; without a device, of the complete steps."""
    recompute, ranges = find_recompute(trace, links), links.ranges
    pageable = None if cover is None else find_pageable_copies(trace, links, cover)
    again_ns: int | None = None
    if cover is None:
        whole_ns = int((steps.end_ns - steps.start_ns)[steps.is_complete].sum())
        if recompute is not None:
            again_ns = unite(ranges.start_ns[recompute], ranges.end_ns[recompute]).total_ns
    else:
        whole_ns = int(links.end_ns[cover.work].max() - links.start_ns[cover.work].min())
        if recompute is not None:
            work = cover.work[np.append(recompute, False)[links.op_place[cover.work]]]
            again_ns = unite(links.start_ns[work], links.end_ns[work]).total_ns
    return Ratios(
        recompute_ratio=again_ns / whole_ns if again_ns is not None and whole_ns > 0 else None,
        pageable_copies_ns=None if pageable is None else pageable.total_ns,
    )


def find_pageable_copies(trace: Trace, links: Links, cover: DeviceCover) -> Intervals | None:
    """When a device copied from or to pageable memory of the host; None if the names of the copies do not show it."""
    work = cover.work[trace.category[links.device_rows[cover.work]] == Category.MEMCPY]
    name = trace.name[links.device_rows[work]]
    crosses = match_names(trace, name, HOST_COPY) | match_names(trace, name, DEVICE_TO_HOST_COPY)
    crossing, name = work[crosses], name[crosses]
    pageable = match_names(trace, name, PAGEABLE)
    if len(crossing) and not bool((pageable | match_names(trace, name, PINNED)).any()):
        return None
    return unite(links.start_ns[crossing[pageable]], links.end_ns[crossing[pageable]])


def find_recompute(trace: Trace, links: Links) -> NDArray[np.bool_] | None:
    """Ranges that a backward pass computed again: ranges inside a checkpoint's backward that are not a backward
    themselves, or forward operators (with their own sequence number) inside a backward node; None without backward
    passes."""
    ranges = links.ranges
    name = trace.name[ranges.rows]
    backward = match_names(trace, name, BACKWARD_NAME)
    if not backward.any():
        return None
    anchor = match_names(trace, name, RECOMPUTE_ANCHOR)
    holder = ranges.find_nearest(backward)
    inside = (holder >= 0) & ~backward
    # In a backward node, its own operators run without autograd; those that autograd records are a forward.
    rows, _ = trace.integers("sequence_number")
    joined, forward_thread = trace.integers("forward_thread")
    recorded = np.isin(ranges.rows, rows) & ~np.isin(ranges.rows, joined[forward_thread > 0])
    again = inside & recorded
    if anchor.any():
        held = np.flatnonzero(inside)
        again[held[anchor[holder[held]]]] = True
    return ranges.find_nearest(again) >= 0


NO_DEVICE = "the trace shows no work on an accelerator"
NO_FLOPS = (
    "the FLOPs of a step are unknown: the trace has no shapes of operators (record_shapes=True), or contains products "
    "whose work is unknown, as in compiled code"
)
MOST_UNCOUNTED_RATIO = 0.05
"""Share of the time of matrix kernels: more would make MFU too small by as much."""
LOOK_UP = re.compile("fbgemm|embedding", re.IGNORECASE)
"""Kernels of a library for matrix products that only move rows."""
NO_PEAK = "the trace does not name a device whose peak rate is known"


def measure_utilization(
    trace: Trace,
    links: Links,
    steps: StepWindows,
    cover: DeviceCover | None,
    seen: DeviceSteps | None,
    calls: LeafCalls | None,
) -> Utilization:
    """Over the device windows of the complete steps (StepWindow.is_whole_on_device); over the entire trace without
    any."""
    if cover is None or seen is None:
        return Utilization(unknown=dict.fromkeys(_FIELDS, NO_DEVICE))
    start_ns, end_ns, chosen = _windows(links, steps, cover, seen)
    parts = partition_windows(cover, start_ns, end_ns)
    window_ns = max(1, sum(part.window_ns for part in parts))
    unknown = {"utilization_ratio": "NVML was not queried: the trace covers only one program"}
    active_ns = _measure_sm_active(trace, links, cover, start_ns, end_ns)
    if active_ns is None:
        unknown["sm_active_ratio"] = "the trace does not contain the blocks per SM of its kernels"
    values: dict[str, Any] = {
        "busy_ratio": sum(part.busy_ns for part in parts) / window_ns,
        "sm_active_ratio": None if active_ns is None else active_ns / window_ns,
    }
    count = max(1, len(parts) if chosen is not None else len(steps))
    flops = _count_flops(trace, links, steps, cover, calls, chosen)
    reason: str | None = flops if isinstance(flops, str) else None
    if not isinstance(flops, str):
        hardware_flops, again_flops, types = flops
        model_flops, hardware_flops = (hardware_flops - again_flops) / count, hardware_flops / count
        values |= {"flops_per_step": model_flops, "hardware_flops_per_step": hardware_flops}
        name = next((one.name for one in trace.facts.devices if one.index == cover.device), None)
        peaks = find_peaks(name)
        peak = None if peaks is None else peaks.of(types)
        if peak is None:
            reason = NO_PEAK
        else:
            rate = 1e9 * count / window_ns
            values["mfu_ratio"] = rate_over_peak(rate, model_flops, peak.flops_per_s)
            values["hfu_ratio"] = rate_over_peak(rate, hardware_flops, peak.flops_per_s)
            values |= {"peak_flops_per_s": peak.flops_per_s, "peak": f"{peak.kind} of {name}, dense, by its data sheet"}
    if reason is not None:
        unknown |= {"mfu_ratio": reason, "hfu_ratio": reason}
    return Utilization(**values, unknown=unknown)


_FIELDS = ("utilization_ratio", "busy_ratio", "sm_active_ratio", "mfu_ratio", "hfu_ratio")


def _windows(
    links: Links, steps: StepWindows, cover: DeviceCover, seen: DeviceSteps
) -> tuple[Int64s, Int64s, NDArray[np.bool_] | None]:
    """Device windows, and the steps that they belong to; for the entire trace, None."""
    chosen = seen.has_window & steps.is_complete
    chosen[np.flatnonzero(seen.has_window)[-1:]] = False  # it ends with its last event: its closing idle time is unseen
    if chosen.any():
        return seen.start_ns[chosen], seen.end_ns[chosen], chosen
    start, end = links.start_ns[cover.work].min(), links.end_ns[cover.work].max()
    return np.array([start], dtype=np.int64), np.array([end], dtype=np.int64), None


def _measure_sm_active(
    trace: Trace, links: Links, cover: DeviceCover, start_ns: Int64s, end_ns: Int64s
) -> float | None:
    """Time in the windows weighted by min(1, blocks per SM) of the kernels that run, ns; those of concurrent kernels
    add up. It is an upper bound: blocks need not be spread evenly. None if a kernel has no number of blocks.

    This is the estimate of TensorBoard's profiler plugin, "Est. SM Efficiency" (pytorch/kineto,
    tb_plugin/docs/gpu_utilization.md), which takes kernels one by one.
    """
    rows = links.device_rows[cover.work]
    is_kernel = trace.category[rows] == Category.KERNEL
    kernels, rows = cover.work[is_kernel], rows[is_kernel]
    told, blocks = trace.numbers("blocks_per_sm")
    if not len(rows) or not np.isin(rows, told).all():
        return None
    value = blocks[np.searchsorted(told, rows)]
    time = np.concatenate([links.start_ns[kernels], links.end_ns[kernels]])
    order = np.argsort(time, kind="stable")
    time = time[order]
    active = np.minimum(1.0, np.cumsum(np.concatenate([value, -value])[order]))
    area = np.concatenate([[0.0], np.cumsum(active[:-1] * np.diff(time))])
    return float((np.interp(end_ns, time, area) - np.interp(start_ns, time, area)).sum())


def _name_uncounted(trace: Trace, links: Links, cover: DeviceCover, calls: LeafCalls) -> str | None:
    """The longest matrix kernel that no counted operator launched, if such kernels take more than MOST_UNCOUNTED_RATIO
    of the time of matrix kernels: compiled code, and operators of other libraries. Kernels without a launch show
    nothing.
    """
    work = cover.work[links.op_place[cover.work] >= 0]
    rows = links.device_rows[work]
    matrix = match_names(trace, trace.name[rows], MATRIX_KERNEL)
    for other in (NO_MATRIX_KERNEL, LOOK_UP):
        matrix &= ~match_names(trace, trace.name[rows], other)
    work = work[matrix & (trace.category[rows] == Category.KERNEL)]
    is_counted = np.isin(links.ranges.rows, calls.rows)
    inside = links.ranges.find_nearest(is_counted)[links.op_place[work]] >= 0
    duration = links.end_ns[work] - links.start_ns[work]
    outside = work[~inside]
    if duration[~inside].sum() <= MOST_UNCOUNTED_RATIO * duration.sum():
        return None
    longest = outside[np.argmax(duration[~inside])]
    return str(trace.names[trace.name[links.device_rows[longest]]])[:80]


def _count_flops(
    trace: Trace,
    links: Links,
    steps: StepWindows,
    cover: DeviceCover,
    calls: LeafCalls | None,
    chosen: NDArray[np.bool_] | None,
) -> tuple[float, float, str] | str:
    """FLOPs of the calls in the windows, the part of them that was computed before, and the types of most of them; or
    why they are unknown."""
    if calls is None:
        return NO_FLOPS
    uncounted = _name_uncounted(trace, links, cover, calls)
    if uncounted is not None:
        return f"the FLOPs of a step are unknown: much matrix work ran outside of counted operators, as in {uncounted}"
    inside = np.ones(len(calls.rows), dtype=bool)
    if chosen is not None:
        step = steps.find_step(trace.start_ns[calls.rows])
        inside = (step >= 0) & chosen[step]
    again = calls.again.copy()
    rerun = find_recompute(trace, links)
    if rerun is not None:
        held = np.isin(calls.rows, links.ranges.rows[rerun])
        again[held] = calls.flops[held]
    by_types: Counter[str] = Counter()
    for types, flops in zip(np.array(calls.types)[inside].tolist(), calls.flops[inside].tolist(), strict=True):
        by_types[types] += flops
    if not by_types.total():
        return NO_FLOPS
    return int(calls.flops[inside].sum()), int(again[inside].sum()), by_types.most_common(1)[0][0]
