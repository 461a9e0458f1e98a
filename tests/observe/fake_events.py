"""A device's stream played by hand: events that complete when the test says so."""

from __future__ import annotations

from typing import Any


class FakeStream:
    """Time on the device in ns; events recorded complete in order up to ``completed``."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.recorded = 0
        self.completed = 0
        self.made = 0
        self.key = "main"
        self.capturing = False
        self.queries = 0

    def make_event(self) -> FakeEvent:
        self.made += 1
        return FakeEvent(self)

    def complete_all(self) -> None:
        self.completed = self.recorded


class FakeEvent:
    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream
        self._place = 0
        self.at_ns = 0
        self.error: str | None = None

    def record(self) -> None:
        if self._stream.capturing:
            raise AssertionError("recorded while a graph was captured")
        self._stream.recorded += 1
        self._place, self.at_ns = self._stream.recorded, self._stream.now_ns

    def query(self) -> bool:
        if self._stream.capturing:
            raise AssertionError("queried while a graph was captured")
        self._stream.queries += 1
        if self.error:
            raise RuntimeError(self.error)
        return self._place <= self._stream.completed

    def elapsed_time(self, end_event: Any, /) -> float:
        return float(end_event.at_ns - self.at_ns) * 1e-6
