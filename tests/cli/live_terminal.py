"""A command on a pseudo-terminal of its own, shown by an emulator (pyte) that keeps what scrolled away."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

OURS = re.compile(rb"(?:\x1bD)+\x1b\[\d+A|\x1bD\x1b\[2K\x1b\[J\x1b\[A|\x1b7.*?\x1b8", re.DOTALL)
"""What --live writes: taking its rows, giving them back, and whatever leaves the cursor where it was."""


class Terminal:
    """Use it in a with statement: what still runs is killed at its end."""

    def __init__(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str], columns: int = 80, lines: int = 24
    ) -> None:
        self.raw = b""
        self.screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(folder)
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
                os.execvpe(command[0], list(command), {**os.environ, **variables})
            finally:
                os._exit(127)
        self.is_over = False

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._master)  # hangs up whatever still runs there
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            return

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read_until(self, is_there: Callable[[], bool], within_s: float = 40.0) -> None:
        """Shows what comes until ``is_there``."""
        until_s = time.monotonic() + within_s
        while not is_there():
            assert time.monotonic() < until_s, self.text()
            ready, _, _ = select.select([self._master], [], [], 0.05)
            if ready:
                self._read()

    def read_to_end(self) -> int:
        """Shows all, and answers the exit code."""
        self.read_until(lambda: self.is_over)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # nobody holds the other end any more
            data = b""
        self.is_over = not data
        self.raw += data
        self._stream.feed(data)

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def text(self) -> str:
        """What scrolled away, and the screen, without empty rows at its end."""
        away = ["".join(row[at].data for at in range(self.screen.columns)).rstrip() for row in self.screen.history.top]
        return "\n".join([*away, *self.rows()]).rstrip("\n")

    def foreign(self) -> bytes:
        """The bytes that --live did not write."""
        return OURS.sub(b"", self.raw)
