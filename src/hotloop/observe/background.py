"""The agent's only thread: samples stacks, keeps the file ready, and writes what changes slowly.

It attributes lines, never time: a sample counts for the field on top of the phase stack at that moment. Its own CPU
time is measured and written down.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from typing import Any

from hotloop.core.cores import allowed_cores, idle_in
from hotloop.core.recording import ACCESS_SUFFIX, STEP_FIELDS

from .guard import GUARD
from .memory_end import held_bytes, peak_resident_bytes
from .places import Place, user_stack
from .readings import (
    MEMORY_PATH,
    ProcFile,
    device_memory,
    network_counters,
    read_resident,
    run_delay_in,
)
from .recorder import DEVICE_ALLOCATED, DEVICE_RESERVED, RSS, sampled_field
from .session import Session
from .stack_access import current_thread_state, offer_access
from .stacks import can_read_stacks, read_stack
from .thread_time import run_delay_ns
from .writer import FrameWriter

FAST_INTERVAL_S = 0.020
SLOW_INTERVAL_S = 0.060
"""Between two samples lies at least the one, and at most the other while the training is short."""
FAST_FOR_S = 20.0
"""In the first seconds there are enough samples whatever they cost, so that short runs have lines too."""
FIRST_S = 3.0
"""For so long memory and the file are looked after more often, for runs of a few seconds."""
FIRST_PER_E_FOLDING, SAMPLES_PER_E_FOLDING = 50, 25
"""A sample comes no sooner than this part of the time since the start, in the FIRST_S and later: what the first ones
have shown needs few more as proof, and each costs about 200 us of CPU time, much of it for waking up."""
IDLE_INTERVAL_S = 0.500
MOST_ROWS_ASLEEP, READY_INTERVAL_S = 400, 0.200
"""While so many rows come the file must be looked after, as long as that is not sooner than this: half a segment, which
is there before the next one is, holds about a thousand."""
TARGET_CPU_RATIO = 0.001
"""The thread samples as often as keeps its own CPU time below this share of wall time, within those limits."""

LATE_NS = 200_000
"""A sample that waited so long for the interpreter's lock found the training thread where it gave the lock away: at the
end of Python code that may stand before that line."""

MOST_CORES_COUNTED = 32
"""On hosts with more cores nobody asks whether one is free, and the kernel takes longer to say it."""

SampleKey = tuple[int, tuple[Place, ...], str]


class Background:
    """One daemon thread; ``stop`` ends it within one interval."""

    def __init__(self, session: Session, writer: FrameWriter) -> None:
        self._session = session
        self._writer = writer
        # A plain lock that stop() releases: waiting for an Event costs 40 us of Python each time.
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._thread = threading.Thread(target=self._run, name="hotloop", daemon=True)
        self._counts: dict[SampleKey, list[int]] = {}
        self._run_delay_ns = 0
        self._first_row = 0
        self.cpu_ns = 0
        self._peak_rss_bytes = 0
        self._speeds: dict[str, int | None] = {}
        self._memory_file = ProcFile(MEMORY_PATH)
        self._network_file = ProcFile("/proc/net/dev")
        self.allowed_cores = allowed_cores()
        self._cores_file = ProcFile("/proc/stat") if len(self.allowed_cores) <= MOST_CORES_COUNTED else None
        self._held_recorded = False
        self._offered = ""
        self._is_read_outside = False
        # Made on the thread that trains.
        self._thread_state = current_thread_state()
        self._delay_file = ProcFile(f"/proc/self/task/{threading.get_native_id()}/schedstat")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._asleep.locked():
            self._asleep.release()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        """Until stopped: a sample an interval, jobs when they are due; what fails is recorded and the rest goes on."""
        may_sample = can_read_stacks()
        self._offer_stacks()
        start_ns = time.monotonic_ns()
        due_ns = dict.fromkeys(_JOBS_NS, 0)
        jobs_due_ns = tuned_ns = start_ns
        tuned_cpu_ns = tuned_rows = 0
        interval_s = FAST_INTERVAL_S
        wait, clock = self._asleep.acquire, time.monotonic_ns
        asleep_ns = clock()
        while not wait(True, interval_s):
            now_ns = clock()
            try:
                if may_sample and not self._is_read_outside:
                    self._sample(now_ns - asleep_ns - int(interval_s * 1e9))
                if now_ns >= jobs_due_ns:
                    age_s = (now_ns - start_ns) * 1e-9
                    stage = 0 if age_s < FIRST_S else 1 if age_s < FAST_FOR_S else 2
                    for job, periods_ns in _JOBS_NS.items():
                        if now_ns >= due_ns[job]:
                            due_ns[job] = now_ns + periods_ns[stage]
                            getattr(self, job)()
                    jobs_due_ns = min(due_ns.values())
                    self.cpu_ns = time.thread_time_ns()
                    if now_ns - tuned_ns >= 1_000_000_000:
                        rows, passed_ns = self._session.recorder.rows, now_ns - tuned_ns
                        share, rows_per_s = (
                            (self.cpu_ns - tuned_cpu_ns) / passed_ns,
                            (rows - tuned_rows) / passed_ns * 1e9,
                        )
                        interval_s = (
                            idle_interval_s(rows_per_s if age_s >= FIRST_S else math.inf)
                            if self._is_read_outside
                            else next_interval_s(interval_s, share, age_s, rows_per_s)
                        )
                        tuned_ns, tuned_cpu_ns, tuned_rows = now_ns, self.cpu_ns, rows
            except Exception as error:
                GUARD.record("background", error)
            asleep_ns = clock()

    def _offer_stacks(self) -> None:
        """Where ``hotloop run`` waits for this process it may read the stacks from outside, free of this one's lock."""
        try:
            why_not: str | None = "no `hotloop run` is waiting for it"
            if self._session.options.get("outside"):
                path = os.path.splitext(self._writer.path)[0] + ACCESS_SUFFIX
                why_not = offer_access(path, self._thread_state, self._session.recorder.stack, self._session.anchor_ns)
                self._offered = "" if why_not else path
            if why_not:
                self._session.record({"kind": "sampling", "reason": why_not})
        except Exception as error:
            GUARD.record("Background.offer_stacks", error)

    def _sample(self, overslept_ns: int) -> None:
        """Count where the training thread is, and whether it had held the interpreter's lock until now.

        Waking up takes a core and then the lock. What the wait for a core does not explain was the lock: held for the
        switch interval, it was taken away where the thread is; held for less, the thread gave it away there.
        """
        session = self._session
        seen = read_stack(session.owner)
        stack = session.recorder.stack
        field, late, taken = sampled_field(stack[-1]), 0, 0
        if overslept_ns > LATE_NS and seen.threads_count == 2:  # with more threads than ours nobody knows who had it
            run_delay_ns_before, self._run_delay_ns = self._run_delay_ns, run_delay_ns()
            held_ns = overslept_ns - (self._run_delay_ns - run_delay_ns_before)
            taken = held_ns >= sys.getswitchinterval() * 1e9
            late = held_ns > LATE_NS and not taken
            if late and len(stack) > 1 and time.perf_counter_ns() - session.recorder.last_ns < held_ns:
                field = sampled_field(stack[-2])  # the phase has begun since
        key = (field, *user_stack(seen))
        counts = self._counts
        found = counts.get(key)
        if found is None:
            if len(counts) >= 2_000:
                return
            found = counts[key] = [0, 0, 0]
        found[0] += 1
        found[1] += late
        found[2] += taken

    def keep_file(self) -> None:
        """Write what the training thread left, and keep the file ready for it."""
        self._session.write_waiting()
        self._writer.maintain()
        if self._offered and not os.path.exists(self._offered):  # somebody took it
            self._offered, self._is_read_outside = "", True

    def write_samples(self) -> None:
        """Hand over the counts since the last time."""
        counts, self._counts = self._counts, {}
        rows = self._session.recorder.rows
        if counts:
            kept = sorted(counts.items(), key=lambda item: -item[1][0])[:200]
            self._session.record(
                {
                    "kind": "samples",
                    "rows": [self._first_row, rows],
                    "counts": [[STEP_FIELDS[field], stack, leaf, n[0]] for (field, stack, leaf), n in kept],
                    "late": [n[1] for _, n in kept],
                    "taken": [n[2] for _, n in kept],
                }
            )
        self._first_row = rows

    def read_memory(self) -> None:
        """Resident memory into the current row."""
        rss_bytes = read_resident(self._memory_file.read())
        if rss_bytes is not None:
            self._session.recorder.set_known(RSS, rss_bytes)
            self._peak_rss_bytes = max(self._peak_rss_bytes, rss_bytes)

    def write_memory(self) -> None:
        recorder = self._session.recorder
        index = self._session.device_index
        device = device_memory(index) if index is not None else None
        if device is not None:
            recorder.set_known(DEVICE_ALLOCATED, device["allocated"])
            recorder.set_known(DEVICE_RESERVED, device["reserved"])
        self._session.record(
            {
                "kind": "memory",
                "row": recorder.rows,
                "rss_bytes": recorder.row[RSS],
                "peak_rss_bytes": max(self._peak_rss_bytes, peak_resident_bytes() or 0),
                "device": device,
                "idle": None if self._cores_file is None else idle_in(self._cores_file.read(), self.allowed_cores),
            }
        )
        self._write_held()

    def _write_held(self) -> None:
        """Once, when the optimizer has its state: what a process that is killed later cannot say any more."""
        optimizers, models = self._session.trained_objects()
        if self._held_recorded or not optimizers or self._session.learning:
            return
        device = "cuda" if self._session.device_index is not None else "cpu"
        try:
            held = held_bytes(optimizers, models, device)
        except RuntimeError:  # the training adds to the state at this moment: next time
            return
        self._held_recorded = True
        self._session.record({"kind": "held", "device": device, **held})

    def write_network(self) -> None:
        """Only where ranks exchange anything: reading it costs as much as two samples."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            interfaces = network_counters(self._network_file.read(), self._speeds)
            self._session.record(
                {
                    "kind": "network",
                    "row": self._session.recorder.rows,
                    "interfaces": interfaces,
                    "run_delay_ns": run_delay_in(self._delay_file.read()),
                }
            )

    def write_totals(self) -> None:
        self._session.record_totals()
        self._session.flush_pending()
        self._session.record(self.overhead_fact(None))

    def overhead_fact(self, hooks_ns: int | None) -> dict[str, Any]:
        """What the agent cost so far; the hooks' part is measured once, at the end (None before)."""
        from .overhead import METHOD

        return {
            "kind": "overhead",
            "hooks_ns": hooks_ns,
            "sampler_ns": self.cpu_ns,
            "deep_window_ns": self._session.deep_window_ns,
            "elapsed_ns": self._session.now_ns(),
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


_JOBS_NS = {
    "keep_file": (100_000_000, 250_000_000, 250_000_000),
    "read_memory": (60_000_000, 500_000_000, 500_000_000),
    "write_samples": (2_000_000_000, 2_000_000_000, 5_000_000_000),
    "write_memory": (1_000_000_000, 2_000_000_000, 2_000_000_000),
    "write_network": (250_000_000, 1_000_000_000, 2_000_000_000),
    "write_totals": (2_000_000_000, 5_000_000_000, 5_000_000_000),
}
"""ns between two runs of each job: in the first FIRST_S, so that a run of two seconds has rates and a slope of its
memory too; until FAST_FOR_S; and later."""


def next_interval_s(interval_s: float, share_ratio: float, age_s: float, rows_per_s: float = 0.0) -> float:
    """Seconds between two samples, when at ``interval_s`` the thread used that share of wall time so far.

    >>> next_interval_s(0.020, 0.0005, 1.0), next_interval_s(0.020, 0.002, 1.0), next_interval_s(0.020, 1.0, 1.0)
    (0.02, 0.04, 0.06)
    >>> next_interval_s(0.060, 0.0005, 5.0), next_interval_s(0.1, 1.0, 15.0), next_interval_s(0.2, 0.0001, 99.0)
    (0.2, 0.5, 0.5)
    >>> next_interval_s(0.2, 0.0001, 99.0, 1_000.0), next_interval_s(0.2, 0.0001, 99.0, 5_000.0)
    (0.4, 0.2)
    """
    idle_s = idle_interval_s(rows_per_s)
    fastest_s = age_s / (FIRST_PER_E_FOLDING if age_s < FIRST_S else SAMPLES_PER_E_FOLDING)
    fastest_s = max(FAST_INTERVAL_S, min(idle_s, fastest_s))
    slowest_s = max(fastest_s, SLOW_INTERVAL_S if age_s < FAST_FOR_S else idle_s)
    return max(fastest_s, min(slowest_s, interval_s * share_ratio / TARGET_CPU_RATIO))


def idle_interval_s(rows_per_s: float) -> float:
    """Seconds that the thread may sleep while it has nothing to sample and so many rows come.

    >>> idle_interval_s(1.0), idle_interval_s(1_000.0), idle_interval_s(math.inf)
    (0.5, 0.4, 0.2)
    """
    return min(IDLE_INTERVAL_S, max(READY_INTERVAL_S, MOST_ROWS_ASLEEP / max(rows_per_s, 1.0)))
