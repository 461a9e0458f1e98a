"""A trace -> its steps and device work as tables for a database."""

from __future__ import annotations

import numpy as np

from hotloop.core.trace import Category, Trace
from hotloop.core.trace_results import EventTables

from .anatomy import find_host_phases, split_steps
from .classes import DeviceCover, cover_devices
from .reduce import Groundwork, describe_steps, lay_groundwork
from .steps import DeviceSteps, assign_device_work

ON_THE_DEVICE = (Category.SYNC, Category.DEVICE_ANNOTATION)
"""Drawn on the device, launched by nothing: the step that they belong to is unknown."""


def tabulate_events(trace: Trace) -> EventTables:
    ground = lay_groundwork(trace)
    links, steps = ground.links, ground.steps
    covers = cover_devices(trace, links, ground.classes)
    has_steps = steps.source != "whole trace"
    step = np.full(len(trace.start_ns), -1, dtype=np.int64)
    seen: DeviceSteps | None = None
    if has_steps:
        numbers = np.array([*steps.index, -1], dtype=np.int64)
        found = steps.find_step(trace.start_ns)
        found[np.isin(trace.category, [int(c) for c in ON_THE_DEVICE])] = -1
        step = numbers[found]
        step[links.device_rows] = -1
        for cover in covers:
            assigned = assign_device_work(trace, links, cover.work, steps)
            step[links.device_rows[cover.work]] = numbers[assigned.of_work]
            seen = assigned if seen is None else seen
    operator = np.full(len(links.device_rows), -1, dtype=np.int64)
    known = links.op_place >= 0
    operator[known] = links.ranges.rows[links.op_place[known]]
    return EventTables(
        step_source=steps.source if has_steps else None,
        step=step,
        device_rows=links.device_rows,
        kind=ground.classes.kind,
        launch_row=links.launch_row,
        operator_row=operator,
        steps=_list_steps(trace, ground, covers[0] if covers else None, seen) if has_steps else (),
    )


def _list_steps(
    trace: Trace, ground: Groundwork, cover: DeviceCover | None, seen: DeviceSteps | None
) -> list[tuple[int | bool | None, ...]]:
    phases = split_steps(find_host_phases(trace, ground.links, ground.steps), ground.steps)
    rows: list[tuple[int | bool | None, ...]] = []
    for window in describe_steps(ground.steps, phases, cover, seen):
        part = window.partition
        device: tuple[int | None, ...] = (None,) * 5
        if part is not None:
            device = (part.window_ns, part.compute_ns, part.exposed_comm_ns, part.exposed_mem_ns, part.idle_ns)
        at = (window.host_start_ns, window.host_end_ns, window.host_ns, window.device_start_ns)
        rows.append((window.index, window.is_complete, *at, *device, *window.phases_ns))
    return rows
