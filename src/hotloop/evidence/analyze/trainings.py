"""All processes of a run -> its trainings: one Analysis for the ranks that belong together, the largest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.hosts import Attempt, HostClock
from hotloop.core.report import Health, MemorySummary

from .facts import Recording
from .hosts import (
    AnalyzePart,
    Clock,
    align_hosts,
    analyze_part,
    corrected_s,
    describe_attempts,
    describe_hosts,
    describe_stops,
    leave_out_stops,
    may_train_together,
    tell_hosts_apart,
    warn_of_restarts,
    warn_of_stops,
)
from .process import ProcessAnalysis, analyze_process, identify
from .source import SourceFiles
from .units import is_drift

SIBLING_SLACK_S = 5.0
"""Children of one process that train within this many seconds of each other train together."""

FULL_HOST_RATIO = 0.9

Clocks = dict[str, Clock]
"""By host, for the hosts that can be compared with the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training of a run. ``processes`` are in the order of ``analysis.ranks``."""

    analysis: Analysis
    processes: tuple[ProcessAnalysis, ...]
    health: tuple[Health, ...]
    hosts: tuple[HostClock, ...] = ()
    attempts: tuple[Attempt, ...] = ()

    @property
    def lead(self) -> ProcessAnalysis:
        return self.processes[0]


@dataclass(frozen=True, slots=True)
class _Group:
    attempts: tuple[tuple[ProcessAnalysis, ...], ...]
    """The launcher restarted the training before each of them except the first."""

    @property
    def processes(self) -> tuple[ProcessAnalysis, ...]:
        return self.attempts[-1]


def analyze_run(recordings: Sequence[Recording]) -> tuple[Training, ...]:
    """The trainings of a run, largest first; none if no process completed a step.

    Ranks of one launch form a training; a restart replaces what came before it; processes without a rank that train at
    the same time (hogwild) are one training; everything else that comes later or runs at the same time is a training of
    its own. Wall clocks of different hosts are compared only as far as shared steps show their offset.
    """
    files = SourceFiles()
    found = [p for recording in recordings if (p := analyze_process(recording, files)) is not None]
    found = tell_hosts_apart(sorted(found, key=_began))
    clocks = align_hosts(_group_by_host(found))
    loose, ranked = _split_hogwild(found)
    ranked.sort(key=lambda p: corrected_s(p, p.begin_wall_s, clocks) or p.begin_wall_s or 0.0)
    groups = [*_supersede_restarts(_group_ranks(ranked, clocks), clocks), *_group_hogwild(loose)]
    again = partial(analyze_part, {identify(one.process): one for one in recordings}, files)
    trainings = [_build_training(group, clocks, again) for group in groups]
    return tuple(sorted(trainings, key=lambda t: -sum(p.trained_ns for p in t.processes)))


def find_lead(recordings: Sequence[Recording], training: Training) -> Recording | None:
    """The recording of the process that leads a training; None if it is not among them."""
    return find_recording(recordings, training.lead)


def find_recording(recordings: Sequence[Recording], process: ProcessAnalysis) -> Recording | None:
    return next((one for one in recordings if identify(one.process) == process.identity), None)


def _began(process: ProcessAnalysis) -> tuple[float, str, int]:
    return process.begin_wall_s or 0.0, process.rank.host, process.rank.pid


def _group_by_host(processes: Sequence[ProcessAnalysis]) -> list[tuple[ProcessAnalysis, ...]]:
    """Ranks of one launch on each host alone, whose clocks are the same."""
    hosts = dict.fromkeys(p.rank.host for p in processes)
    if len(hosts) < 2:
        return []
    alone = [[p for p in processes if p.rank.host == host and p.rank.rank is not None] for host in hosts]
    same = {host: Clock(lines=(), uncertainty_ns=0.0) for host in hosts}
    found = [group.processes for ranked in alone for group in _group_ranks(ranked, same)]
    return sorted(found, key=lambda ranks: ranks[0].rank.rank or 0)


def _split_hogwild(
    processes: Sequence[ProcessAnalysis],
) -> tuple[list[ProcessAnalysis], list[ProcessAnalysis]]:
    """Processes without a rank, with their parent if it trains at the same time; and those with a rank."""
    rankless = [p for p in processes if p.rank.rank is None]
    loose, ranked = list(rankless), []
    for process in processes:
        if process.rank.rank is None:
            continue
        is_parent = process.rank.world_size == 1 and any(
            child.parent_pid == process.rank.pid and child.rank.host == process.rank.host and _overlap(child, process)
            for child in rankless
        )
        if is_parent:
            loose.append(
                replace(
                    process,
                    rank=replace(process.rank, rank=None),
                    timeline=replace(process.timeline, rank=None),
                )
            )
        else:
            ranked.append(process)
    loose.sort(key=_began)
    return loose, ranked


def _group_ranks(processes: Sequence[ProcessAnalysis], clocks: Clocks) -> list[_Group]:
    """Ranks of one launch: the same world size, different ranks, at the same time or of one launcher."""
    groups: list[list[ProcessAnalysis]] = []
    for process in processes:
        homes = [g for g in groups if _belongs(process, g, clocks)]
        if homes:
            # Of two launches at the same time, take the one with the same launcher, else with the same command.
            max(homes, key=lambda g: _kinship(process, g)).append(process)
        else:
            groups.append([process])
    return [_Group(attempts=(tuple(sorted(g, key=lambda p: p.rank.rank or 0)),)) for g in groups]


def _belongs(process: ProcessAnalysis, group: Sequence[ProcessAnalysis], clocks: Clocks) -> bool:
    """Launchers of several hosts count restarts separately: only those of one host must agree."""
    rank = process.rank
    return (
        rank.world_size > 1
        and may_train_together(group, (process,))
        and all(p.rank.restart == rank.restart for p in group if p.rank.host == rank.host)
        and (
            (process.run_id is None and _kinship(process, group)[0])
            or any(_overlap(p, process, clocks) or _lived_together(p, process) for p in group)
        )
    )


def _kinship(process: ProcessAnalysis, group: Sequence[ProcessAnalysis]) -> tuple[bool, bool, bool]:
    """Whether a group contains processes of its launcher, with as many restarts, and with its command."""
    return (
        not _launchers((process,)).isdisjoint(_launchers(group)),
        any(p.rank.restart == process.rank.restart for p in group),
        any(p.argv == process.argv for p in group),
    )


def _launchers(processes: Sequence[ProcessAnalysis]) -> set[tuple[str, int]]:
    return {(p.rank.host, p.parent_pid) for p in processes if p.parent_pid is not None}


def _supersede_restarts(groups: Sequence[_Group], clocks: Clocks) -> list[_Group]:
    """A group that was restarted replaces the attempt before it; the world size may have changed."""
    kept: list[_Group] = []
    for group in groups:
        before = next((g for g in reversed(kept) if _restarts(g.processes, group.processes, clocks)), None)
        if before is None:
            kept.append(group)
            continue
        kept.remove(before)
        kept.append(_Group(attempts=(*before.attempts, *group.attempts)))
    return kept


def _restarts(before: Sequence[ProcessAnalysis], after: Sequence[ProcessAnalysis], clocks: Clocks) -> bool:
    """Whether ``after`` is the next attempt of the job of ``before``.

    Its restart count is higher; or a launcher of torchrun's started both, one after the other: when nodes come or go,
    it starts the ranks again without counting.
    """
    names = {p.run_id for p in (*before, *after)}
    if len(names - {None}) > 1:
        return False
    if max(p.rank.restart for p in after) > max(p.rank.restart for p in before):
        return True
    same_launcher = not _launchers(before).isdisjoint(_launchers(after))
    return (
        same_launcher
        and None not in names
        and not any(_overlap(a, b, clocks) or _lived_together(a, b) for a in before for b in after)
    )


def _group_hogwild(processes: Sequence[ProcessAnalysis]) -> list[_Group]:
    """Processes without a rank that train with the same command, at the same time."""
    groups: list[list[ProcessAnalysis]] = []
    for process in processes:
        home = next((g for g in groups if any(_together(p, process) for p in g)), None)
        if home is None:
            groups.append([process])
        else:
            home.append(process)
    return [_Group(attempts=(tuple(g),)) for g in groups]


def _together(a: ProcessAnalysis, b: ProcessAnalysis) -> bool:
    """The same work at the same time; short children of one process may miss each other by a moment."""
    siblings = a.parent_pid is not None and a.parent_pid == b.parent_pid and a.rank.host == b.rank.host
    return _same_work(a, b) and _overlap(a, b, slack_s=SIBLING_SLACK_S if siblings else 0.0)


def _same_work(a: ProcessAnalysis, b: ProcessAnalysis) -> bool:
    related = a.parent_pid is not None and a.parent_pid in (b.parent_pid, b.rank.pid)
    related = related or (b.parent_pid is not None and b.parent_pid == a.rank.pid)
    return a.argv == b.argv or (related and a.rank.host == b.rank.host)


def _overlap(a: ProcessAnalysis, b: ProcessAnalysis, clocks: Clocks | None = None, slack_s: float = 0.0) -> bool:
    """True if both trained within ``slack_s`` of the same time for a moment; also if that is unknown: a wall clock is
    unknown, or they are on hosts whose clocks cannot be compared."""
    times = [p.begin_wall_s for p in (a, b)] + [p.end_wall_s for p in (a, b)]
    if a.rank.host != b.rank.host:
        times = [corrected_s(p, wall_s, clocks or {}) for p, wall_s in zip((a, b, a, b), times, strict=True)]
    begin_a, begin_b, end_a, end_b = times
    if begin_a is None or begin_b is None or end_a is None or end_b is None:
        return True
    return begin_a < end_b + slack_s and begin_b < end_a + slack_s


def _lived_together(a: ProcessAnalysis, b: ProcessAnalysis) -> bool:
    """Whether a launcher had both at the same time: ranks that never wait for each other may train one after the other,
    while a new attempt starts only once the processes of the previous one are gone."""
    if _launchers((a,)).isdisjoint(_launchers((b,))):
        return False
    start_a, end_a, start_b, end_b = a.anchor_wall_s, a.end_wall_s, b.anchor_wall_s, b.end_wall_s
    if start_a is None or end_a is None or start_b is None or end_b is None:
        return False
    return start_a < end_b and start_b < end_a


def _build_training(group: _Group, clocks: Clocks, analyze_part: AnalyzePart) -> Training:
    attempts = describe_attempts(group.attempts, clocks)
    hosts = describe_stops(group.processes, describe_hosts(group.processes, clocks))
    whole, left_out = leave_out_stops(group.processes, hosts, analyze_part)
    processes = _count_neighbours(whole)
    ranks = tuple(p.rank for p in processes)
    unit, units_per_step = choose_unit(processes)
    health = list(
        dict.fromkeys(
            Health(level=h.level, message=f"{_name(p.rank)}: {h.message}" if len(processes) > 1 else h.message)
            for p in processes
            for h in p.health
        )
    )
    health += (*warn_of_restarts(attempts), *warn_of_stops(hosts))
    health += left_out
    world_size = max(r.world_size for r in ranks)
    if ranks[0].rank is not None and len(ranks) < world_size:
        health.append(
            Health(level="warning", message=f"only {len(ranks)} of {world_size} ranks have a recording with steps")
        )
    health += _describe_full_hosts(processes)
    drift = find_unit_drift(processes, unit)
    if drift is not None:
        first, last = drift
        message = (
            f"work per step drifts: {first:,.0f} {unit}s in the first third of the steady steps, {last:,.0f} in "
            f"the last; rates and times per {unit} are means over all steps and would differ for other steps"
        )
        health.append(Health(level="warning", message=message))
    return Training(
        analysis=Analysis(
            ranks=ranks,
            unit=unit,
            units_per_step=units_per_step,
            accelerator=any(r.device_type != "cpu" for r in ranks),
        ),
        processes=processes,
        health=tuple(health),
        hosts=hosts,
        attempts=attempts,
    )


def _count_neighbours(processes: Sequence[ProcessAnalysis]) -> tuple[ProcessAnalysis, ...]:
    """The processes, each with how many of them train on its host, if no launcher's variable gave the number.

    Processes that the script started itself (hogwild, spawn) share the cores as those of a launcher do.
    """
    hosts = Counter(p.rank.host for p in processes)
    return tuple(
        p
        if p.rank.local_world_size is not None
        else replace(p, rank=replace(p.rank, local_world_size=hosts[p.rank.host]))
        for p in processes
    )


def _describe_full_hosts(processes: Sequence[ProcessAnalysis]) -> list[Health]:
    """A warning for every host that several processes nearly fill together: each of them may look fine alone."""
    return [
        Health(
            level="warning",
            message=f"the processes on {host} may together need {memory.peak_ratio:.0%} of its memory: the sum of "
            "their peaks, which counts shared pages once per process",
        )
        for host, memory in measure_hosts(processes).items()
        if memory.peak_ratio is not None
        and memory.peak_ratio > FULL_HOST_RATIO
        and sum(p.rank.host == host for p in processes) > 1
    ]


def choose_unit(processes: Sequence[ProcessAnalysis]) -> tuple[str, float | None]:
    """The unit of work, and the number of units in one step of the training, over all of its ranks.

    Tokens if they are counted, else samples if steps contain about equally many, else the step itself. Processes
    without a rank step independently: for them, it is the mean of one process.
    """
    tokens, samples = count_units(processes, "token"), count_units(processes, "sample")
    if tokens is not None:
        return "token", tokens
    if samples is not None and not any(p.units.samples_vary for p in processes):
        return "sample", samples
    return "step", 1.0


def count_units(processes: Sequence[ProcessAnalysis], unit: str) -> float | None:
    """Samples or tokens per step of all ranks together; None unless every rank knows them."""
    values = [p.rank.tokens_per_step if unit == "token" else p.rank.samples_per_step for p in processes]
    known = [value for value in values if value]
    if len(known) < len(values):
        return None
    # Processes without a rank step independently: their step is the mean of one process.
    return sum(known) if processes[0].rank.rank is not None else sum(known) / len(known)


def find_unit_drift(processes: Sequence[ProcessAnalysis], unit: str) -> tuple[float, float] | None:
    """Work per step in the first and the last third of the steady steps, if it drifts; counted as in
    ``choose_unit``."""
    drifts = [p.units.tokens_drift if unit == "token" else p.units.samples_drift for p in processes]
    known = [one for one in drifts if one is not None]
    if unit == "step" or len(known) < len(processes) or not is_drift(known):
        return None
    share = 1 if processes[0].rank.rank is not None else len(known)
    return sum(one.first for one in known) / share, sum(one.last for one in known) / share


def _name(rank: RankAnalysis) -> str:
    return f"process {rank.pid}" if rank.rank is None else f"rank {rank.rank}"


def measure_hosts(processes: Sequence[ProcessAnalysis]) -> dict[str, MemorySummary]:
    """Host memory by host; empty if any process's memory is that of an accelerator.

    The peak is the sum of the processes' peaks. These need not have come at the same moment, and shared pages count
    once per process, so it is an upper bound. Unknown for the host if it is for one process.
    """
    if any(p.memory.allocated_bytes is not None or p.memory.reserved_bytes is not None for p in processes):
        return {}
    by_host: dict[str, list[MemorySummary]] = {}
    for process in processes:
        by_host.setdefault(process.rank.host, []).append(process.memory)
    return {host: _add(memories) for host, memories in by_host.items()}


def _add(memories: Sequence[MemorySummary]) -> MemorySummary:
    if len(memories) == 1:
        return memories[0]
    peaks = [m.peak_bytes for m in memories if m.peak_bytes is not None]
    growths = [m.growth_bytes_per_step for m in memories if m.growth_bytes_per_step is not None]
    peak_bytes = sum(peaks) if len(peaks) == len(memories) else None
    total_bytes = max((m.total_bytes for m in memories if m.total_bytes), default=None)
    return MemorySummary(
        peak_bytes=peak_bytes,
        allocated_bytes=None,
        reserved_bytes=None,
        total_bytes=total_bytes,
        peak_ratio=peak_bytes / total_bytes if peak_bytes is not None and total_bytes else None,
        growth_bytes_per_step=sum(growths) if len(growths) == len(memories) else None,
    )
