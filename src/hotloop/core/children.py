"""A program in its own session, which ends together with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def started(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The program without standard input; the end of the block also ends what remains of its session.

    ``options`` are Popen's. Raises OSError if it cannot be started.
    """
    child = None
    try:
        with _interrupts_deferred():
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, **options)
        yield child
    finally:
        if child is not None:
            child.poll()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Defers Ctrl-C to the end of the block, so that no child starts without a record."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if seen:
            signal.raise_signal(signal.SIGINT)
