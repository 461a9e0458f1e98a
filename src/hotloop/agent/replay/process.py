"""One process of a run: its memory, what its events mean, its stack, its file."""

from __future__ import annotations

import os
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

from hotloop.core.events import COPY, EVENT_NS, RESTED, TEXT
from hotloop.core.machine import count_cores, idle_in, memory_limit_bytes
from hotloop.core.recording import FIELD, STEP_FIELDS

from .engine import Engine
from .loaders import FetchTotals
from .memory import EventMemory
from .recording_writer import RecordingWriter
from .stack_reader import Inconsistent, Sample, StackReader

START, END = FIELD["start_ns"], FIELD["end_ns"]
MOST_STEPS = 500
MOST_EVENTS = 50_000
"""Taken in at a time, so that other processes have their turn."""
MOST_STACKS, MOST_STACKS_TOLD = 2_000, 200
START_FIELD = "other_ns"
"""How samples before the first step are written: no phase is known yet."""
THREADS_EVERY = 4
"""The other threads are looked at with every n-th sample."""
WAITING_MODULES = (
    "threading:", "queue:", "selectors:", "select:", "socket:", "ssl:", "subprocess:", "multiprocessing.", "asyncio.",
    "concurrent.futures.", "torch.utils.data.",
)  # fmt: skip
"""A thread whose innermost Python function is of these waits, or is a loader's own."""
HELD_S = 1.0
"""A sample waits no longer for the next event."""
MOST_REFUSALS = 50
"""Samples in a row that made no sense, after which a process is not read any more."""
MOST_CORES_COUNTED = 32
"""On hosts with more cores nobody asks whether one is free, and the kernel takes longer to say it."""
_S = 1_000_000_000


def _due(age_ns: int, first_ns: int, then_ns: int, later_ns: int) -> int:
    """ns until a job's next turn: often in the first seconds, so that a short run has rates too."""
    return first_ns if age_ns < 3 * _S else then_ns if age_ns < 20 * _S else later_ns


class RunProcess:
    """``fetches_by_pid`` are what other processes of the run (loader workers) say of their fetching."""

    def __init__(self, memory: EventMemory, pid: int, folder: Path, fetches_by_pid: dict[int, FetchTotals]) -> None:
        self.pid = pid
        self._memory = memory
        self._folder = folder
        self._fetches_by_pid = fetches_by_pid
        self._file = RecordingWriter()
        self.engine = Engine(memory.anchor_ns, self._write_row, self._write_fact)
        fetches_by_pid[pid] = self.engine.fetches
        self._reader: StackReader | None = None
        self._waiting_samples: list[tuple[int, Sample, bool, float]] = []
        self._fields: dict[tuple[Any, ...], int] = {}
        """The phase in which the user's calls of each stack were first seen."""
        self._counts: dict[tuple[int, Sample], int] = {}
        self._first_row = 0
        self._refusals = 0
        self._failed = False
        self._cores = _cores_of(pid)
        self._peak_rss_bytes = 0
        self._peaks: dict[str, int] = {}
        """Highest resident memory in the start, in training steps and in validations, where it was read in them."""
        self._validated = False
        self._ticks = self._thread_looks = 0
        self._thread_counts: dict[Sample, int] = {}
        self._speeds: dict[str, int | None] = {}
        self._taken = self._lost_events = 0
        self.steps_ns: deque[int] = deque(maxlen=MOST_STEPS)
        """How long the newest rows took."""
        self.cpu_ns = 0
        """The cost of reading this process so far."""
        self._start_counts: dict[Sample, int] = {}
        """Stacks before the first step."""
        self._began_ns = time.perf_counter_ns()
        self._next_ns = dict.fromkeys(_JOBS, 0)

    @property
    def trains(self) -> bool:
        return self.engine.recorder.started

    @property
    def is_sampled(self) -> bool:
        """From the import of torch on: the time before the first step has to be explained too."""
        return self.trains or self._reader is not None

    # -- rows, facts ------------------------------------------------------------------------------------------------

    def ask(self, word: int) -> None:
        self._memory.ask(word)

    @property
    def events_count(self) -> int:
        return self._memory.newest()

    def _write_row(self, row: Any) -> None:
        self.steps_ns.append(row[END] - row[START])
        self._file.write_row(row)
        self._name_file()

    def _write_fact(self, fact: dict[str, Any]) -> None:
        if fact["kind"] == "process":
            fact |= self._describe_process()
        self._file.write_fact(fact)
        self._name_file()

    def _name_file(self) -> None:
        """As soon as the process trains and has said who it is."""
        process = self.engine.process
        if self._file.path is not None or process is None or not (self.trains or self.engine.ended):
            return
        rank, restart = process.get("rank"), process.get("restart") or 0
        name = f"{process.get('host') or 'host'}-{self.pid}-{'x' if rank is None else rank}-{restart}.hlr"
        self._file.path = self._folder / name
        self._refusals = 0  # of the thread that trains from here on
        if self._start_counts:
            self._file.write_fact({"kind": "start", "counts": _tell_samples(self._start_counts), "t": 0})
            self._start_counts.clear()

    def _describe_process(self) -> dict[str, Any]:
        """Facts for which the training's process is not asked: the kernel knows them."""
        cores = (self.engine.process or {}).get("affinity_cores")
        return {
            "pid": self.pid,
            "process_start_wall_s": _started_wall_s(self.pid),
            "cores": count_cores(max(cores or 0, len(self._cores))),
            "memory_total_bytes": memory_limit_bytes(),
        }

    # -- events -----------------------------------------------------------------------------------------------------

    def take_events(self, *, is_over: bool = False) -> int:
        """Take in what has come; how many events that were."""
        engine, samples, taken = self.engine, self._waiting_samples, 0
        for code, now_ns, arguments, more in self._memory.read(is_over=is_over):
            taken += 1
            number = self._memory.position
            if self._memory.lost_events != self._lost_events:
                self._lost_events = self._memory.lost_events
                engine.resume()
            while samples and samples[0][0] < number:
                _, sample, is_resting, _ = samples.pop(0)
                self._count(sample, is_resting or code == RESTED)
            try:
                self._take_in(code, now_ns, arguments, more)
            except Exception:  # costs the event, and none after it
                self.note_failure(traceback.format_exc(limit=-3))
            if taken >= MOST_EVENTS and not is_over:
                break
        # Between steps the next event says whether these were timed.
        is_held = len(engine.recorder.stack) == 1 and not is_over
        while samples and samples[0][0] <= self._memory.position:
            if is_held and time.monotonic() - samples[0][3] < HELD_S:
                break
            _, sample, is_resting, _ = samples.pop(0)
            self._count(sample, is_resting)
        if engine.access is not None and self._refusals < MOST_REFUSALS:
            self._make_reader()
        self._taken += taken
        return taken

    def _take_in(self, code: int, now_ns: int, arguments: tuple[int, ...], more: Any) -> None:
        engine = self.engine
        if code == TEXT:
            engine.now_ns = max(engine.now_ns, now_ns)
            if isinstance(more, dict):
                engine.tell(more)
        elif code == COPY:
            if more is not None:
                engine.copied(more, *arguments[2:6])
        else:
            engine.feed(code, now_ns, *arguments)

    # -- stacks -----------------------------------------------------------------------------------------------------

    def _make_reader(self) -> None:
        access, self.engine.access = self.engine.access, None
        try:
            self._reader = StackReader(access or {})
            self._reader.read()
        except Exception as error:  # whatever a layout of no sense leads to
            if isinstance(error, Inconsistent) and self._refusals < MOST_REFUSALS:
                self._refusals += 1
                self._reader, self.engine.access = None, access
                return
            self._reader = None
            self._refusals = MOST_REFUSALS
            reason = getattr(error, "strerror", None) or str(error)
            self._write_fact({"kind": "sampling", "reason": reason, "t": 0})

    def sample(self) -> None:
        """One sample of the stack of the thread that trains, for the phase that it is in at that moment."""
        if self._reader is None or self.engine.ended is not None:
            return
        for _ in range(3):
            before, is_resting = self._memory.newest(), self._memory.is_resting()
            try:
                sample = self._reader.read()
            except Inconsistent:
                self._refusals += 1
                if self._refusals >= MOST_REFUSALS:
                    self._reader = None
                return
            except OSError:
                self._reader = None
                return
            self._refusals = 0
            if self._memory.newest() == before:
                break
        if not self.trains:
            if sample in self._start_counts or len(self._start_counts) < MOST_STACKS:
                self._start_counts[sample] = self._start_counts.get(sample, 0) + 1
            return
        self._waiting_samples.append((before, sample, is_resting, time.monotonic()))
        self._look_at_threads()

    def _look_at_threads(self) -> None:
        """One look in several: the lines that the user's other threads are in, without waiting threads."""
        self._ticks += 1
        if self._reader is None or self._ticks % THREADS_EVERY:
            return
        try:
            samples = self._reader.read_others()
        except (OSError, Inconsistent):
            return
        self._thread_looks += 1
        for sample in samples:
            places, leaf = sample
            is_known = sample in self._thread_counts or len(self._thread_counts) < MOST_STACKS
            if places and is_known and not leaf.startswith(WAITING_MODULES):
                self._thread_counts[sample] = self._thread_counts.get(sample, 0) + 1

    def _count(self, sample: Sample, is_resting: bool) -> None:
        if not is_resting:
            field = self.engine.recorder.sampled_field
            if len(self._fields) < MOST_STACKS:
                self._fields.setdefault(sample[0], field)
        elif sample[0] in self._fields:
            field = self._fields[sample[0]]
        else:  # no event says what it was in, and nothing did before
            return
        key = (field, sample)
        if key in self._counts or len(self._counts) < MOST_STACKS:
            self._counts[key] = self._counts.get(key, 0) + 1

    # -- what is written now and then -------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> None:
        """The jobs that are due."""
        if self._file.path is None:
            return
        age_ns = now_ns - self._began_ns
        if self.engine.wants_refresh:
            self.engine.wants_refresh = False
            self._next_ns = dict.fromkeys(_JOBS, 0)
        for job, periods in _JOBS.items():
            if now_ns >= self._next_ns[job]:
                self._next_ns[job] = now_ns + _due(age_ns, *periods)
                getattr(self, job)()
        self._file.flush()

    def write_samples(self) -> None:
        counts, self._counts = self._counts, {}
        rows = self.engine.recorder.rows
        if counts:
            kept = sorted(counts.items(), key=lambda item: -item[1])[:MOST_STACKS_TOLD]
            told = [[STEP_FIELDS[field], places, leaf, n] for (field, (places, leaf)), n in kept]
            self._write_now({"kind": "samples", "rows": [self._first_row, rows], "counts": told, "outside": True})
        if self._reader is not None:
            self._reader.check_codes()
        self._first_row = rows

    def _write_now(self, fact: dict[str, Any]) -> None:
        fact["t"] = time.perf_counter_ns() - self._memory.anchor_ns
        self._write_fact(fact)

    def read_memory(self) -> None:
        """The kernel keeps the peak: a new one belongs to what the process does now, or did at the last look."""
        sizes = _status_bytes(_read(f"/proc/{self.pid}/status"))
        if sizes is None:
            return
        rss_bytes, peak_bytes = sizes
        self.engine.recorder.set_known(FIELD["rss_bytes"], rss_bytes)
        burst = self.engine.recorder.burst
        validates = burst is not None and burst.forwards > 0
        part = "start" if not self.trains else "validation" if validates or self._validated else "training"
        highest = peak_bytes if peak_bytes > self._peak_rss_bytes else rss_bytes
        self._peaks[part] = max(self._peaks.get(part, 0), highest)
        self._peak_rss_bytes, self._validated = max(self._peak_rss_bytes, peak_bytes), validates

    def write_memory(self) -> None:
        recorder = self.engine.recorder
        self.read_memory()
        idle = idle_in(_read("/proc/stat"), self._cores) if len(self._cores) <= MOST_CORES_COUNTED else None
        self._write_now(
            {"kind": "memory", "row": recorder.rows, "rss_bytes": recorder.row[FIELD["rss_bytes"]],
             "peak_rss_bytes": self._peak_rss_bytes, "peaks": self._peaks,
             "device": self.engine.device_memory, "idle": idle}
        )  # fmt: skip

    def write_network(self) -> None:
        """Only where ranks exchange anything."""
        process = self.engine.process or {}
        if (process.get("world_size") or 1) < 2:
            return
        delay = _read(f"/proc/{self.pid}/schedstat").split()
        self._write_now(
            {"kind": "network", "row": self.engine.recorder.rows,
             "interfaces": _interfaces(_read(f"/proc/{self.pid}/net/dev"), self._speeds),
             "run_delay_ns": int(delay[1]) if len(delay) > 1 and delay[1].isdigit() else None}
        )  # fmt: skip

    def write_totals(self) -> None:
        for fact in (*self.engine.totals(self._fetches_by_pid), self._overhead()):
            self._write_now(fact)
        if self._thread_counts:
            told = _tell_samples(self._thread_counts)
            self._write_now({"kind": "threads", "looks": self._thread_looks, "counts": told})

    def _overhead(self) -> dict[str, Any]:
        return {
            "kind": "overhead",
            "hooks_ns": int(self.engine.events * EVENT_NS),
            "sampler_ns": self.cpu_ns,
            "deep_window_ns": None,
            "elapsed_ns": time.perf_counter_ns() - self._memory.anchor_ns,
            "memory_bytes": None,
            "method": METHOD,
        }

    def note_failure(self, trace: str) -> None:
        """Something of ours failed while this process was taken in."""
        if not self._failed:
            self._failed = True
            text = f"hotloop's own process failed: {trace.strip().splitlines()[-1]}"
            self._file.write_fact({"kind": "health", "level": "warning", "message": text, "trace": trace, "t": 0})

    def finish(self) -> None:
        """The process is gone: what it left in its memory, and the end."""
        self.take_events(is_over=True)
        engine = self.engine
        if self.trains and engine.ended is None and (rested := self._memory.rested()):
            engine.feed(RESTED, time.perf_counter_ns(), rested, 0, 0, 0, 0, 0)
        process = engine.process or {}
        if not self.trains and not (engine.ended and process):
            self._memory.close()
            return
        engine.finish(engine.now_ns)
        self._name_file()
        if self._file.path is not None:
            self.write_samples()
            self.write_memory()
            self.write_totals()
            if engine.rested_steps:
                text = (
                    f"hooks paused in {engine.rested_steps:,} of {engine.recorder.rows:,} steps, to cost at most 1% "
                    "of the time or by hotloop attach --off: these steps were counted, and their time was divided like "
                    "that of the steps next to them"
                )
                self._write_now({"kind": "health", "level": "info", "message": text})
            if self._memory.lost_events:
                text = f"{self._memory.lost_events:,} events were not read in time: their steps are lost"
                self._write_now({"kind": "health", "level": "warning", "message": text})
            self._file.close(closed=engine.ended is not None)
        self._memory.close()


_JOBS: dict[str, tuple[int, int, int]] = {
    "read_memory": (60_000_000, 500_000_000, 500_000_000),
    "write_samples": (2 * _S, 2 * _S, 5 * _S),
    "write_memory": (_S, 2 * _S, 2 * _S),
    "write_network": (250_000_000, _S, 2 * _S),
    "write_totals": (2 * _S, 5 * _S, 5 * _S),
}
"""ns between two runs of each job in the first three seconds, in the first twenty, and later."""

METHOD = (
    f"Events noted × {EVENT_NS / 1000:g} µs, by which paired blocks with and without hooks differ (docs/overhead.md)"
)


def _tell_samples(counts: dict[Sample, int]) -> list[list[Any]]:
    """The most frequent stacks whose phase is unknown."""
    kept = sorted(counts.items(), key=lambda item: -item[1])[:MOST_STACKS_TOLD]
    return [[START_FIELD, places, leaf, n] for (places, leaf), n in kept]


def _read(path: str) -> bytes:
    """A small file of the kernel; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def _status_bytes(status: bytes) -> tuple[int, int] | None:
    """Resident memory and its peak of a process; None where the kernel does not report them.

    >>> _status_bytes(b"VmHWM:\t     12 kB\nVmRSS:\t      8 kB\n")
    (8192, 12288)
    """
    found = {name: rest for name, _, rest in (line.partition(b":") for line in status.splitlines())}
    if b"VmRSS" not in found or b"VmHWM" not in found:
        return None
    return int(found[b"VmRSS"].split()[0]) * 1024, int(found[b"VmHWM"].split()[0]) * 1024


def _started_wall_s(pid: int) -> float | None:
    """Wall time at which the kernel started a process."""
    stat, uptime = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split(), _read("/proc/uptime").split()
    if len(stat) < 20 or not uptime:
        return None
    return time.time() - float(uptime[0]) + int(stat[19]) / os.sysconf("SC_CLK_TCK")


def _cores_of(pid: int) -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(pid))
    except OSError:
        return frozenset(os.sched_getaffinity(0))


def _interfaces(device_table: bytes, speeds: dict[str, int | None]) -> dict[str, dict[str, int | None]]:
    from hotloop.core.machine import network_counters

    return network_counters(device_table, speeds)
