"""Steps, phases and device work -> the key ratios, and how much of the forward was computed twice."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from hotloop.core.timeline import Ratios
from hotloop.core.trace import Category, Trace

from .anatomy import DEVICE_TO_HOST_COPY, HOST_COPY, PHASE, HostPhases
from .classes import COLLECTIVE_RANGE, COMM, Classes
from .device_partition import DeviceCover
from .intervals import Int64s, Intervals, unite
from .links import Links
from .names import match_names
from .steps import BACKWARD_NAME, StepWindows

ALL_REDUCE = re.compile(r"all_?reduce", re.IGNORECASE)
PAGEABLE = re.compile(r"Pageable", re.IGNORECASE)
PINNED = re.compile(r"Pinned", re.IGNORECASE)
RECOMPUTE_ANCHOR = re.compile(r"(?:Checkpoint\w*Backward)$")
"""The backward of a reentrant checkpoint: what it calls that has a forward's sequence number is computed again."""


def measure_ratios(
    trace: Trace,
    links: Links,
    classes: Classes,
    cover: DeviceCover | None,
    steps: StepWindows,
    phases: HostPhases,
    step_phases: NDArray[np.int64],
    work_phase: Int64s,
) -> Ratios:
    """The ratios over the complete steps on the host, and over the whole trace on the device."""
    host_ns = int((steps.end_ns - steps.start_ns)[steps.is_complete].sum())
    seen = dict(phases.sources)
    waited = int(step_phases[steps.is_complete, PHASE["input_wait"]].sum())
    recompute = find_recompute(trace, links)
    if cover is None:
        return Ratios(
            allreduce_over_backward_ratio=_host_allreduce_ratio(trace, links, phases),
            h2d_ratio=None,
            d2h_ratio=None,
            data_wait_ratio=waited / host_ns if host_ns and "input_wait" in seen else None,
            recompute_ratio=_divide(_host_time(links, recompute), host_ns),
            pageable_copies_ns=None,
        )
    work = cover.work
    window = int(links.end_ns[work].max() - links.start_ns[work].min())
    name = trace.name[links.device_rows[work]]
    copies = trace.category[links.device_rows[work]] == Category.MEMCPY
    to_device = work[copies & match_names(trace, name, HOST_COPY)]
    to_host = work[copies & match_names(trace, name, DEVICE_TO_HOST_COPY)]
    pageable = find_pageable_copies(trace, links, cover)
    return Ratios(
        allreduce_over_backward_ratio=_device_allreduce_ratio(trace, links, classes, work, work_phase),
        h2d_ratio=_divide(_covered(links, to_device), window),
        d2h_ratio=_divide(_covered(links, to_host), window),
        data_wait_ratio=waited / host_ns if host_ns and "input_wait" in seen else None,
        recompute_ratio=_divide(_device_time_of(links, work, recompute), window),
        pageable_copies_ns=None if pageable is None else pageable.total_ns,
    )


def find_pageable_copies(trace: Trace, links: Links, cover: DeviceCover) -> Intervals | None:
    """When a device copied from or to pageable memory of the host; None where the names of the copies do not tell."""
    work = cover.work[trace.category[links.device_rows[cover.work]] == Category.MEMCPY]
    name = trace.name[links.device_rows[work]]
    crosses = match_names(trace, name, HOST_COPY) | match_names(trace, name, DEVICE_TO_HOST_COPY)
    crossing, name = work[crosses], name[crosses]
    pageable = match_names(trace, name, PAGEABLE)
    if len(crossing) and not bool((pageable | match_names(trace, name, PINNED)).any()):
        return None
    return unite(links.start_ns[crossing[pageable]], links.end_ns[crossing[pageable]])


def _divide(part: int | None, whole: int) -> float | None:
    return part / whole if part is not None and whole > 0 else None


def _covered(links: Links, work: Int64s) -> int:
    return unite(links.start_ns[work], links.end_ns[work]).total_ns


def _device_allreduce_ratio(
    trace: Trace, links: Links, classes: Classes, work: Int64s, work_phase: Int64s
) -> float | None:
    """All-reduce kernels over the device time from the first to the last backward kernel of each pass: the union of
    backward work. None where either was not seen."""
    comm = work[classes.kind[work] == COMM]
    reduce = match_names(trace, trace.name[links.device_rows[comm]], ALL_REDUCE)
    rows, indices, table = trace.texts("collective")
    matches = {i for i, text in enumerate(table) if ALL_REDUCE.search(text)}
    if matches:
        chosen = rows[np.isin(indices, list(matches))]
        reduce |= np.isin(links.device_rows[comm], chosen)
        # 'Collective name' of the launching record_param_comms.
        place = links.op_place[comm]
        known = place >= 0
        reduce[known] |= np.isin(links.ranges.rows[place[known]], chosen)
    place = links.op_place[comm]
    known = np.flatnonzero(place >= 0)
    range_name = trace.name[links.ranges.rows[place[known]]]
    reduce[known] |= match_names(trace, range_name, ALL_REDUCE)
    backward = work[work_phase[work] == PHASE["backward"]]
    if not reduce.any() or len(backward) == 0:
        return None
    return _divide(_covered(links, comm[reduce]), _covered(links, backward))


def _host_allreduce_ratio(trace: Trace, links: Links, phases: HostPhases) -> float | None:
    """All-reduce ranges of host collectives (gloo, MPI) over the main thread's time in backward."""
    ranges = links.ranges
    name = trace.name[ranges.rows]
    reduce = match_names(trace, name, COLLECTIVE_RANGE) & match_names(trace, name, ALL_REDUCE)
    backward = phases.find_time("backward")
    if not reduce.any() or len(backward) == 0:
        return None
    return _divide(unite(ranges.start_ns[reduce], ranges.end_ns[reduce]).total_ns, backward.total_ns)


def find_recompute(trace: Trace, links: Links) -> NDArray[np.bool_] | None:
    """Ranges that a backward pass computed again: what runs inside a checkpoint's backward and is no backward itself,
    or forward operators (with a sequence number of their own) inside a backward node; None without backward passes."""
    ranges = links.ranges
    name = trace.name[ranges.rows]
    backward = match_names(trace, name, BACKWARD_NAME)
    if not backward.any():
        return None
    anchor = match_names(trace, name, RECOMPUTE_ANCHOR)
    holder = ranges.find_nearest(backward)
    inside = (holder >= 0) & ~backward
    # In a backward node the operators of its own run without autograd; those that autograd records are a forward.
    rows, _ = trace.integers("sequence_number")
    joined, forward_thread = trace.integers("forward_thread")
    recorded = np.isin(ranges.rows, rows) & ~np.isin(ranges.rows, joined[forward_thread > 0])
    again = inside & recorded
    if anchor.any():
        held = np.flatnonzero(inside)
        again[held[anchor[holder[held]]]] = True
    return ranges.find_nearest(again) >= 0


def _host_time(links: Links, again: NDArray[np.bool_] | None) -> int | None:
    if again is None:
        return None
    ranges = links.ranges
    return unite(ranges.start_ns[again], ranges.end_ns[again]).total_ns


def _device_time_of(links: Links, work: Int64s, again: NDArray[np.bool_] | None) -> int | None:
    if again is None:
        return None
    place = links.op_place[work]
    mine = work[(place >= 0) & again[np.maximum(place, 0)]]
    return _covered(links, mine)
