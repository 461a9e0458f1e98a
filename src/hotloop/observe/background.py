"""The agent's only thread: samples stacks, keeps the file ready, and writes what changes slowly.

It attributes lines, never time: a sample counts for the field on top of the phase stack at that moment. Its own CPU
time is measured and written down.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from hotloop.core.recording import STEP_FIELDS

from .guard import GUARD
from .places import Place, user_stack
from .recorder import DEVICE_ALLOCATED, DEVICE_RESERVED, RSS
from .writer import FrameWriter

if TYPE_CHECKING:
    from .session import Session

FAST_INTERVAL_S = 0.015
SLOW_INTERVAL_S = 0.030
FAST_FOR_S = 20.0
"""The first seconds are sampled more often, so that short runs have lines too."""
MAX_CPU_RATIO = 0.003
"""The thread sleeps longer when its own CPU time exceeds this share of wall time."""

SampleKey = tuple[str, tuple[Place, ...], str]


class Background:
    """One daemon thread; ``stop`` ends it within one interval."""

    def __init__(self, session: Session, writer: FrameWriter) -> None:
        self._session = session
        self._writer = writer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hotloop", daemon=True)
        self._counts: Counter[SampleKey] = Counter()
        self._first_row = 0
        self.cpu_ns = 0
        self._peak_rss_bytes = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        """Until stopped: one tick an interval; a failing tick is recorded and the next one comes all the same."""
        start_s = time.monotonic()
        due = dict.fromkeys(_SLOW_JOBS, 0.0)
        interval_s = FAST_INTERVAL_S
        while not self._stop.wait(interval_s):
            now_s = time.monotonic()
            try:
                self._sample()
                self._session.write_told()
                self._writer.maintain()
                for job, period_s in _SLOW_JOBS.items():
                    if now_s >= due[job]:
                        due[job] = now_s + period_s
                        getattr(self, job)()
            except Exception as error:
                GUARD.record("background", error)
            self.cpu_ns = time.thread_time_ns()
            elapsed_s = now_s - start_s
            interval_s = FAST_INTERVAL_S if elapsed_s < FAST_FOR_S else SLOW_INTERVAL_S
            if self.cpu_ns * 1e-9 > MAX_CPU_RATIO * elapsed_s + 0.05:
                interval_s *= 4

    def _sample(self) -> None:
        session = self._session
        frame = sys._current_frames().get(session.owner)
        field = STEP_FIELDS[session.recorder.stack[-1]]
        stack, leaf = user_stack(frame)
        if len(self._counts) < 2_000:
            self._counts[field, stack, leaf] += 1

    def write_samples(self) -> None:
        """Hand over the counts since the last time."""
        counts, self._counts = self._counts, Counter()
        rows = self._session.recorder.rows
        if counts:
            kept = counts.most_common(200)
            self._session.tell(
                {
                    "kind": "samples",
                    "rows": [self._first_row, rows],
                    "counts": [[field, stack, leaf, n] for (field, stack, leaf), n in kept],
                }
            )
        self._first_row = rows

    def read_memory(self) -> None:
        """Resident memory into the current row."""
        rss_bytes = resident_bytes()
        if rss_bytes is not None:
            self._session.recorder.row[RSS] = rss_bytes
            self._peak_rss_bytes = max(self._peak_rss_bytes, rss_bytes)

    def write_memory(self) -> None:
        row = self._session.recorder.row
        index = self._session.device_index
        device = device_memory(index) if index is not None else None
        if device is not None:
            row[DEVICE_ALLOCATED] = device["allocated"]
            row[DEVICE_RESERVED] = device["reserved"]
        self._session.tell(
            {
                "kind": "memory",
                "row": self._session.recorder.rows,
                "rss_bytes": row[RSS],
                "peak_rss_bytes": max(self._peak_rss_bytes, peak_resident_bytes() or 0),
                "device": device,
            }
        )

    def write_network(self) -> None:
        if self._session.recorder.rows and "torch.distributed" in sys.modules:
            interfaces = network_counters()
            self._session.tell({"kind": "network", "row": self._session.recorder.rows, "interfaces": interfaces})

    def write_totals(self) -> None:
        self._session.tell_totals()
        self._session.flush_pending()
        self._session.tell(self.overhead_fact(None))

    def overhead_fact(self, hooks_ns: int | None) -> dict[str, Any]:
        """What the agent cost so far; the hooks' part is measured once, at the end (None before)."""
        from .overhead import METHOD

        return {
            "kind": "overhead",
            "hooks_ns": hooks_ns,
            "sampler_ns": self.cpu_ns,
            "deep_window_ns": self._session.deep_window_ns,
            "memory_bytes": None,
            "method": METHOD,
        }

    def last_facts(self) -> list[dict[str, Any]]:
        """What is written at the end, after the thread has stopped."""
        self.read_memory()
        self.write_samples()
        self.write_memory()
        self.write_network()
        from .overhead import hooks_overhead_ns

        return [self.overhead_fact(hooks_overhead_ns(self._session))]


_SLOW_JOBS = {
    "read_memory": 0.25,
    "write_samples": 2.0,
    "write_memory": 1.0,
    "write_network": 1.0,
    "write_totals": 2.0,
}
"""Seconds between two runs of each slow job."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident_bytes() -> int | None:
    """Resident memory of this process; None where /proc does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def peak_resident_bytes() -> int | None:
    """Highest resident memory of this process so far."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def device_memory(device_index: int | None = None) -> dict[str, int] | None:
    """Bytes of a CUDA device's caching allocator; None without one. Never synchronises.

    None as index means the current device. Which one is current is a property of each thread: another thread than the
    training's must name it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    if device_index is None:
        device_index = torch.cuda.current_device()
    stats = torch.cuda.memory_stats(device_index)
    return {
        "allocated": stats.get("allocated_bytes.all.current", 0),
        "reserved": stats.get("reserved_bytes.all.current", 0),
        "peak": stats.get("allocated_bytes.all.peak", 0),
        "total": torch.cuda.get_device_properties(device_index).total_memory,
        "retries": stats.get("num_alloc_retries", 0),
    }


def network_counters() -> dict[str, dict[str, int | None]]:
    """Bytes received and sent by each network interface, and its nominal speed in bytes per second."""
    found: dict[str, dict[str, int | None]] = {}
    try:
        with open("/proc/net/dev") as file:
            lines = file.read().splitlines()[2:]
    except OSError:
        return found
    for line in lines[:32]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        name = name.strip()
        found[name] = {
            "rx_bytes": int(fields[0]),
            "tx_bytes": int(fields[8]),
            "speed_bytes_per_s": _interface_speed(name),
        }
    return found


def _interface_speed(name: str) -> int | None:
    try:
        with open(f"/sys/class/net/{name}/speed") as file:
            megabits_per_s = int(file.read())
    except (OSError, ValueError):
        return None
    return megabits_per_s * 125_000 if megabits_per_s > 0 else None
