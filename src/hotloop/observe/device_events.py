"""Phases of a training on an accelerator -> facts ``device_times``: the device's time of each, known some rows later.

Each timed phase records one pair of events on the current stream. Nothing ever waits for the device: completed pairs
are read at row ends, on the training thread, and while any thread captures a CUDA graph nothing is recorded and nothing
is queried. A pair spans all that was queued between its ends, idle time included; it is no proof of what ran.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

from hotloop.replay.recorder import BACKWARD, FORWARD, H2D, OPTIMIZER, Recorder

from .event_pool import DeviceEvent, EventPool, StreamEvent
from .guard import guarded

PHASE_KEYS = ("forward_ns", "backward_ns", "optimizer_ns", "h2d_ns")
PLACES = {FORWARD: 0, BACKWARD: 1, OPTIMIZER: 2, H2D: 3}
"""Field of the phase stack -> its place in PHASE_KEYS; the other phases are not timed on the device."""

POOL_PAIRS = 256
"""Pairs in flight at most. A launch queue holds about 1,000 kernels, so a step has far fewer pairs ahead of it."""
MIN_INTERVAL_NS = 20_000_000
"""At most one row in so long is timed: about 10 us of recording a phase stay far below half a percent."""

RecordFact = Callable[[dict[str, Any]], None]


class CaptureWatch:
    """Whether any thread of this process captures a CUDA graph now, from wrapped capture_begin and capture_end.

    In the default capture mode a query of an event, by any thread, breaks a capture. Whoever queries does so under
    ``lock`` and looks at ``is_capturing`` first; a capture that begins meanwhile waits for that one query.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._captures = 0

    def is_capturing(self) -> bool:
        return self._captures > 0

    def wrap_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """CUDAGraph.capture_begin, noted before the capture begins."""

        @functools.wraps(original)
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            with self.lock:
                self._captures += 1
            try:
                return original(*args, **kwargs)
            except BaseException:
                self._ended()
                raise

        return capture_begin

    def wrap_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """CUDAGraph.capture_end; a capture that fails to end is over all the same."""

        @functools.wraps(original)
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                self._ended()

        return capture_end

    def _ended(self) -> None:
        with self.lock:
            self._captures = max(0, self._captures - 1)


class _Row:
    """One timed row: ns of each phase, whether they are known, and how many pairs have not completed."""

    __slots__ = ("closed", "index", "known", "ns", "waiting")

    def __init__(self) -> None:
        self.index = 0
        self.ns = [0, 0, 0, 0]
        self.known = [True, True, True, True]
        self.waiting = 0
        self.closed = False

    def to_fact(self) -> dict[str, Any]:
        times = (ns if known else None for ns, known in zip(self.ns, self.known, strict=True))
        return {"kind": "device_times", "row": self.index, **dict(zip(PHASE_KEYS, times, strict=True))}


class _Phase:
    """A phase and its pair. ``inner_ns`` is the device's time of timed phases inside it, which are not its own."""

    __slots__ = ("inner_known", "inner_ns", "outer", "place", "row", "token")

    def __init__(self, place: int, outer: _Phase | None, row: _Row | None) -> None:
        self.place = place
        self.outer = outer
        self.row = row
        self.token: Any = None
        self.inner_ns = 0
        self.inner_known = True


class DeviceTimer:
    """Pairs of events per phase, from a pool of ``pool_size``. Used by the training thread alone; nothing raises.

    ``record`` receives a fact for every timed row once all its pairs have completed. A phase that did not run in a row
    took 0 ns there; one that could not be measured (pool exhausted, a capture, another stream at its end, an error of
    the device) is None.
    """

    def __init__(
        self,
        make_event: Callable[[], DeviceEvent],
        is_capturing: Callable[[], bool],
        pool_size: int = POOL_PAIRS,
        *,
        record: RecordFact,
        stream: Callable[[], Hashable] = lambda: None,
        lock: Any = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        min_interval_ns: int = MIN_INTERVAL_NS,
    ) -> None:
        self._pool = EventPool(make_event, pool_size, is_capturing=is_capturing, stream=stream)
        self._record = record
        self._lock = lock if lock is not None else threading.RLock()
        self._clock = clock
        self._min_interval_ns = min_interval_ns
        self._next_ns = clock()
        self._open: list[_Phase] = []
        self._row: _Row | None = None  # the current one, when it is timed; the first is not: it has begun already
        self._waiting: set[_Row] = set()

    @property
    def waiting_rows(self) -> int:
        """Rows that are complete but for their pairs; never more than pairs in the pool."""
        return len(self._waiting)

    @guarded
    def enter(self, field: int) -> None:
        """A timed phase begins (a key of PLACES)."""
        opened = self._open
        phase = _Phase(PLACES[field], opened[-1] if opened else None, self._row)
        if self._row is not None:
            with self._lock:
                phase.token = self._pool.begin(phase)
        opened.append(phase)

    @guarded
    def leave(self) -> None:
        """The innermost timed phase ends."""
        if not self._open:
            return  # it began before the timer
        phase = self._open.pop()
        row, token, outer = self._row, phase.token, phase.outer
        ended = False
        if token is not None:
            with self._lock:
                if row is not None and row is phase.row:
                    ended = self._pool.end(token)
                else:
                    self._pool.cancel(token)
        if ended and row is not None:
            row.waiting += 1
            if outer is not None and outer.token is not None and outer.token.stream != token.stream:
                outer.inner_known = False  # two streams run side by side: nothing to subtract from
            return
        if outer is not None:
            outer.inner_known = False
        for touched in (row, phase.row):
            if touched is not None and not touched.closed:
                touched.known[phase.place] = False

    @guarded
    def close_row(self, index: int) -> None:
        """Row ``index`` is complete; tell what has completed on the device, and decide whether to time the next row."""
        row = self._row
        if row is not None:
            for phase in self._open:  # its time belongs to two rows, and nobody knows how much to each
                row.known[phase.place] = False
            row.index = index
            row.closed = True
            self._row = None
            self._waiting.add(row)
        pool = self._pool
        if pool.failure is None:
            with self._lock:
                resolved = pool.resolve()
            for key, duration_ns in resolved:
                self._settle(key, duration_ns)  # type: ignore[arg-type]
        if pool.failure is not None:
            self._abandon(pool.failure)
            return
        if row is not None and row.waiting == 0:
            self._finish(row)
        now_ns = self._clock()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + self._min_interval_ns
            self._row = _Row()

    def _settle(self, phase: _Phase, duration_ns: int) -> None:
        """A pair has completed. Those inside it have before: pairs complete in the order in which they ended."""
        row, outer = phase.row, phase.outer
        if outer is not None:
            outer.inner_ns += duration_ns
        if row is None:
            return
        row.ns[phase.place] += max(0, duration_ns - phase.inner_ns)
        if not phase.inner_known:
            row.known[phase.place] = False
        row.waiting -= 1
        if row.closed and row.waiting == 0:
            self._finish(row)

    def _finish(self, row: _Row) -> None:
        if row in self._waiting:
            self._waiting.discard(row)
            self._record(row.to_fact())

    def _abandon(self, reason: str) -> None:
        """The device answered with an error: what waits stays unknown, and nothing is timed any more."""
        self._row = None
        if self._waiting:
            for row in sorted(self._waiting, key=lambda row: row.index):
                row.known = [False] * len(row.known)
                self._record(row.to_fact())
            self._waiting.clear()
        if self._next_ns != _NEVER_NS:
            self._next_ns = _NEVER_NS
            self._record(
                {"kind": "health", "level": "warning", "message": f"device times are no longer recorded: {reason}"}
            )


_NEVER_NS = 1 << 62


def time_device(recorder: Recorder, timer: DeviceTimer) -> None:
    """From here on ``recorder`` also times its phases on the device.

    Its class changes, so that a training without an accelerator pays nothing, not even a comparison.
    """
    recorder.__class__ = _recorder_with(timer, type(recorder))


def _recorder_with(timer: DeviceTimer, base: type[Recorder]) -> type[Recorder]:
    """A recorder whose phases go to ``timer`` as well."""

    class DeviceRecorder(base):  # type: ignore[misc, valid-type]
        def reset(self) -> None:
            """A forked child has no device: a plain recorder again."""
            self.__class__ = base  # type: ignore[assignment]
            base.reset(self)

        def enter(self, field: int) -> None:
            base.enter(self, field)
            if field in PLACES:
                timer.enter(field)

        def leave(self) -> None:
            if self.stack[-1] in PLACES and len(self.stack) > 1:
                timer.leave()
            base.leave(self)

        def close(self, closed_by: int, optimizer_index: int) -> None:
            base.close(self, closed_by, optimizer_index)
            timer.close_row(self.rows - 1)

    return DeviceRecorder


def cuda_device_timer(device_index: int, record: RecordFact, captures: CaptureWatch) -> DeviceTimer:
    """A timer of the current stream of one CUDA device, also while another device is current."""
    import torch

    cuda: Any = torch.cuda
    raw_stream = torch._C._cuda_getCurrentRawStream
    is_current_capturing = cuda.is_current_stream_capturing
    streams: dict[int, Any] = {}  # by handle: making a Stream object costs more than recording an event

    def current_stream() -> Any:
        handle = raw_stream(device_index)
        found = streams.get(handle)
        if found is None:
            if len(streams) >= 64:
                streams.clear()
            found = streams[handle] = cuda.current_stream(device_index)
        return found

    return DeviceTimer(
        functools.partial(StreamEvent, current_stream),
        lambda: captures.is_capturing() or is_current_capturing(),
        record=record,
        stream=lambda: raw_stream(device_index),
        lock=captures.lock,
    )
