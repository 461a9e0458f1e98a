"""What the kernel reports about processes and their threads (Linux's /proc), without asking them."""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hotloop.core.foreign_memory import read_spans

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MOST_BYTES = 1 << 20
MOST_PATH_BYTES = 4096
TIMER_ABSTIME = 1
TORCH_LIBRARIES = (b"/libtorch_python.", b"/libtorch_cpu.", b"/libtorch.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as it was when it was read; ``started_ticks`` since boot distinguishes it from a later one with its
    id."""

    pid: int
    parent: int
    name: str
    command: tuple[str, ...]
    started_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """``state`` is the kernel's letter: R runs, S waits, D waits for a device, T and t are stopped, Z is dead."""

    state: str
    cpu_s: float


def read_text(path: str) -> str:
    """A small file of the kernel; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def list_processes() -> dict[int, Process]:
    """All processes that can be seen, by id."""
    processes = (read_process(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return {process.pid: process for process in processes if process is not None}


def read_process(pid: int) -> Process | None:
    """None if there is no such process."""
    name, fields = _split_stat(read_text(f"/proc/{pid}/stat"))
    if len(fields) < 20:
        return None
    command = read_text(f"/proc/{pid}/cmdline").rstrip("\0").split("\0")
    return Process(
        pid=pid, parent=int(fields[1]), name=name, command=tuple(command), started_ticks=int(fields[19])
    )  # fmt: skip


def started_s(process: Process) -> float:
    """When a process started, in seconds since the epoch."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + process.started_ticks / TICKS_PER_S


def descendants(pid: int, processes: Mapping[int, Process]) -> list[int]:
    """Children, their children, and so on, the nearest first."""
    family = [pid]
    for parent in family:
        family += [process.pid for process in processes.values() if process.parent == parent]
    return family[1:]


def read_environment(pid: int) -> dict[str, str]:
    """The variables that the process was started with; empty if they may not be read."""
    pairs = (word.partition("=") for word in read_text(f"/proc/{pid}/environ").split("\0"))
    return {name: value for name, is_pair, value in pairs if is_pair}


def has_torch(pid: int) -> bool | None:
    """Whether torch's libraries are mapped; None if that may not be read."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return any(name in line for line in file for name in TORCH_LIBRARIES)
    except PermissionError:
        return None
    except OSError:
        return False


def list_threads(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def read_thread(pid: int, thread: int) -> ThreadState | None:
    """None if the thread is gone."""
    _, fields = _split_stat(read_text(f"/proc/{pid}/task/{thread}/stat"))
    if len(fields) < 13:
        return None
    return ThreadState(state=fields[0], cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S)


def read_cpu_s(pid: int) -> float:
    """Seconds of CPU time that a process has used; 0 if it is gone."""
    _, fields = _split_stat(read_text(f"/proc/{pid}/stat"))
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S if len(fields) > 12 else 0.0


def _split_stat(text: str) -> tuple[str, list[str]]:
    head, _, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split()


def idle_seconds(pid: int, thread: int) -> float | None:
    """Seconds since the thread ran last; None if the kernel keeps no such time."""
    then_ms, now_ms = (_last_run_ms(path) for path in (f"/proc/{pid}/task/{thread}/sched", "/proc/self/sched"))
    return None if then_ms is None or now_ms is None else max(0.0, (now_ms - then_ms) / 1000)


def _last_run_ms(path: str) -> float | None:
    for line in read_text(path).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "se.exec_start":
            return float(value)
    return None


def count_wakes(pid: int, thread: int) -> int:
    """How often the thread has gone to wait so far; 0 if the kernel does not say."""
    for line in read_text(f"/proc/{pid}/task/{thread}/status").splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    return 0


def written_bytes(pid: int) -> int | None:
    """Bytes that the process has written so far, to files or anything else; None if it may not be read."""
    for line in read_text(f"/proc/{pid}/io").splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return None


def read_call(pid: int, thread: int) -> tuple[int, tuple[int, ...]] | None:
    """Number and arguments of the system call that a thread is in; None if it is in none, or it may not be read."""
    words = read_text(f"/proc/{pid}/task/{thread}/syscall").split()
    if len(words) < 7 or not words[0].isdecimal():
        return None
    return int(words[0]), tuple(int(word, 16) for word in words[1:7])


def describe_descriptor(pid: int, number: int) -> tuple[str, str]:
    """Kind (terminal, stdin, FIFO, pipe, socket, file) and name of an open descriptor of a process."""
    path = f"/proc/{pid}/fd/{number}"
    try:
        name, mode = os.readlink(path), os.stat(path).st_mode
    except OSError:
        return "file", f"descriptor {number}"
    if name.startswith("socket:"):
        return "socket", _find_peer(pid, name[8:-1])
    if number == 0:
        return "stdin", name
    if stat.S_ISFIFO(mode):
        return ("pipe", name) if name.startswith("pipe:") else ("FIFO", name)
    return ("terminal" if stat.S_ISCHR(mode) and "/pts/" in name else "file"), name


def _find_peer(pid: int, inode: str) -> str:
    for table in ("tcp", "tcp6"):
        for line in read_text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[9] == inode:
                address, _, port = fields[2].partition(":")
                words = [address[at : at + 8] for at in range(0, len(address), 8)]
                octets = [str(byte) for byte in bytes.fromhex(words[-1])[::-1]]
                return f"{'.'.join(octets)}:{int(port, 16)}" if int(port, 16) else "a connection"
    return "a local socket"


def read_path(pid: int, address: int) -> str:
    """The path at an address of a process's memory; empty if it cannot be read."""
    for length in (MOST_PATH_BYTES, 256, 64):
        try:
            return read_spans(pid, [(address, length)]).split(b"\0")[0].decode("utf-8", "replace")
        except OSError:
            continue
    return ""


def read_polled(pid: int, address: int) -> int | None:
    """The first descriptor of a list that ``poll`` was given."""
    try:
        return int(struct.unpack("=i", read_spans(pid, [(address, 4)]))[0])
    except OSError:
        return None


def read_sleep_end_s(pid: int, arguments: tuple[int, ...]) -> float | None:
    """When a thread in ``clock_nanosleep`` wakes up, on the monotonic clock; None if its arguments do not say."""
    clock, flags, request = arguments[:3]
    if clock != time.CLOCK_MONOTONIC or flags != TIMER_ABSTIME:
        return None
    try:
        seconds, nanoseconds = struct.unpack("=qq", read_spans(pid, [(request, 16)]))
    except OSError:
        return None
    return float(seconds + nanoseconds * 1e-9)


def mapped_begins(pid: int) -> Iterator[tuple[str, int]]:
    """Each file that is mapped into a process, and the first address of its first part."""
    known = set()
    for line in read_text(f"/proc/{pid}/maps").splitlines():
        span, _, _, _, inode, *path = line.split(maxsplit=5)
        if inode != "0" and path and path[0] not in known:
            known.add(path[0])
            yield path[0], int(span.split("-")[0], 16)
