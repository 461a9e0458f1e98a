"""Rows of a trial's process -> losses, gradient norms, the machine's pace, and its end after the steps asked for.

Only in processes that ``hotloop tune`` started (option ``trial``): ``{"folder", "steps", "seconds", "least_steps"}``.
Losses and gradient norms are copied on the device and read once, when the trial ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from hotloop.core.recording import CLOSED_BY_BACKWARD, FIELD

from .gradients import GradientWatch
from .guard import GUARD
from .losses import LossWatch, read_values
from .pace import Pace
from .ranks import current_rank

_CLOSED_BY, _COMPILE = FIELD["closed_by"], FIELD["compile_ns"]

MOST_LOSSES = 4_000
PROGRESS_NS = 250_000_000
OTHER_RANKS_S = 5.0
"""How long a process that is done waits for the other ranks: leaving early breaks their collectives."""
QUIET_ROWS = 10
"""Compilation has settled once this many rows in a row compile nothing (as QUIET_COUNT of analyze/steady.py)."""
MOST_SETTLING_RATIO = 3.0
"""While it has not settled, a process that ends by time continues, up to this many times as long."""
MARGIN_ROWS = 2
"""Ranks run in step: none is further than this ahead of the rank that notices that time is up."""


class TrialWatch:
    """Called after every row. ``finish`` writes what was seen to ``trial-<pid>.json``; it may be called twice."""

    def __init__(self, options: dict[str, Any], end_session: Callable[[], None]) -> None:
        self._folder = str(options["folder"])
        self._steps = options.get("steps")
        self._seconds = options.get("seconds")
        self._least_steps = int(options.get("least_steps") or 1)
        self._end_session = end_session
        self._pid = os.getpid()
        self._losses: list[Any] = []
        self._rows = 0
        self._has_steps = False
        self._merged: Any = None
        """The losses of rows that turned out to be one step."""
        self._begin_ns = 0
        self._progress_ns = 0
        self._compiled_row: int | None = None
        """The last row but the first that compiled anything."""
        self._stop_row: int | None = None
        self._finished = False
        self.losses = LossWatch()
        self.pace = Pace()
        self.gradients = GradientWatch(lambda: self._rows if self._has_steps else 0)

    def __call__(self, session: Any, row: Any) -> None:
        if os.getpid() != self._pid:
            return
        if row[_CLOSED_BY] != CLOSED_BY_BACKWARD and not self._has_steps:
            self._has_steps = True
            self._merge_rows()
        self._rows += 1
        loss = self.losses.take()
        if self._merged is not None:
            loss, self._merged = self._merged if loss is None else self._merged + loss, None
        if len(self._losses) < MOST_LOSSES:
            self._losses.append(loss)
        now_ns = time.monotonic_ns()
        self._begin_ns = self._begin_ns or now_ns
        if now_ns - self._progress_ns >= PROGRESS_NS:
            self._progress_ns = now_ns
            self._touch("progress")
        if row[_COMPILE] > 0 and self._rows > 1:
            self._compiled_row = self._rows
        if self._is_over(now_ns):
            self._stop()
        self.pace(session, row)

    def _merge_rows(self) -> None:
        """Until an optimizer is seen every backward closes a row: they belong to the step that now ends."""
        for loss in self._losses:
            if loss is not None:
                self._merged = loss if self._merged is None else self._merged + loss
        self._losses.clear()
        self._rows = 0

    # -- the end --------------------------------------------------------------------------------------------------

    def _is_over(self, now_ns: int) -> bool:
        if self._steps is not None:
            return self._rows >= int(self._steps)
        if self._seconds is None or self._rows < self._least_steps:
            return False
        if self._stop_row is None:
            most_s = self._seconds * (MOST_SETTLING_RATIO if self._is_settling() else 1.0)
            is_late = now_ns - self._begin_ns > most_s * 1e9
            self._stop_row = self._agree(is_late)
        return self._stop_row is not None and self._rows >= self._stop_row

    def _is_settling(self) -> bool:
        """Whether torch.compile was at work in one of the last rows: what it costs at the start cannot be separated yet
        from what it costs in every step."""
        return self._compiled_row is not None and self._rows - self._compiled_row < QUIET_ROWS

    def _agree(self, is_late: bool) -> int | None:
        """The row after which all processes stop: the first process that is late announces it in a file."""
        path = os.path.join(self._folder, "stop-row")
        try:
            if is_late:
                text = str(self._rows + (MARGIN_ROWS if _world_size() > 1 else 0))
                part = f"{path}.{os.getpid()}"
                with open(part, "w") as file:
                    file.write(text)
                try:
                    os.link(part, path)
                except FileExistsError:
                    is_late = False  # another one was first
                os.unlink(part)
            with open(path) as file:
                return int(file.read())
        except FileNotFoundError:
            return None

    def _stop(self) -> None:
        """Write everything down, wait for the other ranks, and end this process without its exit handlers."""
        try:
            self.finish(stopped=True)
            self._end_session()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            self._touch(f"stopped-{os.getpid()}")
            deadline_s = time.monotonic() + OTHER_RANKS_S
            while time.monotonic() < deadline_s and self._stopped_count() < _world_size():
                time.sleep(0.01)
        finally:
            os._exit(0)

    def _stopped_count(self) -> int:
        return sum(name.startswith("stopped-") for name in os.listdir(self._folder))

    def finish(self, stopped: bool = False) -> None:
        """Losses and counts as one small file."""
        if self._finished or os.getpid() != self._pid or not self._rows:
            return
        self._finished = self.losses.is_over = True
        content = {
            "pid": self._pid,
            "rank": current_rank(),
            "world_size": _world_size(),
            "rows": self._rows,
            "stopped": stopped,
            "losses": read_values(self._losses),
            "unseen": self.losses.unseen
            or ("" if self.losses.micro_losses else "no backward from a loss was observed"),
            "pace": self.pace.readings,
            **self._read_norms(),
        }
        path = os.path.join(self._folder, f"trial-{self._pid}.json")
        with open(path + ".part", "w") as file:
            json.dump(content, file)
        os.replace(path + ".part", path)

    def _read_norms(self) -> dict[str, Any]:
        try:
            norms = self.gradients.read(read_values)
        except Exception as error:
            GUARD.record("reading gradient norms", error)
            return {"norms": [], "norms_unseen": f"reading the gradient norms failed ({type(error).__name__})"}
        none = "" if norms else "no optimizer step with gradients was observed"
        return {"norms": norms, "norms_unseen": self.gradients.unseen or none}

    def _touch(self, name: str) -> None:
        path = os.path.join(self._folder, name)
        try:
            os.utime(path)
        except FileNotFoundError:
            with open(path, "w"):
                return


def _world_size() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        size: int = distributed.get_world_size()
        return size
    return 1
