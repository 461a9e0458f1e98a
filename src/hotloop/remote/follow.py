"""The process that uploads while a training runs, and its owner in ``hotloop run``.

The process reads one JSON line (what to upload, and where) and then waits for more on its standard input: ``end`` means
that nothing more is to come; an end of the input without it, that ``hotloop run`` is gone. It writes JSON lines. It may
hang in a driver or be killed at any time: its owner never waits for it longer than agreed, and starts it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from hotloop.core.errors import HotloopError
from hotloop.core.frames import decode_object

from .store import RemoteStore, describe_error
from .uploader import CountRows, PrefixTaken, Uploader, hold_folder

FIRST_S, INTERVAL_S = 2.0, 15.0
"""Between two passes: short ones at first, so that a node that dies early has left something."""
MOST_OF_TIME = 0.02
"""A pass takes at most this share of a core's time: where many ranks write much, the interval grows."""
RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
END_RETRY_S = 5.0
"""The longest wait between two attempts once the training has ended."""
ORPHAN_S = 30.0
"""So long the process goes on trying when ``hotloop run`` is gone."""
RESTART_S, LONGEST_RESTART_S = 1.0, 60.0
NICENESS = 19
_MOST_LINE_BYTES = 65_536


class _Following:
    """Uploads the folder in ``request`` until the training has ended and everything has arrived."""

    def __init__(
        self,
        request: dict[str, Any],
        count_rows: CountRows,
        source: BinaryIO,
        say: Callable[[dict[str, Any]], None],
    ) -> None:
        self._request, self._count_rows = request, count_rows
        self.folder = Path(request["folder"])
        self._source, self._say = source, say
        self._uploader: Uploader | None = None
        self._joined = self._ended = False
        self._until_s: float | None = None  # of an orphan

    def run(self) -> int:
        """0 once that is so, 1 where it is given up."""
        interval_s, retry_s = FIRST_S, RETRY_S
        while self._until_s is None or time.monotonic() < self._until_s:
            cpu_s = time.process_time()
            try:
                was_ended = self._ended
                self._pass()
            except PrefixTaken as error:
                self._say({"refused": str(error)})
                return 1
            except HotloopError as error:
                self._say({"reason": str(error)})
                self._wait(min(retry_s, END_RETRY_S) if self._ended else retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
                continue
            retry_s = RETRY_S
            if was_ended or self._until_s is not None:
                self._say({"done": was_ended})
                return 0
            self._wait(max(interval_s, (time.process_time() - cpu_s) / MOST_OF_TIME))
            interval_s = min(2 * interval_s, INTERVAL_S)
        return 1

    def _pass(self) -> None:
        ended = self._ended
        if self._uploader is None:
            store = RemoteStore(self._request["url"], notice=lambda text: self._say({"reason": text}))
            self._uploader = Uploader(
                self.folder,
                store,
                run_id=self._request["run_id"],
                count_rows=self._count_rows,
                is_running=True,
            )
        if not self._joined:
            self._uploader.join()
            self._joined = True
        self._uploader.upload(ended=ended)
        self._say({"rows": sum(file.rows_count or 0 for file in self._uploader.manifest.files.values())})

    def _wait(self, seconds: float) -> None:
        """Until then, or until the training has ended."""
        until_s = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            if not self._ended and self._until_s is None:
                selector.register(self._source, selectors.EVENT_READ)
                if not selector.select(max(0.0, seconds)):
                    return
                line = self._source.readline()
                if line.strip() == b"end":
                    self._ended = True
                else:  # hotloop run was killed; the training may go on, and says so when it is uploaded
                    self._until_s = time.monotonic() + ORPHAN_S
                return
        time.sleep(max(0.0, until_s - time.monotonic()))


def serve_standard_input(count_rows: CountRows) -> int:
    """The body of the process. Signals that end a training are for others: it ends when its owner does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    source, sink = os.fdopen(0, "rb", buffering=0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a driver prints is not for our owner

    def say(message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(sink, json.dumps(message).encode() + b"\n")

    try:
        following = _Following(json.loads(source.readline()), count_rows, source, say)
        with hold_folder(following.folder):
            return following.run()
    except Exception as error:  # a bug costs the upload, never the training; its owner says so
        say({"reason": describe_error(error)})
        return 1


class UploadProcess:
    """Owns the process. Nothing here waits but ``stop``, and that as long as it is told."""

    def __init__(
        self,
        words: list[str],
        request: dict[str, Any],
        emit: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._words, self._request, self._emit, self._clock = words, request, emit, clock
        self._child: subprocess.Popen[bytes] | None = None
        self._heard = b""
        self._start_at_s, self._restart_s = 0.0, RESTART_S
        self.is_refused = self._is_done = False
        """Whether the URL is another run's."""
        self.reason: str | None = None
        """Why the last failure failed; None without one since the last success."""

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def tick(self) -> None:
        """Hear what the process says, and start it where it is not running."""
        self._hear()
        if self.is_refused or self._is_done:
            return
        if self._child is not None and self._child.poll() is not None:
            code = self._child.returncode
            self._forget()
            if self.is_refused or self._is_done:
                return
            self.reason = self.reason or f"the uploading process ended with {code}"
            self._start_at_s = self._clock() + self._restart_s
            self._restart_s = min(2 * self._restart_s, LONGEST_RESTART_S)
        if self._child is None and self._clock() >= self._start_at_s:
            self._start()

    def stop(self, within_s: float) -> None:
        """Nothing more is to come: wait until everything has arrived, at most so long; then end the process."""
        until_s = self._clock() + within_s
        told = 0
        try:
            while not self.is_refused and not self._is_done and self._clock() < until_s:
                self._start_at_s = min(self._start_at_s, self._clock() + RESTART_S)
                self.tick()
                if self._child is not None and self._child.pid != told and self._child.poll() is None:
                    told = self._child.pid
                    self._tell(b"end\n")
                time.sleep(0.05)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process now; what it had not yet sent stays on this disk."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._forget()

    def _forget(self) -> None:
        """Hear the last words of a process that has ended."""
        child = self._child
        self._hear()
        self._child = None
        if child is not None:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _start(self) -> None:
        try:
            self._child = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self.reason = f"the uploading process could not be started: {error.strerror}"
            self._start_at_s = self._clock() + self._restart_s
            return
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        self._heard = b""
        self._tell(json.dumps(self._request).encode() + b"\n")

    def _tell(self, line: bytes) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: the next tick starts another one
            self._child.stdin.write(line)
            self._child.stdin.flush()

    def _hear(self) -> None:
        if self._child is None or self._child.stdout is None:
            return
        with contextlib.suppress(OSError):
            self._heard += self._child.stdout.read() or b""
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            self._take(decode_object(line) or {})
        self._heard = self._heard[:_MOST_LINE_BYTES]

    def _take(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            self.is_refused, self.reason = True, str(message["refused"])
            self._emit(f"not uploaded: {self.reason}")
        elif "reason" in message:
            self.reason = str(message["reason"])
        elif "rows" in message:
            self.reason, self._restart_s = None, RESTART_S
        elif "done" in message:
            self._is_done = bool(message["done"])


def process_words() -> list[str]:
    """The command that starts the process, with this Python."""
    return [sys.executable, "-m", "hotloop", "upload", "--follow", "RUN", "URL"]
