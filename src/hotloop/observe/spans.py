"""begin(name) and end(name) on one thread -> a tree of spans whose children and own time sum to the parent exactly."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from hotloop.core.errors import UsageError

Path = tuple[str, ...]
"""Names of nested phases, outermost first; the empty path is the step itself."""
DeviceKey = tuple["StepRecord", Path, bool]
"""What a device time belongs to: record, path, and whether the phase lies between two steps."""


class PhaseTotals:
    """What the phase of one path took within one step. Times in ns; ``device_ns`` is known once ``waiting`` is 0."""

    __slots__ = ("calls", "device_known", "device_ns", "own_ns", "total_ns")

    def __init__(self) -> None:
        self.calls = 0
        self.total_ns = 0
        self.own_ns = 0
        self.device_ns = 0
        self.device_known = True


class StepRecord:
    """One step, or the phases since the last one. ``waiting`` counts device pairs that have not completed."""

    __slots__ = ("between_ns", "counted_in", "memory", "number", "phases", "waiting")

    def __init__(self) -> None:
        self.number = 0
        self.phases: dict[Path, PhaseTotals] = {}
        self.between_ns = 0
        """Time of phases between the last step and this one; part of the step's time."""
        self.waiting = 0
        self.counted_in: tuple[Any, ...] = ()
        """What takes the device times once all are there."""
        self.memory: tuple[int | None, int | None] = (None, None)
        """Resident bytes, allocated device bytes."""

    def totals(self, path: Path) -> PhaseTotals:
        found = self.phases.get(path)
        if found is None:
            found = self.phases[path] = PhaseTotals()
        return found


def add_device_ns(key: DeviceKey, device_ns: int) -> StepRecord:
    """Enter a resolved device time into the record that it belongs to."""
    record, path, between = key
    record.phases[path].device_ns += device_ns
    if between:
        record.totals(()).device_ns += device_ns
    record.waiting -= 1
    return record


class _Open:
    __slots__ = ("children_ns", "name", "path", "start_ns", "token")

    def __init__(self, name: str, path: Path, start_ns: int, token: Any) -> None:
        self.name = name
        self.path = path
        self.start_ns = start_ns
        self.children_ns = 0
        self.token = token


class SpanStack:
    """The open spans of one thread and the record that they go into.

    ``begin_device(key)`` and ``end_device(token)`` take the device's time beside the host's (see events.EventPool);
    a key is (record, path, whether the phase lies between two steps), for ``add_device_ns``.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        begin_device: Callable[[Hashable], Any] | None = None,
        end_device: Callable[[Any], bool] | None = None,
    ) -> None:
        self._clock = clock
        self._begin_device = begin_device
        self._end_device = end_device
        self._open: list[_Open] = []
        self._step: _Open | None = None
        self.record = StepRecord()

    @property
    def in_step(self) -> bool:
        return self._step is not None

    @property
    def depth(self) -> int:
        """Phases that are open."""
        return len(self._open)

    def begin_step(self) -> None:
        if self._open:
            raise UsageError(f"a step started inside phase {self._open[-1].name!r}; leave the phase first")
        if self._step is not None:
            raise UsageError("a step started inside a step; end the first one")
        self._step = self._begin("step", ())

    def end_step(self) -> StepRecord:
        """Close the step: its record is complete but for device times; a new record begins."""
        if self._step is None:
            raise UsageError("a step ended that was not started; call start_step() first")
        if self._open:
            raise UsageError(f"the step ended while phase {self._open[-1].name!r} is open; leave the phase first")
        step, self._step = self._step, None
        record = self.record
        self._end(step)
        totals = record.phases[()]
        totals.total_ns += record.between_ns
        self.record = StepRecord()
        return record

    def drop_step(self) -> None:
        """An exception left the step: close what is open in it and forget it."""
        while self._open:
            self._end(self._open.pop())
        if self._step is not None:
            step, self._step = self._step, None
            self._end(step)
        self.record = StepRecord()

    def begin(self, name: str) -> None:
        parent = self._open[-1].path if self._open else ()
        self._open.append(self._begin(name, (*parent, name)))

    def end(self, name: str) -> None:
        if not self._open:
            raise UsageError(f"phase {name!r} ended, but no phase is open on this thread")
        if self._open[-1].name != name:
            raise UsageError(f"phase {name!r} ended while {self._open[-1].name!r} is open inside it: end that first")
        self._end(self._open.pop())

    def unwind(self, name: str) -> None:
        """An exception leaves phase ``name``: end it and whatever is open inside it."""
        if all(span.name != name for span in self._open):
            return
        while self._open:
            span = self._open.pop()
            self._end(span)
            if span.name == name:
                return

    def _begin(self, name: str, path: Path) -> _Open:
        between = len(path) == 1 and self._step is None
        token = None if self._begin_device is None else self._begin_device((self.record, path, between))
        if token is None:
            self.record.totals(path).device_known = False
        return _Open(name, path, self._clock(), token)

    def _end(self, span: _Open) -> None:
        now_ns = self._clock()
        record = self.record
        totals = record.totals(span.path)
        if span.token is not None and self._end_device is not None:
            if self._end_device(span.token):
                record.waiting += 1
            else:
                totals.device_known = False
        duration_ns = now_ns - span.start_ns
        totals.calls += 1
        totals.total_ns += duration_ns
        totals.own_ns += duration_ns - span.children_ns
        if self._open:
            self._open[-1].children_ns += duration_ns
        elif span.path:
            if self._step is not None:
                self._step.children_ns += duration_ns
            else:
                record.between_ns += duration_ns
