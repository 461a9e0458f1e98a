"""Phases of a training on an accelerator -> events ``DEVICE_TIMES``: the device's time of each, known some steps later.

Each timed phase records one pair of events on the current stream. Nothing ever waits for the device: completed pairs
are read after steps, on the training thread, and while any thread captures a CUDA graph nothing is recorded and nothing
is queried. A pair spans all that was queued between its ends, idle time included; it does not prove what ran.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

from hotloop.core.events import (
    BACKWARD_IN,
    BACKWARD_OUT,
    DEVICE_TIMES,
    FORWARD_IN,
    FORWARD_OUT,
    GRAD,
    PHASE_IN,
    PHASE_OUT,
    RESTED,
    SCALER_WORK_IN,
    SCALER_WORK_OUT,
    STEP_IN,
    STEP_OUT,
    TIMED,
)
from hotloop.core.recording import FIELD, UNKNOWN

from .event_pool import DeviceEvent, EventPool, StreamEvent
from .guard import guarded

FORWARD, BACKWARD, OPTIMIZER, COPY = range(4)
"""Places in what DEVICE_TIMES says."""
BEGINS = {
    FORWARD_IN: FORWARD, BACKWARD_IN: BACKWARD, STEP_IN: OPTIMIZER, SCALER_WORK_IN: OPTIMIZER, PHASE_IN: COPY,
}  # fmt: skip
ENDS = {
    FORWARD_OUT: FORWARD_IN, BACKWARD_OUT: BACKWARD_IN, STEP_OUT: STEP_IN, SCALER_WORK_OUT: SCALER_WORK_IN,
    PHASE_OUT: PHASE_IN,
}  # fmt: skip
"""Events that begin a timed phase, and those that end it; copies to the device alone of PHASE_IN and PHASE_OUT."""
H2D = FIELD["h2d_ns"]

POOL_PAIRS = 256
"""Pairs in flight at most. A launch queue holds about 1,000 kernels, so a step has far fewer pairs ahead of it."""
MIN_INTERVAL_NS = 20_000_000
"""At most one row in this time is timed: about 10 us of recording a phase stay far below half a percent."""

Note = Callable[..., Any]
"""Notes an event: its code and arguments."""


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
    """One timed step: ns of each phase, whether they are known, and how many pairs have not completed."""

    __slots__ = ("closed", "known", "ns", "number", "waiting")

    def __init__(self, number: int) -> None:
        self.number = number
        self.ns = [0, 0, 0, 0]
        self.known = [True, True, True, True]
        self.waiting = 0
        self.closed = False


class _Phase:
    """A phase and its pair. ``inner_ns`` is the device's time of timed phases inside it, which are not its own."""

    __slots__ = ("code", "inner_known", "inner_ns", "outer", "place", "row", "token")

    def __init__(self, code: int, place: int, outer: _Phase | None, row: _Row | None) -> None:
        self.code = code
        self.place = place
        self.outer = outer
        self.row = row
        self.token: Any = None
        self.inner_ns = 0
        self.inner_known = True


class DeviceTimer:
    """Pairs of events per phase, from a pool of ``pool_size``. Used by the training thread alone; nothing raises.

    ``note`` receives TIMED where a timed step begins or ends, and DEVICE_TIMES once all of its pairs have completed: of
    a phase that did not run 0 ns, of a phase that could not be measured (pool exhausted, a capture, another stream at
    its end, an error of the device) UNKNOWN. ``fail`` receives the device's error, once.
    """

    def __init__(
        self,
        make_event: Callable[[], DeviceEvent],
        is_capturing: Callable[[], bool],
        pool_size: int = POOL_PAIRS,
        *,
        note: Note,
        fail: Callable[[str], None],
        stream: Callable[[], Hashable] = lambda: None,
        lock: Any = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        min_interval_ns: int = MIN_INTERVAL_NS,
    ) -> None:
        self._pool = EventPool(make_event, pool_size, is_capturing=is_capturing, stream=stream)
        self._note, self._fail = note, fail
        self._lock = lock if lock is not None else threading.RLock()
        self._clock = clock
        self._min_interval_ns = min_interval_ns
        self._next_ns = clock()
        self._numbers = 0
        self._open: list[_Phase] = []
        self._row: _Row | None = None  # the current one, when it is timed; the first is not: it has begun already
        self._waiting: set[_Row] = set()

    @property
    def waiting_rows(self) -> int:
        """Steps that are complete except for their pairs; never more than pairs in the pool."""
        return len(self._waiting)

    @guarded
    def enter(self, code: int) -> None:
        """A timed phase begins (a key of BEGINS)."""
        opened = self._open
        phase = _Phase(code, BEGINS[code], opened[-1] if opened else None, self._row)
        if self._row is not None:
            with self._lock:
                phase.token = self._pool.begin(phase)
        opened.append(phase)

    @guarded
    def leave(self, code: int) -> None:
        """The innermost phase that ``code`` began ends; those inside it have no end (an optimizer's step raised)."""
        if not any(phase.code == code for phase in self._open):
            return  # it began before the timer, or is not timed
        while True:
            phase = self._open.pop()
            self._end(phase, is_complete=phase.code == code)
            if phase.code == code:
                return

    def _end(self, phase: _Phase, *, is_complete: bool) -> None:
        row, token, outer = self._row, phase.token, phase.outer
        ended = False
        if token is not None:
            with self._lock:
                if is_complete and row is not None and row is phase.row:
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
    def close_row(self, may_begin: bool = True) -> None:
        """A step is complete: decide whether the next one is timed, and note what has completed on the device."""
        row, self._row = self._row, None
        if row is not None:
            for phase in self._open:  # its time belongs to two steps, and nobody knows how much to each
                row.known[phase.place] = False
            row.closed = True
            self._waiting.add(row)
        pool, now_ns = self._pool, self._clock()
        if may_begin and now_ns >= self._next_ns and pool.failure is None:
            self._next_ns = now_ns + self._min_interval_ns
            self._numbers += 1
            self._row = _Row(self._numbers)
        if row is not None or self._row is not None:
            self._note(TIMED, 0 if self._row is None else self._row.number)
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
            times = [ns if known else UNKNOWN for ns, known in zip(row.ns, row.known, strict=True)]
            self._note(DEVICE_TIMES, row.number, *times)

    def _abandon(self, reason: str) -> None:
        """The device returned an error: what waits stays unknown, and nothing is timed any more."""
        self._row = None
        self._waiting.clear()
        if self._next_ns != _NEVER_NS:
            self._next_ns = _NEVER_NS
            self._fail(reason)


_NEVER_NS = 1 << 62


def time_on_device(agent: Any, timer: Callable[..., DeviceTimer]) -> None:
    """From here on what the agent notes is also timed on the device. ``timer(note, fail)`` makes the timer.

    The function that notes events is replaced, so that a training without an accelerator pays nothing. A forked child
    gets the plain one again: it has no device.
    """
    emit = agent.ring.emit

    def fail(reason: str) -> None:
        agent.tell({"kind": "health", "level": "warning", "message": f"device times are no longer recorded: {reason}"})

    timing = timer(emit, fail)
    has_steps = False

    def emit_timed(code: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> int:
        nonlocal has_steps
        if code in BEGINS:
            number: int = emit(code, a, b, c, d, e, f)
            if a == H2D if code == PHASE_IN else code != FORWARD_IN or b & GRAD:
                timing.enter(code)
            return number
        begun = ENDS.get(code)
        if begun is not None and (code != PHASE_OUT or a == H2D):
            timing.leave(begun)
        number = emit(code, a, b, c, d, e, f)
        has_steps = has_steps or code == STEP_OUT
        if code == STEP_OUT or (code == BACKWARD_OUT and not has_steps):
            timing.close_row(not agent.rests_for)
        elif code == RESTED:
            timing.close_row()
        return number

    agent.ring.emit = emit_timed


def time_on_cuda(agent: Any, device_index: int, captures: CaptureWatch) -> None:
    """Phases are also timed on the current stream of one CUDA device, even while another device is current."""
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

    def make(note: Note, fail: Callable[[str], None]) -> DeviceTimer:
        return DeviceTimer(
            functools.partial(StreamEvent, current_stream),
            lambda: captures.is_capturing() or is_current_capturing(),
            note=note,
            fail=fail,
            stream=lambda: raw_stream(device_index),
            lock=captures.lock,
        )

    time_on_device(agent, make)
