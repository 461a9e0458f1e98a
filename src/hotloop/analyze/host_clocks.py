"""Steps that hosts share -> how far each host's wall clock is ahead, and how much faster it runs.

Nobody leaves a synchronous collective before the last rank has come, and all leave within its transfer. So the same
step's exchange ends on two hosts at the same moment, up to that transfer, and what their clocks show then differs by
their offset. A line through many such differences gives offset and drift (Theil-Sen, through medians of blocks).

Wall clocks alone compare nothing here: without shared steps the offset is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hotloop.core.analysis import RankAnalysis
from hotloop.core.hosts import HostClock

from .process import ProcessAnalysis
from .segments import IntColumn

FEWEST_STEPS = 8
MOST_BLOCKS = 32
BLOCK_STEPS = 6
"""A block has at least so many steps: the median of fewer is as restless as they are."""
FEWEST_BLOCKS = 8
"""Fewer tell no drift."""
SIGNIFICANT = 4.0
"""A drift that many standard errors from 0 is told."""
MOST_DRIFT_PPM = 1_000.0
"""No clock drifts faster (the kernel slews by 500 ppm at most): the steps do not belong together."""
WALL_UNIT_NS = 1_000
"""Two clocks are read one after the other when a recording begins."""
SPREAD_OF_MAD = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""

UNSHARED = "its ranks share no step with collectives with those of the other hosts"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Difference of two clocks: ``offset_ns`` at ``middle_ns`` of the first one, which the other gains by ``drift``."""

    offset_ns: float
    drift: float
    """ns per ns; 0 where it is not told from 0."""
    middle_ns: float
    uncertainty_ns: float
    """Of the line anywhere between the first and the last difference, without the transfer."""
    steps_count: int


def fit_line(at_ns: npt.ArrayLike, difference_ns: npt.ArrayLike) -> Line | None:
    """A line through n differences of two clocks (ns) at times of the first one (ns, ascending); None with too few.

    Robust: up to a quarter of the steps may have ended late on one side. The uncertainty is half of the middle half of
    the residuals, which is how far apart the ends of one exchange usually are, plus SIGNIFICANT standard errors of
    their median, and of the slope over half of the time.
    """
    at, difference = np.asarray(at_ns, dtype=np.float64), np.asarray(difference_ns, dtype=np.float64)
    count = len(at)
    if count < FEWEST_STEPS:
        return None
    base, middle = float(np.median(difference)), (at[0] + at[-1]) / 2
    x, y = at - middle, difference - base
    blocks = np.array_split(np.arange(count), max(1, min(MOST_BLOCKS, count // BLOCK_STEPS)))
    block_x = np.array([np.median(x[one]) for one in blocks])
    block_y = np.array([np.median(y[one]) for one in blocks])
    drift = error = 0.0
    if len(blocks) >= FEWEST_BLOCKS:
        i, j = np.triu_indices(len(blocks), 1)
        apart = block_x[j] > block_x[i]
        slope = float(np.median((block_y[j] - block_y[i])[apart] / (block_x[j] - block_x[i])[apart]))
        left = block_y - slope * block_x
        # Not the median deviation: of few blocks, those that a busy machine held up together feign a slope.
        error = float(np.sqrt(np.sum((left - left.mean()) ** 2) / (len(left) - 2))) / max(
            1.0, float(np.sqrt(np.sum((block_x - block_x.mean()) ** 2)))
        )
        drift = slope if abs(slope) > SIGNIFICANT * error else 0.0
    left = y - drift * x
    low, high = np.percentile(left, (25, 75))
    # 1.2533: standard error of the median over that of the mean, of a normal distribution.
    median_error = 1.2533 * SPREAD_OF_MAD * float(np.median(np.abs(left - np.median(left)))) / np.sqrt(count)
    return Line(
        offset_ns=base + float(np.median(left)),
        drift=drift,
        middle_ns=float(middle),
        uncertainty_ns=float(high - low) / 2 + SIGNIFICANT * (float(median_error) + error * float(at[-1] - at[0]) / 2),
        steps_count=count,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """One host's clock on the way to the reference's: the lines to be subtracted, one after another."""

    lines: tuple[Line, ...]
    uncertainty_ns: float

    def correct(self, wall_ns: float) -> float:
        """A time of this host's wall clock as the reference's would show it, ns since 1970."""
        for line in self.lines:
            wall_ns -= line.offset_ns + line.drift * (wall_ns - line.offset_ns - line.middle_ns)
        return wall_ns


Together = Sequence[ProcessAnalysis]
"""Ranks of one host that trained together."""


def align_hosts(groups: Sequence[Together]) -> dict[str, Clock]:
    """The clocks of all hosts that can be compared with the first group's host, by host.

    Each group holds ranks of one host and one launch. Of all groups of two hosts that may have trained together, those
    whose steps fit best tell: others of the same form (an attempt of one host beside another attempt of the other) end
    at times that have nothing to do with each other.
    """
    if not groups:
        return {}
    known = {host_of(groups[0]): Clock(lines=(), uncertainty_ns=0.0)}
    joined = True
    while joined:
        joined = False
        best: tuple[float, str, Clock] | None = None
        for other in groups:
            if host_of(other) in known:
                continue
            for one in groups:
                clock = known.get(host_of(one))
                line = None if clock is None or not may_train_together(one, other) else compare_clocks(one, other)
                if clock is None or line is None:
                    continue
                uncertainty_ns = clock.uncertainty_ns + line.uncertainty_ns
                if best is None or uncertainty_ns < best[0]:
                    found = Clock(lines=(line, *clock.lines), uncertainty_ns=uncertainty_ns)
                    best = uncertainty_ns, host_of(other), found
        if best is not None:
            known[best[1]], joined = best[2], True
    return known


def may_train_together(a: Together, b: Together) -> bool:
    """Whether the ranks of two groups can be of one launch: its size, different ranks, and no other job's name."""
    sizes = {p.rank.world_size for p in (*a, *b)}
    ranks = [p.rank.rank for p in (*a, *b)]
    names = {p.run_id for p in (*a, *b) if p.run_id is not None}
    return len(sizes) == 1 and len(set(ranks)) == len(ranks) and None not in ranks and len(names) <= 1


def compare_clocks(a: Together, b: Together) -> Line | None:
    """How far the clock of b's host is ahead of that of a's; None without shared steps that end together.

    Every moment of a step's end is tried and the one with the least spread taken: which one the exchange belongs to is
    the training's own affair (DDP exchanges in backward, others just before the optimizer).
    """
    if not all(map(exchanges, (*a, *b))):
        return None
    fits = [line for mark in range(3) if (line := _fit_marks(a, b, mark)) is not None]
    if not fits:
        return None
    line = min(fits, key=lambda one: one.uncertainty_ns)
    step_ns = min(p.rank.step_mean_ns for p in (*a, *b))
    if abs(line.drift) * 1e6 > MOST_DRIFT_PPM or line.uncertainty_ns > max(step_ns, 1e6):
        return None
    transfer_ns = min(transfer_bound_ns(p.rank) for p in (*a, *b))
    return Line(
        offset_ns=line.offset_ns,
        drift=line.drift,
        middle_ns=line.middle_ns,
        uncertainty_ns=line.uncertainty_ns + transfer_ns + WALL_UNIT_NS,
        steps_count=line.steps_count,
    )


def host_of(processes: Together) -> str:
    return processes[0].rank.host


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


def _fit_marks(a: Together, b: Together, mark: int) -> Line | None:
    """The earliest rank of each host tells: the others only took longer to note the same moment."""
    one, other = _earliest(a, mark), _earliest(b, mark)
    if one is None or other is None:
        return None
    _, at, beside = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    # The first step compiles, connects and allocates, on every rank in its own time.
    first, second = one[1][at][1:], other[1][beside][1:]
    return fit_line(first, second - first)


def _earliest(processes: Together, mark: int) -> tuple[IntColumn, Floats] | None:
    """Rows that all these processes have, and when the first of them reached the mark, ns since 1970."""
    rows: IntColumn | None = None
    for process in processes:
        if process.anchor_wall_s is None:
            return None
        rows = process.ends.row if rows is None else np.intersect1d(rows, process.ends.row, assume_unique=True)
    if rows is None:
        return None
    times = [
        p.ends.marks_ns[np.searchsorted(p.ends.row, rows), mark] + (p.anchor_wall_s or 0.0) * 1e9 for p in processes
    ]
    earliest: Floats = np.min(times, axis=0)
    return rows, earliest


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
    for (host, launcher), own in launchers.items():
        others = [rest for (name, other), rest in launchers.items() if name == host and other != launcher]
        if any(a[:3] == b[:3] and a[3] != b[3] for rest in others for a in own for b in rest):
            numbers[host, launcher] = 1 + sum(name == host for name, _ in numbers)
    return [
        p if number is None else replace(p, rank=replace(p.rank, host=f"{p.rank.host}#{number}"))
        for p in processes
        for number in (numbers.get((p.rank.host, p.parent_pid)),)
    ]
