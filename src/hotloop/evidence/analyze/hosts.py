"""Hosts of a training -> the offsets of their clocks, which hosts broke off, and what the launchers' restarts cost.

Nobody leaves a synchronous collective before the last rank has arrived, and all leave within its transfer. The same
step's exchange therefore ends on two hosts at the same moment, up to that transfer, and the difference between what
their clocks show is their offset. A line through many such differences gives offset and drift. Wall clocks alone cannot
be compared: without shared steps, the offset is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.core.analysis import RankAnalysis
from hotloop.core.hosts import Attempt, HostClock
from hotloop.core.recording import FIELD
from hotloop.core.report import Health

from .facts import Recording
from .process import ProcessAnalysis, analyze_process
from .segments import IntColumn
from .source import SourceFiles
from .stats import MOST_DRIFT_PPM, ClockLine, fit_line

LEAST_BOUND_NS = 1e6
"""Ends that scatter by more than a step, and by more than this, do not belong to one exchange."""
WALL_UNIT_NS = 1_000
"""Two clocks are read one after the other when a recording begins."""

UNSHARED = "its ranks share no step with collectives with those of the other hosts"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """One host's clock relative to the reference's: the lines to subtract, one after another."""

    lines: tuple[ClockLine, ...]
    uncertainty_ns: float

    def correct(self, wall_ns: float) -> float:
        """A time of this host's wall clock as the reference's would show it, ns since 1970."""
        for line in self.lines:
            wall_ns -= line.offset_ns + line.drift * (wall_ns - line.offset_ns - line.middle_ns)
        return wall_ns


Together = Sequence[ProcessAnalysis]
"""Ranks of one launch, on one host or on several."""


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """Steps that all ranks of one host and launch completed, and when the first of them did, by its wall clock.

    The earliest rank is used: the others only took longer to record the same moment.
    """

    processes: Together
    row: IntColumn
    marks_ns: Floats
    """n x 3 as those of StepEnds, ns since 1970."""

    @property
    def host(self) -> str:
        return self.processes[0].rank.host


def align_hosts(groups: Sequence[Together]) -> dict[str, Clock]:
    """The clocks of all hosts that can be compared with the first group's host, by host.

    Each group contains ranks of one host and one launch. Of all groups of two hosts that may have trained together, the
    pair whose steps fit best is used: others of the same form (an attempt of one host and a different attempt of the
    other) end at unrelated times. A host that shares no step with the first host is compared with hosts that do.
    """
    if not groups:
        return {}
    ends = [found for group in groups if (found := _find_ends(group)) is not None]
    known = {groups[0][0].rank.host: Clock(lines=(), uncertainty_ns=0.0)}
    newest = dict(known)
    while newest:
        best: dict[str, Clock] = {}
        for other in ends:
            for one in ends if other.host not in known else ():
                line = compare_clocks(one, other) if one.host in newest else None
                if line is None:
                    continue
                uncertainty_ns = newest[one.host].uncertainty_ns + line.uncertainty_ns
                if other.host not in best or uncertainty_ns < best[other.host].uncertainty_ns:
                    lines = (line, *newest[one.host].lines)
                    best[other.host] = Clock(lines=lines, uncertainty_ns=uncertainty_ns)
        known |= best
        newest = best
    return known


def _find_ends(processes: Together) -> _Ends | None:
    if not all(exchanges(p) and p.anchor_wall_s is not None for p in processes):
        return None
    rows = processes[0].ends.row
    for process in processes[1:]:
        rows = np.intersect1d(rows, process.ends.row, assume_unique=True)
    times = [p.ends.marks_ns[np.searchsorted(p.ends.row, rows)] + (p.anchor_wall_s or 0.0) * 1e9 for p in processes]
    return _Ends(processes, rows, np.min(times, axis=0))


def may_train_together(a: Together, b: Together) -> bool:
    """Whether the ranks of two groups can be of one launch: its size, different ranks, and no other job's name."""
    sizes = {p.rank.world_size for p in (*a, *b)}
    ranks = [p.rank.rank for p in (*a, *b)]
    names = {p.run_id for p in (*a, *b) if p.run_id is not None}
    return len(sizes) == 1 and len(set(ranks)) == len(ranks) and None not in ranks and len(names) <= 1


def compare_clocks(a: _Ends, b: _Ends) -> ClockLine | None:
    """How far the clock of b's host is ahead of that of a's; None without shared steps that end together.

    Tries every moment of a step's end and takes the one with the least spread, because the training decides which of
    them the exchange belongs to (DDP exchanges in backward, others just before the optimizer).
    """
    if not may_train_together(a.processes, b.processes):
        return None
    _, at, beside = np.intersect1d(a.row, b.row, assume_unique=True, return_indices=True)
    # The first step compiles, connects and allocates, on every rank at its own pace.
    first, second = a.marks_ns[at[1:]], b.marks_ns[beside[1:]]
    fits = [fit_line(first[:, mark], second[:, mark] - first[:, mark]) for mark in range(first.shape[1])]
    line = min((one for one in fits if one is not None), key=lambda one: one.uncertainty_ns, default=None)
    ranks = [p.rank for p in (*a.processes, *b.processes)]
    if line is None or abs(line.drift) * 1e6 > MOST_DRIFT_PPM:
        return None
    if line.uncertainty_ns > max(min(rank.step_mean_ns for rank in ranks), LEAST_BOUND_NS):
        return None
    return replace(line, uncertainty_ns=line.uncertainty_ns + min(map(transfer_bound_ns, ranks)) + WALL_UNIT_NS)


def exchanges(process: ProcessAnalysis) -> bool:
    """Whether its steps wait for those of other ranks, as far as was seen."""
    rank = process.rank
    return rank.ddp is not None or rank.model_is_sharded is True or rank.mean["collectives"] > 0


def transfer_bound_ns(rank: RankAnalysis) -> float:
    """The time that an exchange may take from the last rank's arrival to the last one's departure, as one rank saw it.

    DDP's exposed communication, else a collective of its own, else a backward. On an accelerator, the host runs ahead
    of the device, so there it is a full step.
    """
    if rank.device_type != "cpu":
        return rank.step_mean_ns
    if rank.ddp is not None and rank.ddp.exposed_comm_ns is not None:
        return rank.ddp.exposed_comm_ns
    collectives, communication_ns = rank.mean["collectives"], rank.mean["communication_ns"]
    return communication_ns / collectives if collectives > 0 and communication_ns > 0 else rank.mean["backward_ns"]


def corrected_s(process: ProcessAnalysis, wall_s: float | None, clocks: dict[str, Clock]) -> float | None:
    """A time of a process's wall clock on the reference's, in s; None if either is unknown."""
    clock = clocks.get(process.rank.host)
    return None if wall_s is None or clock is None else clock.correct(wall_s * 1e9) * 1e-9


def describe_hosts(processes: Together, clocks: dict[str, Clock]) -> tuple[HostClock, ...]:
    """The hosts of a training in the order of their ranks; offsets are relative to the first of them."""
    hosts = list(dict.fromkeys(p.rank.host for p in processes))
    reference = clocks.get(hosts[0])
    return tuple(_describe_host(name, processes, clocks.get(name), reference, at=hosts.index(name)) for name in hosts)


def _describe_host(
    name: str, processes: Together, clock: Clock | None, reference: Clock | None, *, at: int
) -> HostClock:
    ranks = tuple(p.rank.rank for p in processes if p.rank.host == name and p.rank.rank is not None)
    if at == 0:
        return HostClock(name=name, ranks=ranks, offset_ns=0, drift_ppm=None, uncertainty_ns=0, basis="the reference")
    if clock is None or reference is None:
        return HostClock(name=name, ranks=ranks, offset_ns=None, drift_ppm=None, uncertainty_ns=None, basis=UNSHARED)
    lines = (*clock.lines, *reference.lines)
    steps = min(line.steps_count for line in lines)
    drift = sum(line.drift for line in clock.lines) - sum(line.drift for line in reference.lines)
    offset = sum(line.offset_ns for line in clock.lines) - sum(line.offset_ns for line in reference.lines)
    return HostClock(
        name=name,
        ranks=ranks,
        offset_ns=round(offset),
        drift_ppm=drift * 1e6 if drift else None,
        uncertainty_ns=round(clock.uncertainty_ns + reference.uncertainty_ns),
        basis=f"ends of {steps} steps that both share",
    )


def tell_hosts_apart(processes: Sequence[ProcessAnalysis]) -> list[ProcessAnalysis]:
    """The same processes; hosts that share a name get a number.

    Two machines may both be called 'localhost'. In that case, launchers of one name have ranks of one training with the
    same local rank, which no host has twice.
    """
    launchers: dict[tuple[str, int | None], set[tuple[int, int, int | None, int | None]]] = {}
    for p in processes:
        if p.rank.local_rank is not None and p.rank.world_size > 1:
            key = p.rank.world_size, p.rank.restart, p.rank.local_rank, p.rank.rank
            launchers.setdefault((p.rank.host, p.parent_pid), set()).add(key)
    numbers: dict[tuple[str, int | None], int] = {}
    for (host, launcher), own in sorted(launchers.items(), key=lambda one: min(rank or 0 for *_, rank in one[1])):
        others = [rest for (name, other), rest in launchers.items() if name == host and other != launcher]
        if any(a[:3] == b[:3] and a[3] != b[3] for rest in others for a in own for b in rest):
            numbers[host, launcher] = 1 + sum(name == host for name, _ in numbers)
    return [
        p if number is None else replace(p, rank=replace(p.rank, host=f"{p.rank.host}#{number}"))
        for p in processes
        for number in (numbers.get((p.rank.host, p.parent_pid)),)
    ]


Processes = Sequence[ProcessAnalysis]


def describe_attempts(attempts: Sequence[Processes], clocks: dict[str, Clock]) -> tuple[Attempt, ...]:
    """Every attempt, with what was lost between it and the previous one."""
    found = [_describe(attempts[0])]
    for before, after in pairwise(attempts):
        this = _describe(after)
        repeated, basis = _count_repeated(found[-1], this, before)
        longest = max(before, key=lambda p: p.rank.steps)
        kept = None if repeated is None else max(0, longest.rank.steps - repeated)
        found.append(
            replace(
                this,
                gap_ns=_find_gap(before, after, clocks),
                repeated_steps=repeated,
                repeated_ns=None if kept is None else _time_after(longest, kept),
                repeated_basis=basis,
            )
        )
    return tuple(found)


def _describe(processes: Processes) -> Attempt:
    counted = [one.state_steps for p in processes for one in p.rank.optimizers if one.state_steps is not None]
    return Attempt(
        restart=max(p.rank.restart for p in processes),
        world_size=max(p.rank.world_size for p in processes),
        ranks_count=len(processes),
        hosts=tuple(dict.fromkeys(p.rank.host for p in processes)),
        steps=max(p.rank.steps for p in processes),
        # The state was read after the first step.
        first_step=max(0, max(counted) - 1) if counted else None,
        trained_ns=max(p.trained_ns for p in processes),
    )


def _count_repeated(before: Attempt, this: Attempt, processes: Processes) -> tuple[int | None, str | None]:
    """Steps of the previous attempt that are repeated, and how that is known."""
    if before.first_step is not None and this.first_step is not None:
        return max(0, before.first_step + before.steps - this.first_step), "optimizer state"
    saved = [p.ends.saved_after for p in processes if p.ends.saved_after is not None]
    return (max(0, before.steps - max(saved)), "last checkpoint") if saved else (None, None)


def _time_after(process: ProcessAnalysis, done: int) -> int:
    """From the end of this many steps to the end of the last one, ns."""
    ends = process.ends
    begin = ends.at_step(done) if done >= int(ends.done[0]) else float(ends.marks_ns[-1, 0]) - process.trained_ns
    return max(0, round(float(ends.marks_ns[-1, 0]) - begin))


def _find_gap(before: Processes, after: Processes, clocks: dict[str, Clock]) -> int | None:
    """From the last step of one attempt to the first of the next, ns: on the clock of a host of both if there is one,
    else on clocks that can be compared."""
    gaps = []
    for host in dict.fromkeys(p.rank.host for p in after):
        ended = [p.end_wall_s for p in before if p.rank.host == host and p.end_wall_s is not None]
        began = [p.begin_wall_s for p in after if p.rank.host == host and p.begin_wall_s is not None]
        if ended and began:
            gaps.append(min(began) - max(ended))
    if not gaps:
        ended = [t for p in before if (t := corrected_s(p, p.end_wall_s, clocks)) is not None]
        began = [t for p in after if (t := corrected_s(p, p.begin_wall_s, clocks)) is not None]
        gaps = [min(began) - max(ended)] if ended and began else []
    return round(max(0.0, min(gaps)) * 1e9) if gaps else None


def warn_of_restarts(attempts: Sequence[Attempt]) -> tuple[Health, ...]:
    """Says that the figures are of the last attempt alone, how many ranks each had, and what the restarts cost."""
    if len(attempts) < 2:
        return ()
    earlier, last = attempts[:-1], attempts[-1]
    steps = max(one.steps for one in earlier)
    text = "1 earlier attempt" if len(earlier) == 1 else f"{len(earlier)} earlier attempts"
    most = f"up to {steps} step{'' if steps == 1 else 's'} per process"
    is_or_are = "is" if len(earlier) == 1 else "are"
    message = f"training was restarted: {text} ({most}) {is_or_are} not included in the figures"
    if len({one.world_size for one in attempts}) > 1:
        message += "; world size " + ", then ".join(str(one.world_size) for one in attempts)
    cost = describe_cost(attempts)
    gone = [host for host in dict.fromkeys(host for one in earlier for host in one.hosts) if host not in last.hosts]
    new = [host for host in last.hosts if host not in attempts[0].hosts]
    moved = [f"{', '.join(hosts)} {word}" for hosts, word in ((gone, "left"), (new, "joined")) if hosts]
    return (Health(level="warning", message="; ".join((message, *moved, *((cost,) if cost else ())))),)


def describe_cost(attempts: Sequence[Attempt]) -> str | None:
    """The cost of the restarts, in words; None if nothing about it is known."""
    restarts = attempts[1:]
    gaps = [one.gap_ns for one in restarts if one.gap_ns is not None]
    parts = []
    if gaps:
        parts.append(f"{sum(gaps) * 1e-9:.3g} s without a step")
    again = [(one.repeated_steps, one.repeated_ns or 0) for one in restarts if one.repeated_steps is not None]
    if len(again) == len(restarts) and again:
        count = sum(steps for steps, _ in again)
        taken = f", {sum(ns for _, ns in again) * 1e-9:.3g} s" if count else ""
        assumed = any(one.repeated_basis == "last checkpoint" for one in restarts)
        parts.append(
            f"{count:,} step{'' if count == 1 else 's'} repeated{taken}"
            + (" if the last checkpoint was loaded" if assumed else "")
        )
    elif restarts:
        parts.append("the number of repeated steps is unknown")
    return f"restarts cost {' and '.join(parts)}" if gaps or again else None


def name_ranks(ranks: Sequence[int]) -> str:
    """
    >>> name_ranks((4, 5, 6, 7)), name_ranks((2,)), name_ranks((0, 2, 3))
    ('ranks 4-7', 'rank 2', 'ranks 0, 2-3')
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    named = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'' if len(ranks) == 1 else 's'} {named}"


SILENT_NS = 30_000_000_000
"""While the others still train, a host may be this late to write before it counts as gone (a network disk)."""

AnalyzePart = Callable[[ProcessAnalysis, range], ProcessAnalysis | None]
"""The same process as if its recording contained only these rows; None if they contain no step."""


def describe_stops(processes: Processes, hosts: Sequence[HostClock]) -> tuple[HostClock, ...]:
    """The hosts, with those whose ranks all broke off while others went on or could still report how they ended.

    The time is on the others' clocks: how long they went on after the last step of the host that stopped.
    """
    return tuple(_find_stop(one, processes) for one in hosts)


def _find_stop(host: HostClock, processes: Processes) -> HostClock:
    own = [p for p in processes if p.rank.host == host.name]
    others = [p for p in processes if p.rank.host != host.name]
    if not others or any(p.closed or p.ended is not None for p in own):
        return host
    last = max(p.rank.steps for p in own)
    went_on = [p for p in others if p.rank.steps > last + 1 or p.ended not in (None, "completed")]
    later_ns = max(p.last_sign_ns - p.ends.at_step(last) for p in others)
    is_running = not any(p.closed or p.ended is not None for p in others)
    if not went_on or (is_running and later_ns < SILENT_NS):
        return host
    return replace(host, stopped_after_step=last, stopped_before_end_ns=max(0, round(later_ns)))


def warn_of_stops(hosts: Sequence[HostClock]) -> tuple[Health, ...]:
    return tuple(
        Health(
            level="warning",
            message=f"host {one.name} ({name_ranks(one.ranks)}) stopped after step {one.stopped_after_step:,}, "
            f"{(one.stopped_before_end_ns or 0) * 1e-9:.3g} s before the end, and recorded no end: killed, or crashed",
        )
        for one in hosts
        if one.stopped_after_step is not None
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a recording."""

    process: Mapping[str, Any]
    rows: IntColumn
    facts: Sequence[Mapping[str, Any]]
    lost_rows: int
    closed: bool


def analyze_part(
    recordings: Mapping[tuple[Any, ...], Recording], files: SourceFiles, process: ProcessAnalysis, rows: range
) -> ProcessAnalysis | None:
    """AnalyzePart, from all recordings of the run by ``ProcessAnalysis.identity``."""
    one = recordings[process.identity]
    index = one.rows[:, FIELD["index"]]
    kept = (index >= rows.start) & (index < rows.stop)
    is_end = bool(kept[-1])
    found = analyze_process(_Part(one.process, one.rows[kept], one.facts, one.lost_rows, one.closed and is_end), files)
    return None if found is None else replace(found, rank=replace(found.rank, host=process.rank.host))


def leave_out_stops(
    processes: tuple[ProcessAnalysis, ...], hosts: Sequence[HostClock], analyze: AnalyzePart
) -> tuple[tuple[ProcessAnalysis, ...], tuple[Health, ...]]:
    """Only steps of the same ranks, if a host stopped and others went on in the same processes; and a line about it.

    The step in which they waited for it would count as their waiting, and the host would be the straggler. The larger
    part is kept: the steps before it stopped, or those after the wait.
    """
    stopped = {one.name: one.stopped_after_step for one in hosts if one.stopped_after_step is not None}
    last, most = min(stopped.values(), default=0), max(p.rank.steps for p in processes)
    if not stopped or most <= last + 1:
        return processes, ()
    is_before = 2 * last >= most
    stayed = tuple(p for p in processes if is_before or p.rank.host not in stopped)
    ends = next(p.ends for p in processes if p.rank.host not in stopped)
    # The row that ends the last step of all ranks, or the one in which the others waited.
    row = int(ends.row[ends.done <= last][-1]) if is_before else int(ends.row[ends.done > last][0])
    parts = [analyze(p, range(row + 1) if is_before else range(row + 1, 1 << 60)) for p in stayed]
    found = tuple(p for p in parts if p is not None)
    if len(found) < len(stayed):
        return processes, ()
    steps = max(p.rank.steps for p in found)
    message = (
        f"the figures cover the {steps:,} steps {'before' if is_before else 'after'} a host stopped; {most - steps:,} "
        "other steps, in which ranks waited for that host or fewer ranks took part, are left out"
    )
    return found, (Health(level="warning", message=message),)
