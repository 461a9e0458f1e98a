"""The calling thread -> how long it has worked or was ready to work, in ns: what is left of wall time is real waiting.

CPU time alone would make a thread that other programs keep off the cores look as if it waited for storage. The kernel
counts the time on its run queue in schedstat; where that is not to be had, only CPU time is counted.
"""

from __future__ import annotations

import os
import threading
import time

_PATH = "/proc/thread-self/schedstat"


class _Opened(threading.local):
    """This thread's schedstat file. A forked child opens its own."""

    descriptor: int | None = None
    pid: int | None = None


_opened = _Opened()


def busy_ns() -> int:
    """CPU time of the calling thread plus its time on the run queue, in ns."""
    return time.thread_time_ns() + run_delay_ns()


def counts_run_queue() -> bool:
    """Whether the kernel tells the time on the run queue, so that ``busy_ns`` holds the wait for a core too."""
    run_delay_ns()
    return _opened.descriptor is not None


def run_delay_ns() -> int:
    """Time that the calling thread was ready but had no core, in ns; 0 where the kernel does not tell."""
    if _opened.pid != os.getpid():
        _opened.pid = os.getpid()
        try:
            _opened.descriptor = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            _opened.descriptor = None
    if _opened.descriptor is None:
        return 0
    try:
        return int(os.pread(_opened.descriptor, 96, 0).split()[1])
    except (OSError, ValueError, IndexError):
        _opened.descriptor = None
        return 0
