"""Steps on an accelerator -> the same steps, with the host's waits counted for the phases that the device computes.

The host runs ahead of the device. Where it waits for it (``loss.item()`` between two phases, a full queue), the time
stands between the phases, but it is theirs: without the wait the step would take as long. What stands between phases
costs at most what the device's own times of the phases leave of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hotloop.analyze.segments import BoolColumn, IntColumn, Steps
from hotloop.core.recording import DEVICE_TIME_FIELDS, GAP_FIELDS, TIME_FIELDS

FEWEST_TIMED = 5
"""So many steps timed on the device say what those between them take there."""
WAITS = (GAP_FIELDS, ("input_wait_ns", "iterator_ns"))
"""Where the host may wait while the device computes, in the order in which it is taken off: a loop that stops for the
device does so between its phases."""
HOST_PREFIX = "host_"


def host_column(columns: Mapping[str, IntColumn], name: str) -> IntColumn:
    """A time field by the host's clock alone."""
    return columns.get(HOST_PREFIX + name, columns[name])


def charge_waits(steps: Steps) -> Steps:
    """The steps, each with the same length; those of a training on a CPU as they are.

    A step that was not timed on the device is taken to need as much there as the others do in the mean.
    """
    times = _device_times(steps)
    if times is None:
        return steps
    columns = {name: steps.columns[name].copy() for name in TIME_FIELDS}
    host = {HOST_PREFIX + name: steps.columns[name] for name in DEVICE_TIME_FIELDS}
    missing = {name: np.maximum(0, times[name] - columns[name]) for name in DEVICE_TIME_FIELDS}
    whole = np.maximum(1, sum(missing.values()))
    others = sum(columns[name] for name in TIME_FIELDS if not _is_timed_or_wait(name))
    rest_ns = np.maximum(0, steps.step_ns - sum(times.values()) - others)
    waits_ns = sum(columns[name] for group in WAITS for name in group)
    # In a step with a validation the gaps are also its.
    surplus = np.where(steps.columns["bursts"] > 0, 0, np.minimum(np.maximum(0, waits_ns - rest_ns), whole))
    surplus = np.where(sum(missing.values()) > 0, surplus, 0)
    moved = np.zeros_like(steps.step_ns)
    for group in WAITS:
        moved += _take(columns, group, surplus - moved)
    given = np.zeros_like(moved)
    for name in DEVICE_TIME_FIELDS:
        part = moved * missing[name] // whole
        columns[name] += part
        given += part
    columns["backward_ns"] += moved - given  # what rounding left
    return replace(steps, columns={**steps.columns, **columns, **host})


def charged_ratio(steps: Steps, base: BoolColumn) -> float:
    """The part of these steps in which the host waits for the device between its phases, 0..1."""
    moved_ns = sum(
        int((steps.columns[name] - host_column(steps.columns, name))[base].sum()) for name in DEVICE_TIME_FIELDS
    )
    return moved_ns / max(1, int(steps.step_ns[base].sum()))


def _device_times(steps: Steps) -> dict[str, IntColumn] | None:
    """ns of each phase on the device, of every step; None where too few were timed. A phase that no step shows (copies
    on a stream that is not timed) takes none."""
    times = {}
    for name, device_field in DEVICE_TIME_FIELDS.items():
        column = steps.columns[device_field]
        known: BoolColumn = (column >= 0) & ~steps.is_block
        if name != "h2d_ns" and int(known.sum()) < FEWEST_TIMED:
            return None
        steady = known & (np.arange(len(known)) >= len(known) // 4)  # the first steps compile, allocate, warm up
        chosen = steady if steady.any() else known
        mean_ns = float(np.median(column[chosen])) if chosen.any() else 0.0
        times[name] = np.where(known, column, np.round(mean_ns * steps.weight).astype(np.int64))
    return times


def _is_timed_or_wait(name: str) -> bool:
    return name in DEVICE_TIME_FIELDS or any(name in group for group in WAITS)


def _take(columns: dict[str, IntColumn], names: tuple[str, ...], wanted: IntColumn) -> IntColumn:
    """Take so much of these fields, each by its size; what was taken."""
    held = sum(columns[name] for name in names)
    wanted = np.minimum(np.maximum(0, wanted), held)
    taken = np.zeros_like(wanted)
    for name in names:
        part = wanted * columns[name] // np.maximum(1, held)
        columns[name] = columns[name] - part
        taken += part
    return taken
