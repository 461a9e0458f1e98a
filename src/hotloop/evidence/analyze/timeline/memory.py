"""Memory events of a trace -> DeviceMemoryTimeline for every device.

The events contain the allocator's totals after each of them if torch recorded those; otherwise levels are relative to
the start of the trace. An allocation belongs to the innermost operator that was open on any thread, the latest begun:
the events name no thread. Its purpose follows from the ranges around it, else from the host's phase at that instant,
and from its lifetime.
"""

from __future__ import annotations

import re

import numpy as np

from hotloop.core.graph import DeviceMemoryTimeline, OpMemory
from hotloop.core.memory_categories import UNKNOWN, Allocation, Origin, categorize_allocations
from hotloop.core.memory_snapshot import MEMORY_CATEGORIES
from hotloop.core.trace import MemoryEvents, Trace
from hotloop.evidence.analyze.stats import fit_slope

from .anatomy import PHASE, HostPhases
from .intervals import Int64s, sum_groups
from .links import NONE, Links, match_names
from .steps import StepWindows

DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 13: "mps", 14: "meta", 20: "privateuseone"}
OPS_COUNT = 40
OUTSIDE = "outside of operators"
CATEGORIZED_COUNT = 1_000_000
"""More allocations than these are not classified by category: each takes a microsecond or two."""

ORIGIN_RANGES = (
    (re.compile(r"^enumerate\(DataLoader\)"), Origin.INPUT),
    (re.compile(r"^Optimizer\.step#"), Origin.OPTIMIZER),
    (re.compile(r"^autograd::engine::evaluate_function: .*AccumulateGrad"), Origin.GRADIENT),
    (re.compile(r"^autograd::engine::evaluate_function: CheckpointFunctionBackward"), Origin.RECOMPUTE),
    (re.compile(r"^autograd::engine::evaluate_function"), Origin.BACKWARD),
)
"""Ranges that torch draws; the innermost range around an allocation counts, and of its names the first in this list."""
PHASE_ORIGINS = {
    "input_wait": Origin.INPUT,
    "forward": Origin.FORWARD,
    "backward": Origin.BACKWARD,
    "optimizer": Origin.OPTIMIZER,
}


def describe_memory(
    trace: Trace, links: Links, steps: StepWindows, phases: HostPhases
) -> tuple[DeviceMemoryTimeline, ...]:
    """One value for each device with memory events, accelerators first; empty if the trace has none."""
    memory = trace.memory
    if memory is None or len(memory.time_ns) == 0:
        return ()
    holder = links.ranges.find_innermost_of_all(memory.time_ns)
    origin = find_origins(trace, links, steps, phases, memory.time_ns, holder)
    keys = memory.device_type.astype(np.int64) * 4096 + memory.device_index
    found = []
    for key in np.unique(keys).tolist():
        found.append(_describe_device(trace, links, steps, memory, holder, origin, np.flatnonzero(keys == key)))
    return tuple(sorted(found, key=lambda d: (d.device_type == "cpu", d.device_type, d.device)))


def find_origins(
    trace: Trace, links: Links, steps: StepWindows, phases: HostPhases, time_ns: Int64s, holder: Int64s
) -> Int64s:
    """core.memory_categories.Origin at each instant with its innermost range.

    A copy to the device within a step brings an input; outside of all steps it may as well bring the model.
    """
    ranges = links.ranges
    phase = phases.find_phase(time_ns)
    found = np.full(len(time_ns), Origin.ELSEWHERE, dtype=np.int64)
    for name, origin in PHASE_ORIGINS.items():
        found[phase == PHASE[name]] = origin
    if steps.source != "whole trace" and len(steps):
        at = np.searchsorted(steps.start_ns, time_ns, side="right") - 1
        inside = (at >= 0) & (time_ns < steps.end_ns[np.maximum(at, 0)])
        found[inside & (phase == PHASE["h2d"])] = Origin.INPUT
    named = np.full(len(ranges), NONE, dtype=np.int64)
    for pattern, origin in reversed(ORIGIN_RANGES):
        named[match_names(trace, trace.name[ranges.rows], pattern)] = origin
    nearest = ranges.find_nearest(named >= 0)
    held = np.flatnonzero(holder >= 0)
    place = nearest[holder[held]]
    held, place = held[place >= 0], place[place >= 0]
    found[held] = named[place]
    return found


def find_freed(address: Int64s, change: Int64s) -> Int64s:
    """For each allocation, the event that ends it: the next event of its address; -1 without one, and for frees."""
    order = np.lexsort((np.arange(len(address)), address))
    same = address[order[1:]] == address[order[:-1]]
    freed = np.full(len(address), NONE, dtype=np.int64)
    freed[order[:-1][same]] = order[1:][same]
    freed[change <= 0] = NONE
    return freed


def sum_categories(origin: Int64s, change: Int64s, freed: Int64s, held: Int64s, peak_bytes: int) -> dict[str, int]:
    """The peak by category; what was there before the first event is unknown."""
    made = np.flatnonzero(change > 0)
    found: dict[str, int] = {}
    if len(made) <= CATEGORIZED_COUNT:
        allocations = [
            Allocation(
                origin=Origin(origin[i]),
                made=i,
                freed=None if end < 0 else end,
                # A range that makes the next allocation at an address did not free the last one.
                freed_by=Origin(origin[end]) if end >= 0 and change[end] < 0 else Origin.UNTOLD,
                site=i,
            )
            for i, end in zip(made.tolist(), freed[made].tolist(), strict=True)
        ]
        at_peak = set(held.tolist())
        for one, category in zip(allocations, categorize_allocations(allocations), strict=True):
            if one.made in at_peak:
                found[category] = found.get(category, 0) + int(change[one.made])
    found[UNKNOWN] = peak_bytes - sum(size for name, size in found.items() if name != UNKNOWN)
    return {name: found[name] for name in MEMORY_CATEGORIES if found.get(name)}


def _describe_device(
    trace: Trace,
    links: Links,
    steps: StepWindows,
    memory: MemoryEvents,
    holder: Int64s,
    origin: Int64s,
    mine: Int64s,
) -> DeviceMemoryTimeline:
    time, change = memory.time_ns[mine], memory.bytes[mine]
    totals = memory.allocated_bytes[mine]
    absolute = bool((totals >= 0).all())
    level = totals if absolute else np.cumsum(change)
    reserved = memory.reserved_bytes[mine]
    kind = int(memory.device_type[mine[0]])
    # The CPU reserves nothing; torch writes 0 there.
    knows_reserved = kind != 0 and absolute and bool((reserved >= 0).all()) and bool((reserved > 0).any())
    peak = int(np.argmax(level))
    freed = find_freed(memory.address[mine], change)
    held = np.flatnonzero((change > 0) & ((freed < 0) | (freed > peak)))
    held = held[held <= peak]
    slope = _growth(steps, time, level)
    return DeviceMemoryTimeline(
        device_type=DEVICE_TYPES.get(kind, str(kind)),
        device=int(memory.device_index[mine[0]]),
        events_count=len(mine),
        is_absolute=absolute,
        peak_allocated_bytes=int(level[peak]),
        peak_reserved_bytes=int(reserved[peak]) if knows_reserved else None,
        last_allocated_bytes=int(level[-1]),
        growth_bytes_per_step=None if slope is None else slope[0],
        growth_noise_bytes_per_step=None if slope is None else slope[1],
        held_at_peak_bytes=int(change[held].sum()),
        ops=_list_ops(trace, links, holder[mine], change, held),
        peak_by_category=sum_categories(origin[mine], change, freed, held, int(level[peak])),
    )


def _growth(steps: StepWindows, time: Int64s, level: Int64s) -> tuple[float, float] | None:
    """(slope, its noise) of the level at the ends of the complete steps, bytes per step."""
    if steps.source == "whole trace" or len(steps) == 0:
        return None
    ends = steps.end_ns[steps.is_complete]
    at = np.searchsorted(time, ends, side="right") - 1
    values = level[at[at >= 0]].astype(np.float64)
    slope = fit_slope(np.arange(len(values), dtype=np.float64), values)
    return None if slope is None else (slope.per_x, slope.noise_per_x)


def _list_ops(trace: Trace, links: Links, holder: Int64s, change: Int64s, held: Int64s) -> tuple[OpMemory, ...]:
    found, group = np.unique(np.append(trace.name[links.ranges.rows], NONE)[holder], return_inverse=True)
    allocated = sum_groups(group, np.maximum(change, 0), len(found))
    peak = sum_groups(group[held], change[held], len(found))
    count = np.bincount(group[change > 0], minlength=len(found))
    ops = [
        OpMemory(
            name=trace.names[number] if number >= 0 else OUTSIDE,
            allocated_bytes=int(allocated[i]),
            count=int(count[i]),
            at_peak_bytes=int(peak[i]),
        )
        for i, number in enumerate(found.tolist())
        if count[i]
    ]
    return tuple(sorted(ops, key=lambda o: (-o.at_peak_bytes, -o.allocated_bytes, o.name))[:OPS_COUNT])
