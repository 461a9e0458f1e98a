"""Steps that hosts share -> how far each host's wall clock is ahead, and how much faster it runs.

Nobody leaves a synchronous collective before the last rank has come, and all leave within its transfer. So the same
step's exchange ends on two hosts at the same moment, up to that transfer, and what their clocks show then differs by
their offset. A line through many such differences gives offset and drift.

Wall clocks alone compare nothing here: without shared steps the offset is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hotloop.core.analysis import RankAnalysis
from hotloop.core.hosts import HostClock

from .clock_line import MOST_DRIFT_PPM, ClockLine, fit_line
from .process import ProcessAnalysis
from .segments import IntColumn

LEAST_BOUND_NS = 1e6
"""Ends that scatter by more than a step, and by more than this, are not those of one exchange."""
WALL_UNIT_NS = 1_000
"""Two clocks are read one after the other when a recording begins."""

UNSHARED = "its ranks share no step with collectives with those of the other hosts"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """One host's clock on the way to the reference's: the lines to be subtracted, one after another."""

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

    The earliest rank tells: the others only took longer to note the same moment.
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

    Each group holds ranks of one host and one launch. Of all groups of two hosts that may have trained together, those
    whose steps fit best tell: others of the same form (an attempt of one host beside another attempt of the other) end
    at times that have nothing to do with each other. A host that shares no step with the first one is compared with
    those that do.
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

    Every moment of a step's end is tried and the one with the least spread taken: which one the exchange belongs to is
    the training's own affair (DDP exchanges in backward, others just before the optimizer).
    """
    if not may_train_together(a.processes, b.processes):
        return None
    _, at, beside = np.intersect1d(a.row, b.row, assume_unique=True, return_indices=True)
    # The first step compiles, connects and allocates, on every rank in its own time.
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
    """Whether its steps wait for those of other ranks, as far as it was seen."""
    rank = process.rank
    return rank.ddp is not None or rank.model_is_sharded is True or rank.mean["collectives"] > 0


def transfer_bound_ns(rank: RankAnalysis) -> float:
    """How long an exchange may take from the last rank's coming to the last one's leaving, as one rank saw it.

    What it does not hide of DDP's communication, else a collective of its own, else a backward. On an accelerator the
    host runs ahead of the device: there it is a whole step.
    """
    if rank.device_type != "cpu":
        return rank.step_mean_ns
    if rank.ddp is not None and rank.ddp.exposed_comm_ns is not None:
        return rank.ddp.exposed_comm_ns
    collectives, communication_ns = rank.mean["collectives"], rank.mean["communication_ns"]
    return communication_ns / collectives if collectives > 0 and communication_ns > 0 else rank.mean["backward_ns"]


def corrected_s(process: ProcessAnalysis, wall_s: float | None, clocks: dict[str, Clock]) -> float | None:
    """A time of a process's wall clock on the reference's, in s; None where either is unknown."""
    clock = clocks.get(process.rank.host)
    return None if wall_s is None or clock is None else clock.correct(wall_s * 1e9) * 1e-9


def describe_hosts(processes: Together, clocks: dict[str, Clock]) -> tuple[HostClock, ...]:
    """The hosts of a training in the order of their ranks; offsets are against the first of them."""
    hosts = list(dict.fromkeys(p.rank.host for p in processes))
    reference = clocks.get(hosts[0])
    return tuple(_describehost_of(name, processes, clocks.get(name), reference, at=hosts.index(name)) for name in hosts)


def _describehost_of(
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

    Two machines may both be called 'localhost'. Then launchers of one name have ranks of one training with the same
    local rank, which no host has twice.
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
