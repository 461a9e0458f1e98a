"""Rows of a training -> lines of health about its loss and its gradients: first, last, and where they are not finite.

Only with ``hotloop run --watch-numbers``. Nothing here waits for a device: scalars travel to pinned memory after the
work that made them and are looked at when an event says that they have arrived; at the exit alone they are waited for.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from hotloop.core.recording import CLOSED_BY_BACKWARD, FIELD

from .gradients import GradientWatch
from .guard import GUARD
from .losses import LossWatch
from .ranks import current_rank

_CLOSED_BY = FIELD["closed_by"]

BATCH = 64
"""This many scalars of a device travel together."""
HELD_ROWS = 3
"""Until an optimizer is seen every backward closes a row: that many belong to the first step, if one comes."""
MOST_BATCHES = 16
"""This many are on their way at once: further ones are left out and counted."""
TELL_S = 1.0
"""The loss is reported to those who watch the training no more often than this."""
_SKIPPED = -1.0
"""In place of a norm whose step a GradScaler left out: norms are never negative."""


class Trend:
    """Values in order of their steps, in a few numbers."""

    def __init__(self) -> None:
        self.count = self.bad_count = 0
        self.first_bad: int | None = None
        self.first: tuple[int, float] | None = None
        self.last: tuple[int, float] | None = None
        self.least = math.inf
        self.most = -math.inf

    def add(self, step: int, value: float) -> None:
        self.count += 1
        if not math.isfinite(value):
            self.bad_count += 1
            self.first_bad = step if self.first_bad is None else self.first_bad
            return
        self.first = self.first or (step, value)
        self.last = (step, value)
        self.least, self.most = min(self.least, value), max(self.most, value)


class LateValues:
    """Device scalars -> ``arrived(step, value)``, in order, once they are known."""

    def __init__(self, arrived: Callable[[int, float], None]) -> None:
        self._arrived = arrived
        self._waiting: list[tuple[int, Any]] = []
        self._travelling: deque[tuple[list[int], Any, Any]] = deque()
        self.lost_count = 0
        """Values left out because too many were on their way."""

    def add(self, step: int, scalar: Any) -> None:
        if scalar.device.type == "cpu":
            self._arrived(step, float(scalar))
            return
        self._waiting.append((step, scalar))
        if len(self._waiting) >= BATCH:
            self._send()
        self._take(wait=False)

    def finish(self) -> None:
        """Wait for everything that is on its way."""
        if self._waiting:
            self._send()
        self._take(wait=True)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        if len(self._travelling) >= MOST_BATCHES:
            self.lost_count += len(waiting)
            return
        values = torch.stack([scalar.float() for _, scalar in waiting])
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._travelling.append(([step for step, _ in waiting], host, event))

    def _take(self, wait: bool) -> None:
        while self._travelling:
            steps, host, event = self._travelling[0]
            if wait:
                event.synchronize()
            elif not event.query():
                return
            self._travelling.popleft()
            for step, value in zip(steps, host.tolist(), strict=True):
                self._arrived(step, value)


class NumbersWatch:
    """Called after every row; ``finish`` says what there is to say, once."""

    def __init__(self, record: Callable[[dict[str, Any]], None]) -> None:
        self._record = record
        self._steps = 0
        self._held_rows = 0
        self._finished = False
        self._told_s = -math.inf
        self.losses = LossWatch()
        self.gradients = GradientWatch(lambda: self._steps)
        self.loss, self.norm = Trend(), Trend()
        self._late_losses = LateValues(self._loss_arrived)
        self._late_norms = LateValues(self._norm_arrived)

    def __call__(self, session: Any, row: Any) -> None:
        if self._finished or _is_capturing():
            return
        try:
            if self._steps == 0 and self._held_rows < HELD_ROWS and row[_CLOSED_BY] == CLOSED_BY_BACKWARD:
                self._held_rows += 1
                return
            self._steps += 1
            loss = self.losses.take()
            if loss is not None:
                self._late_losses.add(self._steps, loss)
            for number, norm in self.gradients.take(_SKIPPED):
                self._late_norms.add(number + 1, norm)
        except Exception as error:
            self._finished = True
            GUARD.record("watching the numbers", error)

    def finish(self) -> None:
        if self._finished:
            return
        self._finished = self.losses.is_over = self.gradients.is_over = True
        try:
            self._late_losses.finish()
            self._late_norms.finish()
        except Exception as error:  # a device that has failed: what arrived before is reported all the same
            GUARD.record("reading the last numbers", error)
        if self.loss.last is not None:
            self._tell_loss(*self.loss.last)
        rank = current_rank()
        if rank in (None, 0):
            self._record_health("info", "numbers", self._describe())

    def _loss_arrived(self, step: int, value: float) -> None:
        self.loss.add(step, value)
        if not math.isfinite(value):
            self._warn("the loss", "steps", self.loss, "bad-loss")
        elif time.monotonic() - self._told_s >= TELL_S:
            self._tell_loss(step, value)

    def _tell_loss(self, step: int, value: float) -> None:
        self._told_s = time.monotonic()
        self._record({"kind": "metric", "name": "loss", "value": value, "step": step, "watched": True})

    def _norm_arrived(self, step: int, value: float) -> None:
        if value == _SKIPPED:
            return
        self.norm.add(step, value)
        if not math.isfinite(value):
            self._warn("the norm of the gradients", "steps checked", self.norm, "bad-norm")

    def _warn(self, what: str, steps: str, trend: Trend, name: str) -> None:
        """Newer counts take the place of older ones: said at once, because the process may not live to its end."""
        if trend.bad_count & (trend.bad_count - 1) and not self._finished:
            return
        rank = current_rank()
        where = f"rank {rank}: " if rank is not None and _has_others() else ""
        if trend.bad_count == 1:
            message = f"{where}{what} was not finite in optimizer step {trend.first_bad}"
        else:
            message = (
                f"{where}{what} was not finite in at least {trend.bad_count} {steps}, first in optimizer step "
                f"{trend.first_bad}"
            )
        self._record_health("warning", name, message)

    def _describe(self) -> str:
        loss = _describe_loss(self.loss, self.losses.unseen)
        lost = f" ({self._late_losses.lost_count} more left out)" if self._late_losses.lost_count else ""
        return f"loss: {loss}{lost}; {_describe_norm(self.norm, self.gradients.unseen)}"

    def _record_health(self, level: str, name: str, message: str) -> None:
        self._record({"kind": "health", "id": name, "level": level, "message": message})


def _describe_loss(trend: Trend, unseen: str) -> str:
    if unseen:
        return f"not watched: {unseen}"
    if trend.first is None or trend.last is None:
        return "none was recorded" if not trend.count else f"not finite in any of {trend.count} steps"
    finite = "finite in all" if not trend.bad_count else f"not finite in {trend.bad_count}"
    return (
        f"{trend.first[1]:.4g} in optimizer step {trend.first[0]}, {trend.last[1]:.4g} in step {trend.last[0]}, "
        f"between {trend.least:.4g} and {trend.most:.4g}, {finite} of {trend.count} steps"
    )


def _describe_norm(trend: Trend, unseen: str) -> str:
    what = "norm of the gradients passed to the optimizer"
    if unseen or trend.first is None or trend.last is None:
        return f"{what}: not known{f' ({unseen})' if unseen else ''}"
    return f"{what}: {trend.least:.4g} to {trend.most:.4g}, last {trend.last[1]:.4g}, {trend.count} steps checked"


def _has_others() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _is_capturing() -> bool:
    """A CUDA graph that is being captured would take a copy of ours into itself."""
    began: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return began and torch.cuda.is_current_stream_capturing()
