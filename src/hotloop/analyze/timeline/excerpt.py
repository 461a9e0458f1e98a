"""Trace and a range of its steps -> the rows that show them whole, on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import UsageError
from hotloop.core.trace import DEVICE_WORK, Category, Trace

from .critical_path import choose_step
from .intervals import Int64s
from .links import Links
from .steps import DeviceSteps, StepWindows

NEIGHBOURS = 1
"""Steps on either side of the usual one that are shown with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Steps by their places, first to last inclusive."""

    first: int
    last: int
    rows: Int64s
    """Ascending."""
    calls: Int64s
    """Rows of launching calls, and in ``launched`` the device work of each."""
    launched: Int64s


def choose_steps(steps: StepWindows, wanted: tuple[int, int] | None) -> tuple[int, int]:
    """Places of the first and the last step: of the numbers ``wanted``, else the usual step and its neighbours.

    Raises UsageError when the trace has no such steps.
    """
    if steps.source == "whole trace":
        if wanted is not None:
            raise UsageError("--export-steps: the trace contains no steps; omit it to export the whole trace")
        return 0, len(steps) - 1
    if wanted is None:
        usual = choose_step(steps)
        return max(0, usual - NEIGHBOURS), min(len(steps) - 1, usual + NEIGHBOURS)
    low, high = wanted
    places = [at for at, number in enumerate(steps.index) if low <= number <= high]
    if not places:
        raise UsageError(
            f"--export-steps {low}:{high}: the trace contains steps {min(steps.index)} to {max(steps.index)}"
        )
    return places[0], places[-1]


def cut_excerpt(
    trace: Trace, links: Links, steps: StepWindows, seen: DeviceSteps | None, first: int, last: int
) -> Excerpt:
    """Everything on the host that overlaps the steps; all device work that overlaps their device windows or that they
    launched; and for all of this work its launching calls with the operators around them, wherever those lie, without
    which it would be known less well than in the whole trace."""
    if steps.source == "whole trace":
        everything = np.arange(len(trace.start_ns), dtype=np.int64)
        known = np.flatnonzero(links.launch_row >= 0)
        return Excerpt(
            first=first,
            last=last,
            rows=everything,
            calls=links.launch_row[known],
            launched=links.device_rows[known],
        )
    low, high = int(steps.start_ns[first]), int(steps.end_ns[last])
    chosen = np.zeros(len(trace.start_ns), dtype=bool)
    on_device = np.isin(trace.category, [int(c) for c in (*DEVICE_WORK, Category.SYNC, Category.DEVICE_ANNOTATION)])
    chosen |= ~on_device & _overlaps(trace, low, high)
    # The profiler's own span around all that it recorded would only make the excerpt look long.
    chosen &= ~((trace.category == Category.OTHER) & (trace.start_ns < low) & _ends_after(trace, high))
    if seen is not None:
        windows = np.flatnonzero(seen.has_window[first : last + 1]) + first
        if len(windows):
            begin, end = int(seen.start_ns[windows].min()), int(seen.end_ns[windows].max())
            chosen |= on_device & _overlaps(trace, begin, end)
    known = np.flatnonzero(links.launch_row >= 0)
    at = trace.start_ns[links.launch_row[known]]
    chosen[links.device_rows[known[(at >= low) & (at < high)]]] = True
    work = np.flatnonzero(chosen[links.device_rows])
    linked = work[links.launch_row[work] >= 0]
    chosen[links.launch_row[linked]] = True
    around = links.op_place[linked]
    chosen[links.ranges.rows[around[around >= 0]]] = True
    return Excerpt(
        first=first,
        last=last,
        rows=np.flatnonzero(chosen),
        calls=links.launch_row[linked],
        launched=links.device_rows[linked],
    )


def _overlaps(trace: Trace, low_ns: int, high_ns: int) -> NDArray[np.bool_]:
    """Events with an instant in [low, high); one without length by its instant."""
    found: NDArray[np.bool_] = (trace.start_ns < high_ns) & (
        (trace.start_ns + trace.duration_ns > low_ns) | (trace.start_ns >= low_ns)
    )
    return found


def _ends_after(trace: Trace, high_ns: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = trace.start_ns + trace.duration_ns > high_ns
    return found
