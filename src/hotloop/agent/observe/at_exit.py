"""A function -> the same function run when the interpreter exits, where Ctrl-C can neither break it nor be printed.

Python prints an exception that leaves a callback at exit, with the callback's name, and exits all the same.
"""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


def run_at_exit(function: Callable[[], Any]) -> Callable[[], None]:
    """Register it; returns what ``atexit.unregister`` takes. ``function`` may be called twice."""

    def finish() -> None:
        try:
            _run_uninterrupted(function)
        except KeyboardInterrupt:  # before it was held off, or after it was let through again
            _run_uninterrupted(function)

    atexit.register(finish)
    return finish


def _run_uninterrupted(function: Callable[[], Any]) -> None:
    is_ours_to_hold = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours_to_hold:
        function()
        return
    signal.signal(signal.SIGINT, _drop)
    try:
        function()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _drop(number: int, frame: FrameType | None) -> None:
    """The process is ending as it was asked to."""
