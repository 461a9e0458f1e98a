"""The processes of a run that offer it -> samples of their training threads' stacks, taken from this process.

A thread that samples from within the training waits for the interpreter's lock, and finds the training where that gives
the lock away. From outside nobody waits. Kernels that let a process read its descendants alone (Yama's default) let
this one, because the training is started by it; a sampler started beside the training would be refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import threading
import time
from pathlib import Path
from typing import Any

from hotloop.core.recording import ACCESS_SUFFIX, SAMPLES_SUFFIX, STEP_FIELDS

from .stack_reader import Inconsistent, Sample, StackReader

FIRST_S = 5.0
"""For so long after its first sample a run is sampled more often: short ones have lines too."""
FIRST_INTERVAL_S, LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.025, 0.050, 0.500
"""Between two samples of a process: the least at first and later, and the most, whatever the CPU time allows."""
FIRST_CPU_RATIO, TARGET_CPU_RATIO = 0.005, 0.002
"""Of one core, for each process that is sampled, at first and later. A sample takes 70 us of CPU time, 200 to 700 us
with cold caches (2 shared cores of an AMD EPYC, 2026-11-22), and the training runs on meanwhile."""
LOOK_S, LOOK_RATIO = 0.250, 0.02
"""Between two looks for new processes lies at least the one, and this part of the time since the first."""
WRITE_S = 2.0
MOST_STACKS = 2_000
MOST_KEPT = 200
"""Stacks written at a time, the most frequent ones."""
MOST_REFUSALS = 50
"""Samples in a row that made no sense, after which a process is not read any more."""


class StackSampling:
    """Samples every process that offers it, in a thread of hotloop's own process; begins with the first ``tick``."""

    def __init__(self, processes: Path) -> None:
        self._folder = processes
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._sampled: dict[Path, _Sampled] = {}
        self._look_s = 0.0
        self._failures: dict[Path, int] = {}
        """Readings of an offer that made no sense so far; MOST_REFUSALS of one that is not tried again."""

    def tick(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hotloop-stacks", daemon=True)
            # Signals are waited for by the main thread: none may be delivered to this one.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                self._thread.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def stop(self) -> None:
        """Write what is left; offers that nobody took go."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        for path in self._folder.glob(f"*{ACCESS_SUFFIX}*"):
            path.unlink(missing_ok=True)

    def _run(self) -> None:
        start_s = since_s = time.monotonic()
        first_s: float | None = None
        interval_s, cpu_s = FIRST_INTERVAL_S, time.thread_time()
        while not self._over.wait(interval_s if self._sampled else LOOK_S):
            now_s = time.monotonic()
            if now_s >= self._look_s:
                self._look_s = now_s + max(LOOK_S, LOOK_RATIO * (now_s - start_s))
                self._look()
            if first_s is None and self._sampled:
                first_s = since_s = now_s
                cpu_s = time.thread_time()
            for path, sampled in tuple(self._sampled.items()):
                if not sampled.sample(now_s):
                    del self._sampled[path]
            if now_s - since_s >= 1.0:
                used_s = time.thread_time() - cpu_s
                is_first = first_s is not None and now_s - first_s < FIRST_S
                interval_s = next_interval_s(interval_s, used_s / (now_s - since_s), len(self._sampled), is_first)
                cpu_s, since_s = time.thread_time(), now_s
        for sampled in self._sampled.values():
            sampled.write()

    def _look(self) -> None:
        """Take up the offers that came since the last look. The agent samples by itself until its offer has gone."""
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(ACCESS_SUFFIX)]
        except OSError:
            return
        for path in map(self._folder.joinpath, names):
            failures = self._failures.get(path, 0)
            if failures == MOST_REFUSALS:
                continue
            samples = path.with_suffix(SAMPLES_SUFFIX)
            try:
                access = json.loads(path.read_text())
                if access["host"] != platform.node():
                    self._failures[path] = MOST_REFUSALS
                    continue
                sampled = _Sampled(samples, StackReader(access))
                sampled.reader.read()
            except Inconsistent as error:
                self._failures[path] = failures + 1
                if failures + 1 == MOST_REFUSALS:
                    _append(samples, {"kind": "refused", "reason": str(error)})
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._failures[path] = MOST_REFUSALS
                _append(samples, {"kind": "refused", "reason": getattr(error, "strerror", None) or str(error)})
            else:
                self._sampled[path] = sampled
                path.unlink(missing_ok=True)


def next_interval_s(interval_s: float, share_ratio: float, processes_count: int, is_first: bool) -> float:
    """Seconds between two rounds, when at ``interval_s`` they took that share of a core.

    >>> next_interval_s(0.1, 0.004, 1, False), next_interval_s(0.1, 0.004, 2, False), next_interval_s(0.1, 1.0, 1, True)
    (0.2, 0.1, 0.5)
    """
    target_ratio, least_s = (FIRST_CPU_RATIO, FIRST_INTERVAL_S) if is_first else (TARGET_CPU_RATIO, LEAST_INTERVAL_S)
    wanted_s = interval_s * share_ratio / (target_ratio * max(1, processes_count))
    return max(least_s, min(MOST_INTERVAL_S, wanted_s))


class _Sampled:
    """One process, its counts since they were last written, and the file for them."""

    def __init__(self, path: Path, reader: StackReader) -> None:
        self._path = path
        self.reader = reader
        self._counts: dict[Sample, int] = {}
        self._from_ns = time.perf_counter_ns()
        self._write_s = time.monotonic() + WRITE_S
        self._cpu_ns = self._refusals = 0

    def sample(self, now_s: float) -> bool:
        """Count one sample; False when the process has gone or cannot be read any more."""
        start_ns = time.thread_time_ns()
        try:
            found = self.reader.read()
            self._refusals = 0
            if found in self._counts or len(self._counts) < MOST_STACKS:
                self._counts[found] = self._counts.get(found, 0) + 1
        except Inconsistent:
            self._refusals += 1
        except OSError:
            self.write()
            return False
        if now_s >= self._write_s:
            self._write_s = now_s + WRITE_S
            self.write()
        self._cpu_ns += time.thread_time_ns() - start_ns
        return self._refusals < MOST_REFUSALS

    def write(self) -> None:
        """Hand over the counts since the last time."""
        counts, self._counts = self._counts, {}
        until_ns = time.perf_counter_ns()
        anchor_ns = self.reader.anchor_ns
        kept = sorted(counts.items(), key=lambda item: -item[1])[:MOST_KEPT]
        _append(
            self._path,
            {
                "kind": "samples",
                "from_ns": self._from_ns - anchor_ns,
                "until_ns": until_ns - anchor_ns,
                "counts": [[STEP_FIELDS[field], places, leaf, n] for (field, places, leaf), n in kept],
                "cpu_ns": self._cpu_ns,
            },
        )
        self._from_ns = until_ns
        self.reader.check_codes()


def _append(path: Path, line: dict[str, Any]) -> None:
    """Best effort: the recording itself does not depend on it."""
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
