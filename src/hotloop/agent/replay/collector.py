"""Processes of a run that hand their memory over -> their recordings, in a thread of hotloop's own process.

The thread listens on a name of its own, takes in what the hooks noted, reads the stacks from outside, and writes all
files. Kernels that let a process read its descendants alone (Yama's default) let this one, because the training is
started by it. It uses no more of a core than the limits below allow, whatever the training does.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import platform
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hotloop.core.events import REQUEST_NAME

from .loaders import FetchTotals
from .memory import EventMemory, NotOurs
from .process import RunProcess

FIRST_S = 5.0
"""For so long after a process imported torch, and after it began to train, it is sampled more often: short runs have
lines too."""
FIRST_INTERVAL_S, LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.025, 0.050, 0.500
"""Between two samples of a process: the least at first and later, and the most, whatever the CPU time allows."""
FIRST_CPU_RATIO, TARGET_CPU_RATIO = 0.010, 0.002
"""Share of one core that reading stacks may use, for each process that is sampled, at first and later."""
IDLE_S = 0.200
"""Between two looks while nothing trains."""
TAKE_S = 0.100
"""Between two times that events are taken in."""
_CREDENTIALS = struct.Struct("3i")


class TrainingProgress(NamedTuple):
    """``events_count`` rises with whatever a hook sees; ``step_ns`` is the 99th percentile of the newest steps."""

    pids: tuple[int, ...]
    events_count: int
    step_ns: int


class Collector:
    """``address`` and ``token`` go to the hooks, by the environment."""

    def __init__(self, processes: Path, name: tuple[str, str] | None = None) -> None:
        self._folder = processes
        self.address, self.token = name or make_name()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._socket.bind("\0" + self.address)
        self._socket.listen(4096)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._processes: dict[int, RunProcess] = {}
        """By the descriptor that says when each is gone."""
        self._fetches: dict[int, FetchTotals] = {}
        self._request = self._folder.parent / REQUEST_NAME
        self._requested_ns = 0
        self.failure: str | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self.run, name="hotloop-collector", daemon=True)
            # Signals are waited for by the main thread: none may be delivered to this one.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                self._thread.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def stop(self) -> None:
        """Take in what is left, of processes that still run as well."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=20.0)
        else:
            self.run()
        self._selector.close()
        self._socket.close()

    def run(self, *, until_idle: bool = False) -> None:
        """Until stopped; with ``until_idle`` until a process came and all are gone."""
        interval_s, since_s, sampling_s = FIRST_INTERVAL_S, time.monotonic(), 0.0
        first_s, known = 0.0, 0
        next_take_s = 0.0
        came = False
        while not self._over.is_set():
            training = self._sampled()
            wait_s = interval_s if training else IDLE_S if self._processes else IDLE_S / 4
            readable = {key.fd for key, _ in self._selector.select(wait_s)}
            if self._socket.fileno() in readable:
                self._accept()
            came = came or bool(self._processes)
            now_s = time.monotonic()
            sampled = 0
            if training:
                began = len(training) + sum(process.trains for process in training)
                first_s, known = now_s if began > known else first_s, began
                before_s = time.thread_time()
                for process in training:
                    with self._noting_failure(process):
                        process.sample()
                sampled, used_s = len(training), time.thread_time() - before_s
                sampling_s += used_s
                for process in training:
                    process.cpu_ns += int(used_s * 1e9 / sampled)
            if now_s >= next_take_s or not training:
                next_take_s = now_s + TAKE_S
                self._take()
            for descriptor in readable:
                if descriptor in self._processes:
                    self._finish(descriptor)
            if now_s - since_s >= 1.0:
                ratio, is_first = sampling_s / (now_s - since_s), now_s - first_s < FIRST_S
                interval_s = next_interval_s(interval_s, ratio, sampled, is_first)
                sampling_s, since_s = 0.0, now_s
                self._pass_request_on()
            if until_idle and came and not self._processes:
                return
        with contextlib.suppress(OSError):
            self._accept()
        for descriptor in tuple(self._processes):
            self._finish(descriptor)

    def progress(self) -> TrainingProgress:
        """How far the processes that train are, for whoever looks whether they move."""
        training = [process for process in tuple(self._processes.values()) if process.trains]
        steps_ns = sorted(step_ns for process in training for step_ns in tuple(process.steps_ns))
        return TrainingProgress(
            pids=tuple(process.pid for process in training),
            events_count=sum(process.events_count for process in training),
            step_ns=steps_ns[int(len(steps_ns) * 0.99)] if steps_ns else 0,
        )

    def _sampled(self) -> list[RunProcess]:
        """Those that train; until one does, all whose start may be that of a training. A launcher imports torch too."""
        processes = [process for process in self._processes.values() if process.is_sampled]
        return [process for process in processes if process.trains] or processes

    def _pass_request_on(self) -> None:
        """Pass requests of ``hotloop attach`` to the processes that train now."""
        try:
            written_ns = self._request.stat().st_mtime_ns
            if written_ns == self._requested_ns:
                return
            self._requested_ns = written_ns
            word = int(json.loads(self._request.read_bytes())["word"]) & (1 << 63) - 1
        except (OSError, ValueError, KeyError, TypeError):  # none was made, or nobody of ours wrote it
            return
        for process in self._processes.values():
            if process.trains:
                process.ask(word)

    def _take(self) -> None:
        now_ns = time.perf_counter_ns()
        for process in tuple(self._processes.values()):
            with self._noting_failure(process):
                process.take_events()
                process.tick(now_ns)

    def _finish(self, descriptor: int) -> None:
        process = self._processes.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        with self._noting_failure(process):
            process.finish()

    @contextlib.contextmanager
    def _noting_failure(self, process: RunProcess) -> Iterator[None]:
        """A failure for one process is noted in its recording, and the others go on."""
        try:
            yield
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            process.note_failure(traceback.format_exc(limit=-3))

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except (BlockingIOError, OSError):
                return
            with link:
                link.settimeout(0.5)
                try:
                    self._take_over(link)
                except (OSError, NotOurs, ValueError, struct.error):
                    continue

    def _take_over(self, link: socket.socket) -> None:
        descriptors = array.array("i")
        text, ancillary, *_ = link.recvmsg(4096, socket.CMSG_LEN(4 * descriptors.itemsize))
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        for extra in descriptors[1:]:
            os.close(extra)
        token, _, failure = text.partition(b"\n")
        if not secrets.compare_digest(token, self.token.encode()):
            for descriptor in descriptors[:1]:
                os.close(descriptor)
            return
        if len(descriptors) < 1:
            self.failure = self.failure or failure[:1000].decode("utf-8", "replace") or None
            return
        memory = EventMemory(descriptors[0])
        pid = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
        process = RunProcess(memory, pid or memory.pid, self._folder, self._fetches)
        try:
            gone = os.pidfd_open(process.pid)
        except OSError:  # it has ended already, or lives where we cannot see it
            with self._noting_failure(process):
                process.finish()
            return
        self._processes[gone] = process
        self._selector.register(gone, selectors.EVENT_READ)


def make_name() -> tuple[str, str]:
    """An address to listen at, and what the hooks show there."""
    return f"hotloop-{secrets.token_hex(12)}", secrets.token_hex(16)


def read_name(run: Path) -> tuple[str, str]:
    """The address and the token that all processes of one node agree on, in a file of the run folder."""
    path = run / f".collector-{platform.node()}"
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(" ".join(make_name()))
    for _ in range(50):
        words = path.read_text().split()
        if len(words) == 2:
            return words[0], words[1]
        time.sleep(0.01)
    raise OSError(f"{path} is empty")


def start_program(run: Path) -> tuple[str, str]:
    """Have a process collect on this node, if none does; where it listens. Takes as long as a Python's start."""
    name = read_name(run)
    program = str(Path(__file__).with_name("program.py"))
    subprocess.run(
        [sys.executable, "-I", "-S", program, str(run)], stdin=subprocess.DEVNULL, check=False, timeout=30,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    return name


def next_interval_s(interval_s: float, share_ratio: float, processes_count: int, is_first: bool) -> float:
    """Seconds between two rounds, when at ``interval_s`` they took that share of a core.

    >>> next_interval_s(0.1, 0.004, 1, False), next_interval_s(0.1, 0.004, 2, False), next_interval_s(0.1, 1.0, 1, True)
    (0.2, 0.1, 0.5)
    """
    target_ratio, least_s = (FIRST_CPU_RATIO, FIRST_INTERVAL_S) if is_first else (TARGET_CPU_RATIO, LEAST_INTERVAL_S)
    wanted_s = interval_s * share_ratio / (target_ratio * max(1, processes_count))
    return max(least_s, min(MOST_INTERVAL_S, wanted_s))
