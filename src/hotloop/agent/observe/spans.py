"""begin(name) and end(name) on one thread -> a tree of spans whose children and own time sum to the parent exactly."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from hotloop.core.errors import UsageError

from .monitor_summary import Path
from .step_totals import StepRecord

DeviceKey = tuple[StepRecord, Path, bool]
"""The owner of a device time: record, path, and whether the phase is between two steps."""


@dataclass(slots=True)
class _Span:
    path: Path
    start_ns: int
    token: Any
    children_ns: int = 0


class SpanStack:
    """The open spans of one thread, a step outermost, and the record that they go into.

    ``begin_device(key)`` and ``end_device(token)`` take the device's time alongside the host's (event_pool.EventPool);
    a key is a DeviceKey.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        begin_device: Callable[[Hashable], Any],
        end_device: Callable[[Any], bool],
    ) -> None:
        self._clock = clock
        self._begin_device = begin_device
        self._end_device = end_device
        self.open: list[_Span] = []
        self.record = StepRecord()

    @property
    def in_step(self) -> bool:
        return bool(self.open) and not self.open[0].path

    def begin_step(self) -> None:
        if self.open:
            raise UsageError(f"a step started inside phase {self.open[-1].path[-1]!r}; leave the phase first")
        self._begin(())

    def end_step(self) -> StepRecord:
        """Close the step: its record is complete except for device times; a new record begins."""
        if not self.in_step:
            raise UsageError("a step ended without being started; call start_step() first")
        if self.open[-1].path:
            raise UsageError(f"the step ended while phase {self.open[-1].path[-1]!r} is open; leave the phase first")
        self._end()
        record, self.record = self.record, StepRecord()
        return record

    def drop_step(self) -> None:
        """An exception left the step: close what is open in it and forget it."""
        while self.open:
            self._end()
        self.record = StepRecord()

    def begin(self, name: str) -> None:
        self._begin((*self.open[-1].path, name) if self.open else (name,))

    def end(self, name: str) -> None:
        innermost = self.open[-1].path if self.open else ()
        if not innermost:
            raise UsageError(f"phase {name!r} ended, but no phase is open on this thread")
        if innermost[-1] != name:
            raise UsageError(f"phase {name!r} ended while {innermost[-1]!r} is open inside it: end that first")
        self._end()

    def unwind(self, name: str) -> None:
        """An exception leaves phase ``name``: end it and whatever is open inside it."""
        if self.open and name in self.open[-1].path:
            path = self._end()
            while path[-1] != name:
                path = self._end()

    def _begin(self, path: Path) -> None:
        between = len(path) == 1 and not self.open
        token = self._begin_device((self.record, path, between))
        if token is None:
            self.record.phases[path].device_known = False
        self.open.append(_Span(path, self._clock(), token))

    def _end(self) -> Path:
        """End the innermost span; its path."""
        now_ns = self._clock()
        span, record = self.open.pop(), self.record
        totals = record.phases[span.path]
        if span.token is not None:
            if self._end_device(span.token):
                record.waiting += 1
            else:
                totals.device_known = False
        duration_ns = now_ns - span.start_ns
        totals.calls += 1
        totals.total_ns += duration_ns
        totals.own_ns += duration_ns - span.children_ns
        if self.open:
            self.open[-1].children_ns += duration_ns
        elif span.path:
            record.phases[()].total_ns += duration_ns
        return span.path
