"""Steps, losses, saves and evaluations of a process that will be interrupted -> lines in a file, as they happen.

Only in processes that ``hotloop drill`` started (option ``trial`` with ``is_rehearsal``): what is written before a kill
stays. A line is the time in ns of the monotonic clock, a kind, and words: ``row LOSS CLOSED_BY RANK``, ``save`` and
``saved BYTES`` (0: unknown, 1: to a buffer), ``held`` (see _HeldFile), ``eval`` and ``train`` (a forward without
gradients after one with them, and back), ``wrote PATH``, ``outside PATH``. A checkpoint outside of the working copies
that is older than the drill cannot be opened for writing, renamed over or removed by Python: the call fails.
"""

from __future__ import annotations

import functools
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotloop.core.checkpoint_names import is_checkpoint_name
from hotloop.core.events import FORWARD_IN, GRAD
from hotloop.core.recording import CLOSED_BY_END, FIELD

from .losses import LossWatch, read_values
from .ranks import current_rank

_CLOSED_BY = FIELD["closed_by"]
MOST_HELD_S = 20.0
# Which argument of an audit event is the path that is lost.
_TARGET_AT = {"os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.truncate": 0, "shutil.rmtree": 0}


class _HeldFile(io.FileIO):
    """A file that ``torch.save`` writes in place of a path: after some bytes it waits for the signal, which then
    comes in the middle of a save, however short that is."""

    def __init__(self, path: Any, left_bytes: int, wait: Callable[[], None]) -> None:
        super().__init__(path, "wb")
        self._left_bytes, self._wait_for_signal = left_bytes, wait

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        before, self._left_bytes = self._left_bytes, self._left_bytes - len(view)
        if before > 0 >= self._left_bytes:
            super().write(view[:before])
            self._wait_for_signal()
            return before + super().write(view[before:])
        return super().write(view)


class RehearsalWatch:
    """Called after every row. ``options``: ``folder`` for the lines, ``root`` of all working copies, and the time
    ``begun_wall_s`` before which files are the user's own."""

    def __init__(self, options: dict[str, Any], session: Any) -> None:
        self._folder, self._begun_s = str(options["folder"]), float(options["begun_wall_s"])
        self._root = os.path.realpath(options["root"]) + os.sep
        self._shared = (os.path.realpath(os.path.expanduser("~/.cache")) + os.sep, "/dev/", "/proc/")
        self._temporary = os.path.realpath(tempfile.gettempdir())
        self._file, self._pid = -1, 0
        self._depth = 0  # of calls that save and have not returned: a save may call another one
        self._is_evaluating = False
        self._saves, self._hold = 0, options.get("hold") or {}
        self.losses = LossWatch()
        session.agent.ring.emit = self._wrap_emit(session.agent.ring.emit)
        sys.addaudithook(self._audit)

    def __call__(self, session: Any, row: Any) -> None:
        if row[_CLOSED_BY] == CLOSED_BY_END:
            return
        loss = read_values([self.losses.take()])[0]
        self._write(f"row {loss!r} {row[_CLOSED_BY]} {current_rank() or 0}")
        Path(self._folder, "progress").touch()

    def wrap_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """torch.save and its kin, from any thread: ``call(what, where)``."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            target: Any = args[1] if original.__module__ == "torch.serialization" and len(args) > 1 else None
            is_file = isinstance(target, str | os.PathLike)
            for value in (*args[1:2], kwargs.get("f"), kwargs.get("filename")):
                if isinstance(value, str | os.PathLike):
                    self._check(value)
            self._depth += 1
            if self._depth == 1:
                self._saves += 1
                self._write("save")
            try:
                if target is not None and self._depth == 1 and self._saves == self._hold.get("count"):
                    if not is_file:
                        self._wait()
                    else:
                        with _HeldFile(target, self._hold["bytes"], self._wait) as file:
                            return original(args[0], file, *args[2:], **kwargs)
                return original(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    size = os.path.getsize(target) if is_file and os.path.exists(target) else int(target is not None)
                    self._write(f"saved {size}")

        return call

    def _wait(self) -> None:
        """Until the signal was sent."""
        self._write("held")
        until_s = time.monotonic() + MOST_HELD_S
        while time.monotonic() < until_s and not os.path.exists(os.path.join(self._folder, "sent")):
            time.sleep(0.005)

    def _wrap_emit(self, emit: Callable[..., int]) -> Callable[..., int]:
        def call(code: int, a: int = 0, b: int = 0, *more: int) -> int:
            if code == FORWARD_IN and self._is_evaluating == bool(b & GRAD):
                self._is_evaluating = not self._is_evaluating
                self._write("eval" if self._is_evaluating else "train")
            return emit(code, a, b, *more)

        return call

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if (
                isinstance(args[2], int)
                and args[2] & (os.O_WRONLY | os.O_RDWR)
                and isinstance(args[0], str | os.PathLike)
            ):
                self._check(args[0])
        elif event in _TARGET_AT and isinstance(args[_TARGET_AT[event]], str | os.PathLike):
            self._check(args[_TARGET_AT[event]], is_written=event == "os.rename")

    def _check(self, path: str | os.PathLike[str], *, is_written: bool = True) -> None:
        """Refuse a write over the user's own checkpoint, and note what is written. Raises PermissionError."""
        name, real = os.path.basename(os.fspath(path)), os.path.realpath(path)
        if real.startswith(self._root):
            if is_written and self._depth == 0 and is_checkpoint_name(name):
                self._write(f"wrote {name}")
            return
        is_part = os.path.dirname(real) != self._temporary and _holds_checkpoints(real)
        if real.startswith(self._shared) or not (is_checkpoint_name(name) or is_part):
            return
        if os.path.exists(real) and os.stat(real).st_mtime < self._begun_s:
            raise PermissionError(f"hotloop drill keeps the command from changing {real}: it is outside of its folder")
        if is_written:
            self._write(f"outside {real}")

    def _write(self, text: str) -> None:
        if self._pid != os.getpid():  # also in a forked child
            self._pid = os.getpid()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.open(os.path.join(self._folder, f"marks-{self._pid}"), flags, 0o644)
        os.write(self._file, f"{time.monotonic_ns()} {text}\n".encode())


def _holds_checkpoints(path: str) -> bool:
    """Whether a folder, or a file's folder, holds checkpoints: the file may be a part of them."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    try:
        return any(is_checkpoint_name(name) for name in os.listdir(folder))
    except OSError:
        return False
