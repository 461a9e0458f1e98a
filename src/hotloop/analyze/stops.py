"""Hosts whose ranks break off while others go on -> which ones, when, and the steps that still compare all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hotloop.core.hosts import HostClock
from hotloop.core.recording import FIELD
from hotloop.core.report import Health

from .attempts import Processes, name_ranks
from .process import ProcessAnalysis, Recording, analyze_process
from .segments import IntColumn
from .source import SourceFiles

SILENT_NS = 30_000_000_000
"""While the others still train, a host is late to write for so long before it counts as gone (a network disk)."""

AnalyzePart = Callable[[ProcessAnalysis, range], ProcessAnalysis | None]
"""The same process as if its recording held only these rows; None where they hold no step."""


def describe_stops(processes: Processes, hosts: Sequence[HostClock]) -> tuple[HostClock, ...]:
    """The hosts, with those whose ranks all broke off while others went on or could still say how they ended.

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
    """Only steps of the same ranks, where a host stopped and others went on in the same processes; and a line on it.

    The step in which they waited for it would count as their waiting, and the host would be the straggler. What there
    is more of is kept: the steps before it stopped, or those after the wait.
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
        "others, in which ranks waited for it or fewer took part, are left out"
    )
    return found, (Health(level="warning", message=message),)
