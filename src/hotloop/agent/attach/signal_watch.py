"""A process of our group that does nothing but say which signals it gets: those were sent to all of us, not to one.

Supervisors send a signal to a whole group or to every process of a job, and the training then gets it directly.
Nothing in the signal distinguishes that from a signal that was sent to hotloop alone. A second process can.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence

PATIENCE_S = 0.1
"""How long after a signal its twin may come: a supervisor that goes through a list of processes takes this long."""
LOOK_S = 0.5


class SignalGroupWatch:
    """Watches ``numbers`` from its start to ``end``; where a process cannot be had, it has seen nothing."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = set(numbers)
        self._seen: dict[int, float] = {}
        self._pid = 0
        self._read = -1
        try:
            self._start()
        except OSError:
            self._pid = 0

    def _start(self) -> None:
        read, write = os.pipe()
        ours = os.getpid()
        # Blocked from before its first moment: a signal waits until it is fetched.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _watch(self._numbers, ours, write)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write)
        os.set_blocking(read, False)
        self._read = read

    def saw(self, number: int) -> bool:
        """Whether it got this signal too, just before or within PATIENCE_S from now."""
        if self._pid == 0:
            return False
        until_s = time.monotonic() + PATIENCE_S
        while True:
            self._fetch()
            if self._seen.pop(number, -1.0) > time.monotonic() - LOOK_S:
                return True
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            select.select([self._read], [], [], left_s)

    def _fetch(self) -> None:
        try:
            signals = os.read(self._read, 64)
        except BlockingIOError:
            return
        if not signals:  # it is gone
            time.sleep(0.01)
        for number in signals:
            self._seen[number] = time.monotonic()

    def end(self) -> None:
        """End the process and wait for it."""
        if self._pid:
            os.close(self._read)
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def _watch(numbers: set[int], parent: int, write: int) -> None:
    """The other process: holds no stream that a reader waits for, runs no code of the parent's, never returns."""
    try:
        os.closerange(0, write)
        os.closerange(write + 1, 1024)
        while os.getppid() == parent:
            info = signal.sigtimedwait(numbers, 1.0)
            if info is not None:
                os.write(write, bytes([info.si_signo]))
    finally:
        os._exit(0)
