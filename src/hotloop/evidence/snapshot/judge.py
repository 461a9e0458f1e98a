"""What the processes of a training did over the window -> one verdict, and the ranks that differ."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hotloop.agent.replay.stack_reader import PythonCall
from hotloop.core.snapshot import SlowPlace, Stand, Verdict, say_wait

from .family import CHILD, WORKER, RunningTraining
from .slowness import (
    BUSY_RATIO,
    CLOSE_RATIO,
    GIL,
    LIMITS,
    LOADING,
    OUTSIDE,
    SAVING,
    STRAGGLER,
    THREADS,
    TORCH_LOADER,
    VALIDATION,
    Cause,
    Phases,
    weigh_causes,
)
from .source import ProcessSource
from .waits import (
    COLLECTIVE,
    COMPUTING,
    DEVICE,
    GONE,
    JOINING,
    LOADER,
    STOPPED,
    Wait,
)
from .watch import Look, Watched, usual_look

LOOP = "waiting loop"
STAYS_RATIO, OWN_RATIO = 0.97, 0.80
"""A thread that is in one place in this share of the looks does not move. A loop that waits is in its own function in
the second share of them, and in what it calls else."""
IDLE_RATIO = 0.05
"""CPU time, as a share of the window, below which a process does nothing."""
STOPPED_S, MOVING_S, STUCK_S, LONGEST_S = 1.0, 3.0, 6.5, 8.0
"""Seconds to watch: a stopped rank; a training that moves; one in which nothing does; a training that may be slow."""
LONG_SLEEP_S = 60.0
"""A single sleep that ends by itself before this is slow, not a hang."""
STARTING_S = 60.0
"""Ranks that wait for each other in the start for this long are stuck."""
FED = ("socket", "pipe", "FIFO", "stdin")
"""Waits that end as soon as anything comes: a thread that woke up received something."""
MOST_PLACES = 5
SAVED_BYTES = 1 << 20
MOST_WAKES_PER_S = 1.0
"""For a thread that is stuck in a library's wait, which may check now and then: torch's loader every 5 s."""

_COMPILING = (
    "torch._dynamo.convert_frame",
    "torch._inductor.compile_fx",
    "torch._inductor.async_compile",
    "triton.compiler",
)
"""What runs only while something is compiled; compiled code runs in other modules of these packages."""
_STARTING = {("torch.serialization", "load"), ("torch.serialization", "_load")}
_SAVE_NAME = re.compile(r"save|checkpoint|snapshot", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    verdict: Verdict
    reason: str
    culprits: tuple[Stand, ...] = ()
    waits_for: str | None = None
    phase: str | None = None
    findings: tuple[SlowPlace, ...] = ()
    advice: tuple[str, ...] = ()
    since_s: float | None = None


class Judge:
    """``children`` are the processes that each rank started, as they were watched."""

    def __init__(
        self, training: RunningTraining, watched: Sequence[Watched], elapsed_s: float, source: ProcessSource
    ) -> None:
        self.training = training
        self.elapsed_s = elapsed_s
        self.source = source
        self.phases = Phases(source)
        by_pid = {one.pid: one for one in watched}
        self.ranks = [by_pid[member.pid] for member in training.ranks]
        self.children = {
            member.pid: [by_pid[child.pid] for child in training.children_of(member)] for member in training.ranks
        }
        self.others = [one for one in watched if one.member.role == CHILD]
        self.missing = max(0, (training.expected or 0) - len([one for one in self.ranks if not one.is_gone]))

    # -- a rank -----------------------------------------------------------------------------------------------------

    def is_stuck(self, one: Watched) -> bool:
        """Whether nothing that this rank or its helpers do leads anywhere."""
        usual = one.usual
        if one.is_gone or usual is None:
            return one.is_gone
        if usual.wait.kind == STOPPED:
            return True
        if self.waits_in_loop(one):
            return True
        if usual.wait.ends_s is not None and usual.wait.ends_s - time.monotonic() < LONG_SLEEP_S:
            return False
        if one.main_cpu_ratio > IDLE_RATIO:
            return False
        if usual.wait.kind == COLLECTIVE and self.part_of(one) == "starting":
            return True  # the store is polled again and again, and responds from its own thread
        if one.stays_ratio < STAYS_RATIO or one.waits_ratio < STAYS_RATIO:
            return False
        is_fed = usual.wait.kind in FED and one.wakes_per_s > 0
        if one.written_bytes > SAVED_BYTES or one.wakes_per_s > MOST_WAKES_PER_S or is_fed:
            return False
        return not self.is_helped(one, usual.wait)

    def waits_in_loop(self, one: Watched) -> bool:
        """Whether it stays in a loop that only waits, even if it uses the processor for that."""
        place = one.usual.place if one.usual is not None else None
        if place is None:
            return False
        file, _, function = place
        own_count = sum(look.place is not None and look.place[::2] == (file, function) for look in one.looks)
        lines = {
            next((call.line for call in look.calls if (call.file, call.function) == (file, function)), None)
            for look in one.looks
        }
        return own_count >= OWN_RATIO * len(one.looks) and all(
            line is not None and self.source.is_waiting_loop(file, line) for line in lines
        )

    def is_helped(self, one: Watched, wait: Wait) -> bool:
        """Whether another of its threads or processes is making what it waits for."""
        children = self.children[one.pid]
        if wait.kind in (
            LOADER,
            "child process",
            "pipe",
            "queue",
            "future",
            "lock",
            "descriptors",
            "native code",
            "socket",
        ):
            if any(child.cpu_ratio > IDLE_RATIO or child.written_bytes > SAVED_BYTES for child in children):
                return True
            if wait.kind == LOADER and any(self.moves(child) for child in children):
                return True
        return one.cpu_s - one.main_cpu_s > IDLE_RATIO * one.watched_s

    @staticmethod
    def moves(one: Watched) -> bool:
        return bool(one.looks) and one.stays_ratio < STAYS_RATIO

    def part_of(self, one: Watched) -> str | None:
        """starting, saving or compiling, if most looks found the rank in it."""
        if not one.looks:
            return None
        parts = Counter(part for look in one.looks if (part := _part(look.calls)) is not None)
        part, count = max(parts.items(), key=lambda item: item[1], default=(None, 0))
        if part is None and any("compile_worker" in " ".join(c.member.process.command) and c.cpu_ratio > BUSY_RATIO
                                for c in self.children[one.pid]):  # fmt: skip
            return "compiling"
        return part if count >= len(one.looks) / 2 else None

    # -- the training -----------------------------------------------------------------------------------------------

    def is_enough(self) -> bool:
        if any(one.usual and one.usual.wait.kind == STOPPED for one in self.ranks):
            return self.elapsed_s >= STOPPED_S
        if any(one.is_gone for one in self.ranks):
            return self.elapsed_s >= MOVING_S
        if any(self.moves(one) for one in self.ranks) and not any(self.is_stuck(one) for one in self.ranks):
            return self.elapsed_s >= MOVING_S and not self._may_be_slow()
        return self.elapsed_s >= STUCK_S and (all(self.is_stuck(one) for one in self.ranks) or not self._may_be_slow())

    def _may_be_slow(self) -> bool:
        moving = [one for one in self.ranks if not self.is_stuck(one)]
        return bool(moving) and any(
            cause.seen_ratio >= CLOSE_RATIO * LIMITS[cause.kind] for cause in self._weigh(moving)
        )

    def judge(self) -> Judgement:
        readable = [one for one in self.ranks if one.member.reader is not None]
        if not self.ranks:
            return Judgement(verdict="cannot tell", reason="none of its processes has torch loaded")
        stopped = [one for one in self.ranks if one.usual and one.usual.wait.kind == STOPPED]
        if stopped:
            return self._hung(stopped)
        stuck = [one for one in self.ranks if self.is_stuck(one)]
        if self.missing or any(one.is_gone for one in self.ranks):
            return self._judge_gone(stuck)
        if not readable:
            return Judgement(verdict="cannot tell", reason=self._unread_text(stuck))
        if len(stuck) == len(self.ranks):
            return self._judge_stuck(stuck)
        return self._judge_moving([one for one in self.ranks if one not in stuck], stuck)

    def _unread_text(self, stuck: Sequence[Watched]) -> str:
        busiest = max(self.ranks, key=lambda one: one.cpu_ratio)
        used = f"uses {busiest.cpu_ratio:.0%} of a core"
        idle_s = self._since(stuck)
        does = f"has not run for {idle_s:.0f} s" if len(stuck) == len(self.ranks) and idle_s is not None else used
        return f"its Python calls cannot be read; it {does}"

    def _judge_gone(self, stuck: Sequence[Watched]) -> Judgement:
        gone = [one for one in self.ranks if one.is_gone]
        stands = [self.stand(one, wait=GONE) for one in gone]
        alive = {one.member.rank for one in self.ranks if not one.is_gone}
        first = min((rank for rank in alive if rank is not None), default=0)
        expected = range(first - first % (self.training.expected or 1), self.training.world_size)
        lost = [rank for rank in expected if rank not in {one.member.rank for one in self.ranks}][: self.missing]
        stands += [Stand(rank=rank, host=self.training.host, pid=None, wait=GONE) for rank in lost]
        waiting = [one for one in stuck if not one.is_gone]
        names = _ranks_text([stand.rank for stand in stands])
        if not waiting:
            return Judgement(verdict="healthy", reason=f"{names} ended; the others continue", culprits=tuple(stands))
        return Judgement(
            verdict="hung",
            reason=f"{names} is gone, and the others wait for it",
            culprits=tuple(stands),
            waits_for=self._waits_for(waiting),
            since_s=self._since(waiting),
            advice=(
                "Look at the end of that rank's output, and in the kernel's log for a process that was killed because "
                "memory ran out.",
                "To the launcher, a rank that ended with exit code 0 is not a failure: it ran out of batches, or "
                "returned early.",
            ),
        )

    def _judge_stuck(self, stuck: Sequence[Watched]) -> Judgement:
        if len(stuck) == 1 and stuck[0].usual is not None and stuck[0].usual.place is None and stuck[0].member.reader:
            return Judgement(verdict="healthy", reason="none of the user's code runs: the process waits for work")
        starting = [one for one in self.others if one.cpu_ratio > BUSY_RATIO]
        if starting:
            return Judgement(verdict="starting", reason=f"its process {starting[0].pid} computes")
        if all(self.part_of(one) == "starting" for one in stuck):
            ages_s = [self._since([one]) or 0.0 for one in stuck]
            if max(ages_s) < STARTING_S and len(self.ranks) >= self.training.world_size:
                return Judgement(verdict="starting", reason="all ranks wait in the start", phase="start")
            if max(ages_s) < STARTING_S:
                lacking = self.training.world_size - len(self.ranks)
                return Judgement(
                    verdict="starting",
                    reason=f"training waits for {lacking} of {self.training.world_size} ranks to join",
                )
        culprits = self._differing(stuck)
        if not culprits and len(stuck) == 1:
            culprits = list(stuck)
        return self._hung(culprits)

    def _differing(self, stuck: Sequence[Watched]) -> list[Watched]:
        stands = [self.stand(one) for one in stuck]
        branched = [one.usual is not None and self._is_branched(one.usual) for one in stuck]
        return [stuck[at] for at in differing(stands, branched)]

    def _is_branched(self, look: Look) -> bool:
        return any(call.is_users and self.source.is_under_rank_test(call.file, call.line) for call in look.calls)

    def _hung(self, culprits: Sequence[Watched]) -> Judgement:
        others = [one for one in self.ranks if one not in culprits and self.is_stuck(one)]
        stands = list(dict.fromkeys(stand for one in culprits for stand in self._culprits_of(one)))
        return Judgement(
            verdict="hung",
            reason=_hang_text(stands, bool(others)),
            culprits=tuple(stands),
            waits_for=self._waits_for(others or list(self.ranks)),
            phase=self.phases.phase(self.ranks[0].usual.calls) if self.ranks[0].usual else None,
            since_s=self._since([*culprits, *others] or list(self.ranks)),
            advice=_advise(stands),
        )

    def _culprits_of(self, one: Watched) -> list[Stand]:
        """The rank itself, or its worker or threads that are to blame."""
        usual = one.usual
        if usual is not None and self.waits_in_loop(one):
            return [replace(self.stand(one), wait=LOOP)]
        if usual is not None and usual.wait.kind in (LOADER, "child process", "queue", "pipe"):
            workers = [child for child in self.children[one.pid] if child.usual is not None]
            stopped = [child for child in workers if child.usual and child.usual.wait.kind == STOPPED]
            placed = [
                child for child in workers if child.usual and child.usual.place and child.usual.wait.kind != "queue"
            ]
            to_blame = (stopped or placed)[:1]
            if to_blame:
                return [replace(self.stand(to_blame[0]), rank=one.member.rank)]
        if usual is not None and usual.wait.kind in ("queue", "lock", "future", "thread"):
            thread = self._thread_to_blame(one)
            if thread is not None:
                main = self.stand(one)
                return (
                    [main, self._stand_at(one, thread)] if main.wait == "lock" else [self._stand_at(one, thread), main]
                )
        return [self.stand(one)]

    def _thread_to_blame(self, one: Watched) -> Look | None:
        """One of the user's own threads that waits for something other than work."""
        for looks in one.others.values():
            look = looks[-1]
            if look.place is not None and look.wait.kind not in ("queue", COMPUTING):
                return look
        return None

    def stand(self, one: Watched, *, wait: str | None = None) -> Stand:
        usual = one.usual
        if usual is None:
            return Stand(
                rank=one.member.rank, host=self.training.host, pid=one.pid, role=one.member.role,
                wait=wait or (GONE if one.is_gone else "unknown"),
            )  # fmt: skip
        return replace(self._stand_at(one, usual), wait=wait or usual.wait.kind)

    def _stand_at(self, one: Watched, look: Look) -> Stand:
        place = look.place or (None, None, None)
        file, line, function = place
        return Stand(
            rank=one.member.rank,
            host=self.training.host,
            pid=one.pid,
            role=one.member.role,
            file=file,
            line=line,
            function=function,
            snippet=self.source.line(file, line) if file is not None and line is not None else None,
            wait=look.wait.kind,
            wait_detail=look.wait.detail,
            idle_s=None if one.idle_s is None else round(one.idle_s, 3),
            cpu_ratio=round(one.cpu_ratio, 3),
            stack=tuple(f"{call.file}:{call.line} {call.function}" for call in look.calls[:40]),
        )

    def _since(self, ranks: Sequence[Watched]) -> float | None:
        """The longest time that any of them has not run, or the window if one wakes up now and then."""
        return max([self.elapsed_s, *(one.idle_s for one in ranks if one.idle_s is not None)])

    def _waits_for(self, ranks: Sequence[Watched]) -> str | None:
        waits = Counter(replace(one.usual.wait, ends_s=None) for one in ranks if one.usual is not None)
        if not waits:
            return None
        wait = max(waits, key=lambda key: waits[key])
        return f"{wait.kind}: {wait.detail}" if wait.detail else wait.kind

    def _judge_moving(self, moving: Sequence[Watched], stuck: Sequence[Watched]) -> Judgement:
        parts = {part for one in moving if (part := self.part_of(one)) is not None}
        ranks = _ranks_text([one.member.rank for one in moving])
        for part in ("saving", "compiling", "starting"):
            if part in parts:
                verdict: Verdict = part  # type: ignore[assignment]
                return Judgement(verdict=verdict, reason=f"{ranks} {part}")
        outside = [one for one in stuck if one.usual is not None and one.usual.wait.kind != COLLECTIVE]
        if outside and len(self.ranks) > 1 and all(not self.moves(one) or one in stuck for one in self.ranks):
            return self._hung(outside)
        if all(self._is_before_training(one) for one in moving):
            return Judgement(verdict="starting", reason=f"{ranks} has not begun to train", phase="start")
        causes = self._weigh(moving)
        findings = self._places(causes)
        slow = next((cause for cause in causes if cause.is_slow), None)
        if slow is None:
            phases = Counter(self.phases.phase(look.calls) for one in moving for look in one.looks)
            phase = max(phases, key=lambda name: phases[name], default=None)
            return Judgement(verdict="healthy", reason="its ranks compute", phase=phase, findings=findings)
        look = usual_look(slow.looks) or slow.looks[-1]
        culprits = (self._stand_at(slow.rank, look),) if len(self.ranks) > 1 and slow.kind != THREADS else ()
        return Judgement(
            verdict="slow",
            reason=self._slow_text(slow, findings),
            phase=self.phases.phase(look.calls),
            culprits=culprits,
            findings=findings,
        )

    def _is_before_training(self, one: Watched) -> bool:
        """Whether most looks found it before a loop that trains, as far as the source shows."""
        befores = [
            any(self.source.is_before_training(call.file, call.line) for call in look.calls if call.is_users)
            and self.phases.phase(look.calls) != VALIDATION
            for look in one.looks
        ]
        return sum(befores) > len(befores) / 2

    def _weigh(self, moving: Sequence[Watched]) -> list[Cause]:
        return weigh_causes(
            self.ranks, moving, self.children, self.phases,
            lambda one, look: self.is_helped(one, look.wait),
        )  # fmt: skip

    def _places(self, causes: Sequence[Cause]) -> tuple[SlowPlace, ...]:
        """Where the time goes, by function, the largest share of each cause first."""
        places = []
        for cause in causes:
            if cause.kind in (STRAGGLER, THREADS):
                continue
            counts = Counter(
                (
                    self.phases.phase(look.calls) if cause.kind != LOADER else "input_wait",
                    *(call[:3] if (call := self.phases.place(look)) is not None else (None, None, None)),
                    look.wait.kind,
                )
                for look in cause.looks
            )
            functions: Counter[tuple[str | None, str | None]] = Counter()
            for (_, file, _, function, _), count in counts.items():
                functions[file, function] += count
            ((most, most_count),) = functions.most_common(1)
            phase, file, line, function, wait = max(
                (p for p in counts if (p[1], p[3]) == most), key=lambda p: counts[p]
            )
            share_ratio = round(cause.seen_ratio * most_count / len(cause.looks), 3)
            rank = cause.rank.member.rank
            places.append(
                SlowPlace(
                    phase=phase, share_ratio=share_ratio, rank=rank, file=file, line=line, function=function, wait=wait
                )
            )
        return tuple(places[:MOST_PLACES])

    def _slow_text(self, slow: Cause, findings: Sequence[SlowPlace]) -> str:
        who = _ranks_text([slow.rank.member.rank])
        if slow.kind == STRAGGLER:
            return f"the others wait for {who}, by {slow.seen_ratio:.0%} of the time longer than it waits for them"
        if slow.kind == THREADS:
            return f"{slow.seen_ratio:.0f} threads want to run for each core: set fewer threads"
        place = findings[0]
        does, leads = _DOES.get(slow.kind, (say_wait(place.wait, None), " in "))
        where = "" if place.file is None else f"{leads}{place.function} ({os.path.basename(place.file)}:{place.line})"
        return f"{who} {does} for {slow.seen_ratio:.0%} of the time{where}"


_DOES = {
    OUTSIDE: ("runs code outside the model", " in "),
    VALIDATION: ("validates", " in "),
    LOADING: ("prepares batches", " in "),
    TORCH_LOADER: ("runs torch's loader", " in "),
    LOADER: ("waits for its loader workers", "; they are in "),
    GIL: ("waits for the interpreter's lock", "; other threads take it in "),
}


def _part(calls: Sequence[PythonCall]) -> str | None:
    for call in calls:
        if call.module.startswith(_COMPILING):
            return "compiling"
        if (call.module, call.function) in SAVING:
            return "saving"
        if (call.module, call.function) in _STARTING or call.module.startswith("importlib"):
            return "starting"
        if call.module.startswith("torch.distributed") and call.function in JOINING:
            return "starting"
    names = [call.function for call in calls if call.is_users and call.function != "<module>"]
    return "saving" if any(_SAVE_NAME.search(name) for name in names[:2]) else None


def differing(stands: Sequence[Stand], branched: Sequence[bool]) -> list[int]:
    """Those that are not where the others are: ranks that do not wait for others at all, else those in a branch on the
    rank, else those whose line fewest share; empty if all share one."""
    outside = [at for at, stand in enumerate(stands) if stand.wait != COLLECTIVE]
    if len(outside) == 1 or 0 < len(outside) < len(stands):
        return outside
    inside = [at for at, is_branched in enumerate(branched) if is_branched]
    if 0 < len(inside) < len(stands):
        return inside
    places = Counter((stand.file, stand.line) for stand in stands)
    if len(places) < 2:
        return []
    least = min(places.values())
    return [at for at, stand in enumerate(stands) if places[stand.file, stand.line] == least]


def _ranks_text(ranks: Sequence[int | None]) -> str:
    known = [str(rank) for rank in ranks if rank is not None]
    if not known:
        return "the training process"
    return f"rank {known[0]}" if len(known) == 1 else f"ranks {', '.join(known)}"


def _hang_text(stands: Sequence[Stand], has_others: bool) -> str:
    if not stands:
        return "all ranks wait in one place"
    first = stands[0]
    if len(stands) > 1 and all(stand.wait == COLLECTIVE for stand in stands):
        places = (f"{_ranks_text([stand.rank])} in {stand.wait_detail}" for stand in stands[:4])  # words: ok
        return f"ranks wait in different places: {', '.join(places)}"
    who = _ranks_text([first.rank])
    if first.role == WORKER:
        who = f"a loader worker of {who}"
    return f"{who} {say_wait(first.wait, first.wait_detail)}" + (", and the others wait for it" if has_others else "")


_ADVICE = {
    COLLECTIVE: "Compare how many batches each rank has, and look for a collective in a branch that some ranks skip.",
    LOADER: "Look at what the workers wait for; run with num_workers=0 to see the same wait in the main process.",
    "lock": "Find the thread that holds the lock: it is waiting too, or it ended without releasing the lock.",
    "queue": "Nothing puts items into the queue: check whether its producer ended, and why.",
    LOOP: "The loop waits for something that does not happen: add a time limit, and print what the loop waits for.",
    "FIFO": "No process has the other end open: start its reader or writer, or open the FIFO without blocking.",
    "stdin": "The process waits for input: run it with </dev/null, or without the prompt.",
    STOPPED: "Find out what stopped the process, then continue it with kill -CONT.",
    DEVICE: "A disk or a network file system does not respond: look at the kernel's log.",
    "child process": "Look at what the child waits for.",
    "socket": "The other end does not respond: give the connection a timeout.",
}


def _advise(stands: Sequence[Stand]) -> tuple[str, ...]:
    kinds = dict.fromkeys(stand.wait for stand in stands) if stands else {COLLECTIVE: None}
    return tuple(_ADVICE[kind] for kind in kinds if kind in _ADVICE)
