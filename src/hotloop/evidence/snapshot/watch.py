"""A training -> what its processes did in each of many looks over a few seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hotloop.agent.replay.stack_reader import PythonCall

from . import proc
from .family import RANK, Member, RunningTraining
from .interpreter import UnreadableError
from .source import ProcessSource
from .waits import COMPUTING, Wait, describe_wait, user_call

EVERY_S = 0.005
"""Between two looks at the thread that trains: a step of a few milliseconds between two long validations is seen."""
OTHERS_EVERY_S = 0.05
"""The same for loader workers and other threads."""
MOST_CPU_RATIO = 0.1
"""The largest share of a core that looking itself may take."""


@dataclass(frozen=True, slots=True)
class Look:
    """A thread at a moment."""

    calls: tuple[PythonCall, ...]
    wait: Wait
    key: tuple[object, ...]
    """What stays the same while nothing moves: all of the user's lines, and the innermost call."""

    @property
    def place(self) -> tuple[str, int, str] | None:
        call = user_call(self.calls)
        return None if call is None else (call.file, call.line, call.function)


@dataclass(slots=True, kw_only=True)
class Watched:
    """A process over the window. ``others`` are looks at its other Python threads, by thread."""

    member: Member
    thread: int = 0
    """The thread that trains: the main one, unless that only waits for another or runs nothing of the user's."""
    looks: list[Look] = field(default_factory=list)
    others: dict[int, list[Look]] = field(default_factory=dict)
    is_gone: bool = False
    cpu_s: float = 0.0
    main_cpu_s: float = 0.0
    thread_cpu_s: dict[int, float] = field(default_factory=dict)
    runnable_counts: list[int] = field(default_factory=list)
    """How many of its threads ran or waited for a core, each time."""
    wakes_per_s: float = 0.0
    """How often the main thread went to wait: a stuck thread wakes up now and then at most."""
    written_bytes: int = 0
    idle_s: float | None = None
    watched_s: float = 0.0
    _cpu_before: dict[int, float] = field(default_factory=dict)
    _written_before: int | None = None
    _wakes_before: int = 0

    @property
    def pid(self) -> int:
        return self.member.pid

    @property
    def usual(self) -> Look | None:
        return usual_look(self.looks)

    @property
    def stays_ratio(self) -> float:
        """Share of the looks that found the thread where it was most often."""
        counts = Counter(look.key for look in self.looks)
        return max(counts.values()) / len(self.looks) if self.looks else 0.0

    @property
    def waits_ratio(self) -> float:
        return sum(look.wait.kind != COMPUTING for look in self.looks) / len(self.looks) if self.looks else 0.0

    @property
    def cpu_ratio(self) -> float:
        """CPU time of all its threads over the window."""
        return self.cpu_s / self.watched_s if self.watched_s else 0.0

    @property
    def main_cpu_ratio(self) -> float:
        return self.main_cpu_s / self.watched_s if self.watched_s else 0.0


def usual_look(looks: Sequence[Look]) -> Look | None:
    """The last one of the most frequent; None of none."""
    counts = Counter((look.key, look.wait.kind, look.wait.detail) for look in looks)
    most = max(counts, key=lambda key: counts[key], default=None)
    return next((look for look in reversed(looks) if (look.key, look.wait.kind, look.wait.detail) == most), None)


def watch(
    training: RunningTraining, is_enough: Callable[[Sequence[Watched], float], bool], most_s: float
) -> list[Watched]:
    """Look until ``is_enough`` is true of what was seen and the seconds so far, ``most_s`` at most."""
    watched = [Watched(member=member) for member in training.members]
    source = ProcessSource((training.ranks or training.members)[0].pid)
    is_distributed = training.world_size > 1
    began_s = time.monotonic()
    for one in watched:
        _look(one, source, is_distributed, with_others=True)
    _measure(watched, 0.0, is_first=True)
    others_s = checked_s = 0.0
    while (elapsed_s := time.monotonic() - began_s) < most_s:
        before_s = time.thread_time()
        with_others = elapsed_s - others_s >= OTHERS_EVERY_S
        others_s = elapsed_s if with_others else others_s
        for one in watched:
            if with_others or one.member.role == RANK:
                _look(one, source, is_distributed, with_others=with_others)
        took_s = time.thread_time() - before_s
        if elapsed_s - checked_s >= 0.5:
            checked_s = elapsed_s
            _measure(watched, elapsed_s)
            if is_enough(watched, elapsed_s):
                break
        time.sleep(max(EVERY_S, took_s / MOST_CPU_RATIO) - took_s)
    _measure(watched, time.monotonic() - began_s)
    return watched


def _look(one: Watched, source: ProcessSource, is_distributed: bool, *, with_others: bool) -> None:
    pid = one.pid
    if with_others:
        process = proc.read_process(pid)
        if process is None or process.started_ticks != one.member.process.started_ticks:
            one.is_gone = True
            return
    threads: dict[int, tuple[PythonCall, ...]] = {}
    if one.member.reader is not None:
        try:
            threads = one.member.reader.read_threads(None if with_others else one.thread)
        except UnreadableError:
            threads = {}
    if not one.looks:
        one.thread = _training_thread(pid, threads)

    def look_at(thread: int) -> Look | None:
        state, calls = proc.read_thread(pid, thread), threads.get(thread, ())
        if state is None or state.state in "ZX":
            return None
        call = proc.read_call(pid, thread) if state.state != "R" else None
        is_exchanging = is_distributed and thread == one.thread
        wait = describe_wait(
            pid, thread, state.state, calls, is_distributed=is_exchanging, call=call, source=source
        )  # fmt: skip
        users = tuple((call.file, call.line) for call in calls if call.is_users)
        inner = (calls[0].module, calls[0].function) if calls else None
        return Look(calls, wait, (users, inner))

    look = look_at(one.thread)
    if look is None:
        one.is_gone = True
        return
    one.looks.append(look)
    if with_others and one.member.role == RANK:
        for thread, calls in threads.items():
            if thread != one.thread and calls and (other := look_at(thread)) is not None:
                one.others.setdefault(thread, []).append(other)


def _training_thread(pid: int, threads: Mapping[int, tuple[PythonCall, ...]]) -> int:
    main = threads.get(pid, ())
    joins = any(call.module == "threading" and call.function == "join" for call in main[:4])
    if user_call(main) is not None and not joins:
        return pid
    users = {thread: calls for thread, calls in threads.items() if thread != pid and user_call(calls) is not None}
    uses_torch = [thread for thread, calls in users.items() if any(call.module.startswith("torch.") for call in calls)]
    return next(iter([*uses_torch, *users]), pid)


def _measure(watched: Sequence[Watched], elapsed_s: float, *, is_first: bool = False) -> None:
    """CPU time and bytes written since the first look."""
    for one in watched:
        read = {thread: proc.read_thread(one.pid, thread) for thread in proc.list_threads(one.pid)}
        states = {thread: state for thread, state in read.items() if state is not None}
        cpu_s = {thread: state.cpu_s for thread, state in states.items()}
        one.runnable_counts.append(sum(state.state == "R" for state in states.values()))
        written, wakes = proc.written_bytes(one.pid), proc.count_wakes(one.pid, one.thread or one.pid)
        if is_first:
            one._cpu_before, one._written_before, one._wakes_before = cpu_s, written, wakes
        one.wakes_per_s = (wakes - one._wakes_before) / elapsed_s if elapsed_s else 0.0
        one.thread_cpu_s = {thread: now_s - one._cpu_before.get(thread, 0.0) for thread, now_s in cpu_s.items()}
        one.cpu_s = sum(one.thread_cpu_s.values())
        one.main_cpu_s = one.thread_cpu_s.get(one.thread or one.pid, 0.0)
        one.written_bytes = (written or 0) - (one._written_before or 0)
        one.idle_s = proc.idle_seconds(one.pid, one.thread or one.pid)
        one.watched_s = elapsed_s
