"""A run folder -> its mirror, until all of it has arrived: at once, or in a process next to ``hotloop run``.

The process ends once its standard input is closed and everything has arrived. It may hang in a driver or be killed at
any time: ``hotloop run`` never waits for it longer than agreed, and starts it again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hotloop.core.errors import HotloopError

from .store import RemoteStore, describe_error
from .uploader import CountRows, PrefixTaken, Uploader, hold_folder

FIRST_S, INTERVAL_S = 2.0, 15.0
"""Between two passes: short ones at first, so that a node that dies early has left something."""
MOST_OF_TIME = 0.02
"""A pass takes at most this share of a core's time: where many ranks write much, the interval grows."""
RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
END_RETRY_S = 5.0
"""The longest wait between two attempts once the training has ended."""
RESTART_S, LONGEST_RESTART_S = 1.0, 60.0
NICENESS = 19
REFUSED = 3
"""The process's exit code where the URL is another run's."""
FAILURE_FILE = "upload-failure.txt"
"""In the run folder: why the last pass failed, in one line; empty after a pass that did not."""


def mirror(
    make_uploader: Callable[[], Uploader],
    *,
    over: bool,
    wait: Callable[[float], bool],
    gives_up: Callable[[float], bool],
    fail: Callable[[str], None],
) -> str | None:
    """Pass after pass, until nothing more is to come (``over``, or what ``wait`` returned) and everything has arrived;
    then None, else why it was given up before a wait of that many seconds. ``fail`` gets the reason of each failure.

    Raises PrefixTaken where the URL is another run's.
    """
    uploader = None
    interval_s, retry_s = FIRST_S, RETRY_S
    while True:
        cpu_s = time.process_time()
        try:
            uploader = uploader or make_uploader()
            uploader.upload(ended=over)
        except PrefixTaken:
            raise
        except HotloopError as error:
            wait_s = min(retry_s, END_RETRY_S) if over else retry_s
            if gives_up(wait_s):
                return str(error)
            fail(str(error))
            retry_s = min(2 * retry_s, LONGEST_RETRY_S)
        else:
            if over:
                return None
            fail("")
            wait_s = max(interval_s, (time.process_time() - cpu_s) / MOST_OF_TIME)
            interval_s, retry_s = min(2 * interval_s, INTERVAL_S), RETRY_S
        over = wait(wait_s)


def follow(folder: Path, url: str, run_id: str | None, count_rows: CountRows) -> int:
    """The body of the process. Signals that end a training are for others: it ends when its owner says so."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    owner = os.getppid()

    def make() -> Uploader:
        return Uploader(folder, RemoteStore(url), run_id=run_id, count_rows=count_rows, is_running=True)

    def wait(seconds: float) -> bool:
        is_closed = bool(select.select([0], [], [], 0)[0])
        if is_closed:
            time.sleep(seconds)
        return is_closed or bool(select.select([0], [], [], seconds)[0])

    def fail(reason: str) -> None:
        (folder / FAILURE_FILE).write_text(reason)

    try:
        with hold_folder(folder):
            reason = mirror(make, over=False, wait=wait, gives_up=lambda _: os.getppid() != owner, fail=fail)
    except PrefixTaken as error:
        fail(str(error))
        return REFUSED
    except Exception as error:  # a bug costs the upload, never the training; its owner says so
        fail(describe_error(error))
        return 1
    return int(reason is not None)


class UploadProcess:
    """Owns the process that ``words`` start. Only ``stop`` waits, for as long as it is asked to."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        emit: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._words, self._folder, self._emit, self._clock = words, folder, emit, clock
        self._child: subprocess.Popen[bytes] | None = None
        self._start_at_s, self._restart_s = 0.0, RESTART_S
        self.is_refused = self.is_done = False
        """Whether the URL is another run's; whether there is nothing left to do."""

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def reason(self) -> str | None:
        """Why the last failure failed; None without one since the last success."""
        try:
            return (self._folder / FAILURE_FILE).read_text() or None
        except OSError:
            return None

    def tick(self) -> None:
        """Start the process where it is not running and should."""
        if self._child is not None and (code := self._child.poll()) is not None:
            self.kill()
            self.is_refused, self.is_done = code == REFUSED, code in (0, REFUSED)
            if self.is_refused:
                self._emit(f"not uploaded: {self.reason}")
            self._start_at_s = self._clock() + self._restart_s
            self._restart_s = min(2 * self._restart_s, LONGEST_RESTART_S)
        if self._child is None and not self.is_done and self._clock() >= self._start_at_s:
            self._child = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def stop(self, within_s: float) -> None:
        """Nothing more will come: wait until everything has arrived, for a limited time; then end the process."""
        until_s = self._clock() + within_s
        try:
            while not self.is_done and self._clock() < until_s:
                self._start_at_s = min(self._start_at_s, self._clock() + RESTART_S)
                self.tick()
                if self._child is not None and self._child.stdin is not None:
                    self._child.stdin.close()
                time.sleep(0.05)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process now; what it had not yet sent stays on this disk."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            if self._child.stdin is not None:
                self._child.stdin.close()
            self._child = None


def process_words(folder: Path, url: str, run_id: str | None) -> list[str]:
    """The command that starts the process, with this Python."""
    named = [] if run_id is None else ["--record-id", run_id]
    return [sys.executable, "-m", "hotloop", "upload", "--follow", *named, "--", str(folder.resolve()), url]
