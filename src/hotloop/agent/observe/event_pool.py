"""Pairs of device events from a bounded pool -> device times, read at step ends without ever waiting for the device.

A pair is recorded on the current stream around a phase. Its time spans everything between the
two records on that stream: queueing and idle time included. What cannot be measured (pool exhausted, a CUDA graph being
captured, another stream or an error at the end) has no time at all; it is never zero.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Protocol


class DeviceEvent(Protocol):
    """The part of torch.cuda.Event that is used."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this event to ``end_event``; both have completed."""
        ...


class StreamEvent:
    """A timing event of torch.cuda that is recorded on the stream that ``current_stream`` returns at that moment."""

    __slots__ = ("_current_stream", "event")

    def __init__(self, current_stream: Callable[[], Any]) -> None:
        import torch

        cuda: Any = torch.cuda
        self.event = cuda.Event(enable_timing=True)
        self._current_stream = current_stream

    def record(self) -> None:
        self.event.record(self._current_stream())

    def query(self) -> bool:
        return bool(self.event.query())

    def elapsed_time(self, end_event: Any, /) -> float:
        return float(self.event.elapsed_time(end_event.event))


class Token:
    """A pair whose begin has been recorded."""

    __slots__ = ("begin", "end", "key", "stream")

    def __init__(self, key: Hashable, begin: DeviceEvent, end: DeviceEvent, stream: Hashable) -> None:
        self.key = key
        self.begin = begin
        self.end = end
        self.stream = stream


class EventPool:
    """At most ``size`` pairs in flight. Used by one thread; nothing here blocks or raises into the training.

    ``stream`` returns what identifies the current stream; a pair whose ends are on two streams is dropped.
    While ``is_capturing`` returns True nothing is recorded and nothing is queried.
    """

    def __init__(
        self,
        make_event: Callable[[], DeviceEvent],
        size: int = 256,
        *,
        is_capturing: Callable[[], bool] = lambda: False,
        stream: Callable[[], Hashable] = lambda: None,
    ) -> None:
        self._make_event = make_event
        self._is_capturing = is_capturing
        self._stream = stream
        self._unmade = size
        self._free: list[tuple[DeviceEvent, DeviceEvent]] = []
        self._pending: deque[Token] = deque()
        self.unknown_count = 0
        """Phases that have no device time."""
        self.failure: str | None = None
        """Why the pool gave up; the error itself is the training's to see at its own next call."""

    @property
    def in_flight_count(self) -> int:
        """Pairs that were ended and are not resolved yet."""
        return len(self._pending)

    def begin(self, key: Hashable) -> Token | None:
        """Record the start of a phase; None when its device time will stay unknown."""
        if self.failure is not None or not (self._free or self._unmade) or self._is_capturing():
            self.unknown_count += 1
            return None
        try:
            if self._free:
                begin, end = self._free.pop()
            else:
                begin, end = self._make_event(), self._make_event()
                self._unmade -= 1
            begin.record()
            return Token(key, begin, end, self._stream())
        except RuntimeError as error:
            self._give_up(error)
            return None

    def end(self, token: Token) -> bool:
        """Record the end of the phase; False when its device time stays unknown."""
        if self.failure is None and not self._is_capturing() and token.stream == self._stream():
            try:
                token.end.record()
            except RuntimeError as error:
                self._give_up(error)
                return False
            self._pending.append(token)
            return True
        self.cancel(token)
        return False

    def cancel(self, token: Token) -> None:
        """Give a begun pair back unmeasured."""
        self.unknown_count += 1
        self._free.append((token.begin, token.end))

    def resolve(self) -> list[tuple[Hashable, int]]:
        """(key, device ns) of the pairs that have completed since the last call, oldest first."""
        found: list[tuple[Hashable, int]] = []
        pending = self._pending
        if not pending or self.failure is not None or self._is_capturing():
            return found
        try:
            while pending and pending[0].end.query():
                token = pending[0]
                duration_ns = round(token.begin.elapsed_time(token.end) * 1e6)
                pending.popleft()
                self._free.append((token.begin, token.end))
                found.append((token.key, max(0, duration_ns)))
        except RuntimeError as error:
            self._give_up(error)
        return found

    def _give_up(self, error: RuntimeError) -> None:
        self.failure = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        self.unknown_count += 1 + len(self._pending)
        self._pending.clear()


def cuda_event_pool(device_index: int, size: int = 256) -> EventPool:
    """A pool of CUDA events on the current stream of one device, also while another device is current."""
    import torch

    def current_stream() -> Any:
        return torch.cuda.current_stream(device_index)

    return EventPool(
        functools.partial(StreamEvent, current_stream),
        size,
        is_capturing=torch.cuda.is_current_stream_capturing,
        stream=lambda: current_stream().stream_id,
    )
