"""Bytes on the way to standard error -> the same bytes without the profiler library's own lines.

torch 2.13's profiler writes a 'USDT:' line at every start and stop, straight to file descriptor 2, and at a first start
on another thread than the main one a line that begins with 'ERROR:' though everything is recorded. Only whole lines of
exactly these forms are taken out; everything else passes unchanged and in order.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_MARKS = (b"USDT:", b"ERROR: External init callback")
"""What a line to be taken out begins with."""
_LINE = re.compile(
    rb"USDT:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ [\w.]+:\d+\] profiler_(?:start|stop)\n"
    rb"|ERROR: External init callback must run in same thread as registerClient \(-?\d+ != -?\d+\)\n"
)  # fmt: skip
_LONGEST = 512
_lock = threading.Lock()


class LineFilter:
    """``feed`` answers what may be passed on now; ``rest`` what was held back as the possible begin of a line."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        passed = []
        while True:
            at, mark = min(((place, one) for one in _MARKS if (place := data.find(one)) >= 0), default=(-1, b""))
            if at < 0:
                kept = max(_held_back(data, one) for one in _MARKS)
                break
            end = data.find(b"\n", at)
            if end < 0 and len(data) - at < _LONGEST:
                kept = len(data) - at
                break
            end = at + len(mark) - 1 if end < 0 else end
            line = data[at : end + 1]
            passed.append(data[:at] if _LINE.fullmatch(line) else data[: end + 1])
            data = data[end + 1 :]
        passed.append(data[: len(data) - kept])
        self._held = data[len(data) - kept :]
        return b"".join(passed)

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _held_back(data: bytes, mark: bytes) -> int:
    """How many bytes at the end may be the begin of a mark."""
    return next((n for n in range(len(mark) - 1, 0, -1) if data.endswith(mark[:n])), 0)


@contextmanager
def without_profiler_lines() -> Iterator[None]:
    """Standard error of the whole process passes through the filter during the block.

    A process started meanwhile by another thread keeps the pipe; the passing on goes on for it in the background.
    """
    with _lock:
        try:
            _flush()
            real = os.dup(2)
        except OSError:  # standard error is closed: nothing to filter
            real = -1
        if real < 0:
            yield
            return
        read_end, write_end = os.pipe()
        end_mark = os.urandom(16)
        seen = threading.Event()
        thread = threading.Thread(
            target=_pass_on, args=(read_end, real, end_mark, seen), name="hotloop-stderr", daemon=True
        )
        thread.start()
        os.dup2(write_end, 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(real, 2)
            os.write(write_end, end_mark)
            os.close(write_end)
            seen.wait(5.0)


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()


def _pass_on(read_end: int, real: int, end_mark: bytes, seen: threading.Event) -> None:
    """Until nobody holds the other end: what comes is passed on; ``seen`` is set when ``end_mark`` has come."""
    line_filter = LineFilter()
    waiting = b""
    while data := os.read(read_end, 1 << 16):
        waiting += data
        if not seen.is_set():
            before, mark, after = waiting.partition(end_mark)
            if mark:
                _write(real, line_filter.feed(before) + line_filter.rest())
                seen.set()
                waiting = after
        # The mark may have come in part.
        most = 0 if seen.is_set() else min(len(end_mark) - 1, len(waiting))
        kept = next((n for n in range(most, 0, -1) if waiting.endswith(end_mark[:n])), 0)
        _write(real, line_filter.feed(waiting[: len(waiting) - kept]))
        waiting = waiting[len(waiting) - kept :]
    _write(real, line_filter.feed(waiting) + line_filter.rest())
    seen.set()
    os.close(read_end)
    os.close(real)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
