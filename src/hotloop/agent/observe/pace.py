"""A fixed piece of work, timed between the steps of a trial -> how fast the machine was while that process measured.

Other virtual machines, other programs and the clock rate slow the training and this work alike, and much of that shows
nowhere else: a core that the hypervisor takes away for a moment holds up every parallel region of the training.
The work is a product and a sum in float64, on as many threads as the training has: no precision that a technique
chooses touches it, it draws no random number, and its time belongs to no step.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hotloop.core.recording import FIELD

from .facts import accelerator_type
from .guard import GUARD

START = FIELD["start_ns"]
END = FIELD["end_ns"]

SIDE = 160
"""Rows and columns of the matrices: 0.4 MB in all, two or three tenths of a millisecond on two cores."""
MOST_SHARE_RATIO = 0.05
"""Where the work would take more of the time than this, it is done only once every several steps."""
FIRST_READINGS = 5
"""Timed after every step, to find out after how many it is done from then on."""
MOST_READINGS = 20_000


class Pace:
    """Called after every row, on the thread that trains; ``readings`` holds (row, ns) of each time it was done."""

    def __init__(self) -> None:
        self.readings: list[tuple[int, int]] = []
        self._tensors: tuple[torch.Tensor, torch.Tensor] | None = None
        self._is_off = False
        self._every = 1
        self._shortest_row_ns = 0

    def __call__(self, session: Any, row: Any) -> None:
        if self._is_off:
            return
        try:
            recorder = session.recorder
            if recorder.rows % self._every == 0 and _get_current_dispatch_mode() is None:
                self._time_work(recorder.rows - 1, row[END] - row[START])
                recorder.leave_out()
        except Exception as error:
            self._is_off = True
            GUARD.record("timing a fixed piece of work", error)

    def _time_work(self, row: int, row_ns: int) -> None:
        if self._tensors is None:
            # The host's pace says little about a device's.
            self._is_off = accelerator_type() is not None
            if not self._is_off:
                self._tensors = make_tensors()
                time_work(*self._tensors)  # the first time is slower
            return
        self.readings.append((row, time_work(*self._tensors)))
        self._shortest_row_ns = min(self._shortest_row_ns or row_ns, row_ns)
        if len(self.readings) == FIRST_READINGS:
            shortest_ns = min(ns for _, ns in self.readings)
            self._every = math.ceil(shortest_ns / max(MOST_SHARE_RATIO * self._shortest_row_ns, 1.0))
        self._is_off = len(self.readings) >= MOST_READINGS


def make_tensors() -> tuple[torch.Tensor, torch.Tensor]:
    """The tensors that the work reads and writes."""
    one = torch.full((SIDE, SIDE), 0.5, dtype=torch.float64, device="cpu")
    return one, torch.empty_like(one)


def time_work(one: torch.Tensor, out: torch.Tensor) -> int:
    """Do the work once; its wall time in ns."""
    start_ns = time.perf_counter_ns()
    with torch.no_grad():
        torch.mm(one, one, out=out)
        torch.add(one, out, out=out)
    return time.perf_counter_ns() - start_ns
