"""A process that runs Python -> the Python calls of each of its threads, read from outside, whether or not hotloop is
in it.

The layout comes from a child of the same executable (layout_program); of the process itself, only memory is read.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotloop.agent.replay.stack_reader import Inconsistent, PythonCall, StackReader
from hotloop.core.foreign_memory import read_spans

from .proc import mapped_begins

PROGRAM = Path(__file__).with_name("layout_program.py")
LAYOUT_TIMEOUT_S = 3.0
BASIC_SIZE_AT = 32
"""Offset of ``tp_basicsize`` in a type: after the head of an object of varying size and a pointer to its name."""
TRIES = 3
FORK = ("multiprocessing.popen_fork", "_launch")


class UnreadableError(Exception):
    """The Python calls of a process cannot be read; the text says why."""


Layouts = dict[tuple[int, int], Mapping[str, Any] | str]
"""By device and inode of the executable; a text is the reason why there is none."""


class Interpreter:
    """Reads one process. Raises UnreadableError if it may not be read, or runs no known Python."""

    def __init__(self, pid: int, layouts: Layouts) -> None:
        layout = _layout_of(pid, layouts)
        begins = dict(mapped_begins(pid))
        if not begins:
            raise UnreadableError("its memory may not be read: that needs the same user, and ptrace_scope 0 or root")
        shifts = {}
        for name, (path, begin) in layout["modules"].items():
            there = begins.get(path) or next((at for at_path, at in begins.items() if _is_same(at_path, path)), None)
            if there is None:
                raise UnreadableError(f"{path} is not in its memory")
            shifts[name] = there - begin
        access = dict(layout["access"])
        code_type = access["code_type"] + shifts["code"]
        basic_size = struct.pack("=Q", access["instructions"])
        try:
            if read_spans(pid, [(code_type + BASIC_SIZE_AT, 8)]) != basic_size:
                raise UnreadableError("its interpreter has an unknown memory layout")
            interpreter = self._word(pid, layout["runtime"] + shifts["runtime"] + layout["interpreter"])
            head = self._word(pid, interpreter + layout["thread_head"])
        except OSError as error:
            raise UnreadableError(f"its memory may not be read: {error.strerror}") from error
        access |= {
            "pid": pid,
            "code_type": code_type,
            "token": [code_type + BASIC_SIZE_AT - access["bytes"], basic_size.hex()],
            "thread_state": head,
            "folder": _folder_of(pid),
        }
        self.pid = pid
        self.version = ".".join(map(str, layout["version"]))
        self._head_at = interpreter + layout["thread_head"]
        self._native_at = layout["native_id"]
        self._reader = StackReader(access)
        self._states: dict[int, int] = {}

    @staticmethod
    def _word(pid: int, address: int) -> int:
        return int(struct.unpack("=Q", read_spans(pid, [(address, 8)]))[0])

    def read_threads(self, thread: int | None = None) -> dict[int, tuple[PythonCall, ...]]:
        """Calls of each thread that runs Python, innermost first, by the thread's number in the kernel; only those of
        ``thread``, if it is given and was read before.

        Threads that change while they are read are left out. Raises UnreadableError if the process is gone.
        """
        states = [self._states[thread]] if thread in self._states else self._list_states()
        calls = {}
        for state in states:
            for _ in range(TRIES):
                try:
                    native_id = self._word(self.pid, state + self._native_at) & 0xFFFFFFFF
                    calls[native_id] = _since_fork(self._reader.read_calls(state))
                    self._states[native_id] = state
                    break
                except (OSError, Inconsistent):
                    continue
        return calls

    def _list_states(self) -> list[int]:
        self._states.clear()
        for _ in range(TRIES):
            try:
                return self._reader.list_states(self._word(self.pid, self._head_at))
            except (OSError, Inconsistent):
                continue
        raise UnreadableError("its threads cannot be listed")


def _since_fork(calls: tuple[PythonCall, ...]) -> tuple[PythonCall, ...]:
    """Without the calls that led to a fork: they are the parent's."""
    forks = (at for at, call in enumerate(calls) if (call.module, call.function) == FORK and at)
    return calls[: next(forks, len(calls))]


def _layout_of(pid: int, layouts: Layouts) -> Mapping[str, Any]:
    executable = f"/proc/{pid}/exe"
    try:
        about = os.stat(executable)
    except OSError as error:
        raise UnreadableError(f"its executable may not be read: {error.strerror}") from error
    key = (about.st_dev, about.st_ino)
    if key not in layouts:
        layouts[key] = _ask_for_layout(executable)
    layout = layouts[key]
    if isinstance(layout, str):
        raise UnreadableError(layout)
    return layout


def _ask_for_layout(executable: str) -> Mapping[str, Any] | str:
    try:
        name = os.readlink(executable)
        if "python" not in os.path.basename(name):
            return f"{name} is not Python"
        # By its own path if that is still the same file: an interpreter looks for its library from there.
        program = name if os.path.exists(name) and os.path.samefile(name, executable) else executable
        done = subprocess.run(
            [program, "-I", "-S", str(PROGRAM)], capture_output=True, timeout=LAYOUT_TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        layout = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"its interpreter could not be started to learn its layout: {error}"
    if layout is None:
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it ended without a message"])[-1]
        return f"its interpreter does not report its layout: {last[:200]}"
    return dict(layout)


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _folder_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return "/"
