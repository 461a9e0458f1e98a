"""A thread's calls and its state in the kernel -> what it waits for."""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.agent.replay.stack_reader import PythonCall

from . import proc
from .source import ProcessSource

_X86 = {
    "read": (0, 17, 19), "write": (1, 18, 20, 74, 75, 77), "poll": (7, 271), "select": (23, 270),
    "sleep": (35, 230, 34, 130), "socket": (42, 43, 44, 45, 46, 47, 288, 299), "child": (61, 247), "lock": (72, 73),
    "open": (2, 257), "futex": (202, 449), "epoll": (232, 281, 441), "semaphore": (65, 220),
}  # fmt: skip
_ARM = {
    "read": (63, 65, 67), "write": (64, 66, 68, 82, 83), "poll": (73,), "select": (72,), "sleep": (101, 115, 133),
    "socket": (202, 203, 206, 207, 211, 212, 242), "child": (95, 260), "lock": (25, 32), "open": (56,),
    "futex": (98, 449), "epoll": (22, 441), "semaphore": (192, 193),
}  # fmt: skip
_CALLS = {
    number: kind for kind, numbers in (_ARM if platform.machine() == "aarch64" else _X86).items() for number in numbers
}

CLOCK_SLEEP = (230, 115)
COLLECTIVE, LOADER = "collective", "loader workers"
STOPPED, DEVICE, COMPUTING, GONE = "stopped by a signal", "uninterruptible I/O", "computing", "gone"
COLLECTIVE_MODULES = ("torch.distributed.", "torch.nn.parallel.distributed", "torch._C._distributed")
NO_COLLECTIVE_MODULES = ("torch.distributed.elastic", "torch.distributed.run", "torch.distributed.launch")
JOINING = (
    "init_process_group",
    "_new_process_group_helper",
    "_store_based_barrier",
    "rendezvous",
    "new_group",
    "_verify_param_shape_across_processes",
)
BY_MODULE = (
    ("torch.utils.data.dataloader", LOADER),
    ("subprocess", "child process"),
    ("multiprocessing.popen_", "child process"),
    ("multiprocessing.connection", "pipe"),
    ("multiprocessing.queues", "queue"),
    ("queue", "queue"),
    ("concurrent.futures", "future"),
    ("asyncio", "event loop"),
    ("socket", "socket"), ("ssl", "socket"), ("http.", "socket"), ("urllib", "socket"),
    ("selectors", "descriptors"),
    ("threading", "lock"),
)  # fmt: skip
"""Kinds by the library functions between the user's line and the innermost call; the outermost match counts."""


@dataclass(frozen=True, slots=True)
class Wait:
    """``kind`` is COMPUTING if the thread waits for nothing; ``detail`` names the object."""

    kind: str
    detail: str | None = None
    ends_s: float | None = None
    """When a sleep ends by itself, on the monotonic clock."""


def user_call(calls: Sequence[PythonCall]) -> PythonCall | None:
    """The innermost call of the user's own."""
    return next((call for call in calls if call.is_users), None)


def describe_wait(
    pid: int,
    thread: int,
    state: str,
    calls: Sequence[PythonCall],
    *,
    is_distributed: bool,
    call: tuple[int, tuple[int, ...]] | None,
    source: ProcessSource,
) -> Wait:
    """What the thread waits for, by its state, its Python calls, and the system call that it is in."""
    if state in "Tt":
        return Wait(STOPPED)
    number, arguments = call or (-1, ())
    kind = _CALLS.get(number, "")
    if state == "R":
        return Wait(COMPUTING)
    inner = _library_calls(calls)
    if (name := _find_collective(inner)) is not None:
        return Wait(COLLECTIVE, name)
    by_module = next(
        (kind for call_ in reversed(inner) for prefix, kind in BY_MODULE if call_.module.startswith(prefix)), None
    )
    if kind == "sleep" and by_module in (None, LOADER):
        return Wait("sleep", ends_s=proc.read_sleep_end_s(pid, arguments) if number in CLOCK_SLEEP else None)
    named = _describe_call(pid, kind, arguments)
    if by_module is not None and not (by_module in ("descriptors", "socket", "pipe") and named is not None):
        return Wait(by_module, _name_of(inner, by_module))
    if named is not None:
        return Wait(DEVICE, named.detail) if state == "D" else named
    if kind == "futex":
        return _describe_futex(calls, inner, source, is_distributed=is_distributed)
    return Wait(DEVICE if state == "D" else "native code", None)


def _library_calls(calls: Sequence[PythonCall]) -> list[PythonCall]:
    """The calls inside the user's innermost call, innermost first."""
    inner = []
    for call in calls:
        if call.is_users:
            break
        inner.append(call)
    return inner


def _find_collective(inner: Sequence[PythonCall]) -> str | None:
    """The outermost function of torch.distributed that the user's line called."""
    for call in reversed(inner):
        if call.module.startswith(NO_COLLECTIVE_MODULES):
            return None
        if call.module.startswith(COLLECTIVE_MODULES) and call.function not in ("wrapper", "_call_impl", "forward"):
            return "an exchange of DDP" if call.module.startswith("torch.nn.parallel") else call.function
    return None


def _name_of(inner: Sequence[PythonCall], kind: str) -> str | None:
    call = next(
        (call for call in reversed(inner) if any(call.module.startswith(p) and k == kind for p, k in BY_MODULE)), None
    )
    return None if call is None else f"{call.module}.{call.function}"


def _describe_call(pid: int, kind: str, arguments: tuple[int, ...]) -> Wait | None:
    """What a system call by itself shows: a descriptor, a path, a child."""
    if kind == "child":
        return Wait("child process")
    if kind == "open":
        first = arguments[1] if arguments[0] > (1 << 31) or arguments[0] < 1 << 12 else arguments[0]
        path = proc.read_path(pid, first)
        where = path if path.startswith("/") else f"/proc/{pid}/cwd/{path}"
        return Wait("FIFO" if _is_fifo(where) else "file", path or None)
    if kind in ("read", "write", "socket", "lock"):
        number = arguments[0] & 0xFFFFFFFF
        what, name = proc.describe_descriptor(pid, number)
        return Wait("file lock" if kind == "lock" else what, name)
    if kind == "poll" and arguments[1] == 1:
        polled = proc.read_polled(pid, arguments[0])
        return None if polled is None else Wait(*proc.describe_descriptor(pid, polled))
    if kind in ("poll", "select", "epoll"):
        return Wait("descriptors")
    return Wait("lock", "a semaphore") if kind == "semaphore" else None


def _is_fifo(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _describe_futex(
    calls: Sequence[PythonCall], inner: Sequence[PythonCall], source: ProcessSource, *, is_distributed: bool
) -> Wait:
    """A wait in C code: for a lock, for an exchange that the line started, or for other threads that compute."""
    if inner and inner[0].module.startswith("torch.autograd"):
        return Wait(COLLECTIVE, "the gradient exchange") if is_distributed else Wait("native code", "backward")
    call = user_call(calls)
    if call is None or (inner and inner[0].module.startswith("torch.")):
        return Wait("native code", f"{inner[0].module}.{inner[0].function}" if inner else None)
    text = source.line(call.file, call.line) or ""
    if is_distributed and ".wait(" in text:
        return Wait(COLLECTIVE, "an exchange that it started")
    if "join(" in text:
        return Wait("thread", "join")
    return Wait("lock")
