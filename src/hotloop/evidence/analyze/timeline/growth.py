"""Work and collectives of the ranks of two sides -> GrowthSplit: wait, transfer, and a rest.

Of every window of a step (on the device; without one, the backward pass on the host with the communication after it):

* wait: communication ran, no own work did, and every collective that ran was waiting for another rank to arrive;
* transfer: communication ran, no own work did, and at least one collective had all its ranks;
* the rest: own work, communication that could not be matched, copies, and time in which nothing ran.

They sum to the window, on each side and in the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.core.comparison import REST_TERMS, GrowthSplit
from hotloop.core.graph import DiffTerms, RankCollectives
from hotloop.core.trace import Category, Trace
from hotloop.evidence.analyze.changes import RankSteps, SideSteps, join_ranks, make_term, measure_half_width, sum_terms

from .anatomy import find_host_phases
from .classes import COLLECTIVE_RANGE, Classes, cover_devices
from .collective_report import list_waits
from .intervals import Int64s, Intervals, cover_windows, intersect, overlap_pieces, unite, unite_sets
from .links import Links, match_names
from .steps import StepWindows, assign_device_work

MAX_UNMATCHED_RATIO = 0.1
"""If more than this share of a side's exposed communication is not matched, its wait and transfer are unknown."""
LEAVES = ("wait", "transfer", *REST_TERMS)


@dataclass(frozen=True, slots=True, eq=False)
class RankWork:
    """When one rank worked, cut by step; small enough to send."""

    window: str
    """'device window' or 'backward'."""
    low_ns: Int64s
    """Windows; those of one step may be several."""
    high_ns: Int64s
    step: Int64s
    """Number of the step of each window."""
    work: Intervals
    """Own work: compute on the device, operators of the training's threads on the host."""
    comm: Intervals
    busy: Intervals
    """Work, communication and copies."""


@dataclass(frozen=True, slots=True)
class SideWork:
    """One side: its ranks' work and collectives, in the same order."""

    work: Sequence[RankWork]
    collectives: Sequence[RankCollectives]


def collect_work(trace: Trace, links: Links, classes: Classes, steps: StepWindows) -> RankWork | None:
    """The input of ``split_growth`` from one rank; None without device work and without a backward pass."""
    covers = cover_devices(trace, links, classes)
    index = np.array(steps.index, dtype=np.int64)
    if not covers:
        return _collect_host(trace, links, steps, index)
    cover = covers[0]
    seen = assign_device_work(trace, links, cover.work, steps)
    at = np.flatnonzero(seen.has_window)
    if len(at) > 1:
        at = at[:-1]  # the last window ends with the step's own last event: it is shorter than the others
    if not len(at):
        return None
    return RankWork(
        "device window", seen.start_ns[at], seen.end_ns[at], index[at], cover.compute, cover.comm, cover.busy
    )


def _collect_host(trace: Trace, links: Links, steps: StepWindows, index: Int64s) -> RankWork | None:
    phases = find_host_phases(trace, links, steps)
    times = [phases.find_time(phase) for phase in ("backward", "communication")]
    threads = [t for t in (phases.main_thread, *phases.backward_threads) if t is not None]
    if not len(times[0]) or not threads:
        return None
    at = np.flatnonzero(steps.is_complete)
    at = at if len(at) else np.arange(len(steps))
    pieces = overlap_pieces(Intervals(steps.start_ns[at], steps.end_ns[at]), unite_sets(*times))
    ranges = links.ranges
    is_comm = match_names(trace, trace.name[ranges.rows], COLLECTIVE_RANGE)
    is_op = (trace.category[ranges.rows] == Category.CPU_OP) & np.isin(ranges.thread, threads)
    # What a collective's operator calls is not its rank's own work.
    own = is_op & (ranges.find_nearest(is_op & is_comm) < 0)
    library = is_comm & ~np.isin(ranges.thread, threads)
    work = unite(ranges.start_ns[own], ranges.end_ns[own])
    comm = unite(ranges.start_ns[library], ranges.end_ns[library])
    step = index[at][pieces.of_a]
    return RankWork("backward", pieces.start_ns, pieces.end_ns, step, work, comm, unite_sets(work, comm))


def split_growth(before: SideWork, after: SideWork) -> tuple[GrowthSplit | None, str]:
    """Why the window of ``after`` is longer or shorter; None, and why, if that is unknown: windows of different kinds,
    or a side with most of its exposed communication not matched over its ranks."""
    every = (*before.work, *after.work)
    if len({one.window for one in every}) > 1:
        return None, "only one side contains device work"
    sides, counts = [], []
    for side in (before, after):
        waits = list_waits(side.collectives)
        sides.append(join_ranks(list(map(_measure, side.work, side.collectives, waits))))
        counts.append([sum(int((w >= 0).sum()) for w in waits), sum(int((w < 0).sum()) for w in waits)])
    for which, joined, (matched, unmatched) in zip(("before", "after"), sides, counts, strict=True):
        totals = dict(zip(LEAVES, joined.parts_ns.sum(axis=0).tolist(), strict=True))
        exposed = totals["wait"] + totals["transfer"] + totals["unmatched_comm"]
        if totals["unmatched_comm"] > MAX_UNMATCHED_RATIO * exposed:
            why = f"{which}: {unmatched} of {matched + unmatched} collectives could not be matched across ranks"
            return None, f"{why}{'; there is only one rank' if joined.ranks_count == 1 else ''}"
    first, second = sides
    leaves = sum_terms(every[0].window, LEAVES, first, second)
    change, rest = _fold_rest(leaves, first, second)
    split = GrowthSplit(
        window=every[0].window,
        change=change,
        rest=rest,
        notes=tuple(_write_notes(sides, counts)),
    )
    return split, ""


def _fold_rest(leaves: DiffTerms, before: SideSteps, after: SideSteps) -> tuple[DiffTerms, DiffTerms]:
    """The first two leaves and the sum of the others; and the others by themselves."""
    kept, folded = leaves.terms[:2], leaves.terms[2:]
    low, high = sum(t.before_ns for t in folded), sum(t.after_ns for t in folded)
    rest = make_term("rest", low, high, measure_half_width(before, after, range(2, len(LEAVES))))
    return (
        DiffTerms(before_ns=leaves.before_ns, after_ns=leaves.after_ns, whole=leaves.whole, terms=(*kept, rest)),
        DiffTerms(before_ns=low, after_ns=high, whole=rest, terms=folded),
    )


def _write_notes(sides: Sequence[SideSteps], counts: Sequence[Sequence[int]]) -> list[str]:
    notes = []
    for which, steps, (matched, unmatched) in zip(("before", "after"), sides, counts, strict=True):
        if unmatched:
            notes.append(
                f"{which}: {unmatched} of {matched + unmatched} collectives could not be matched across ranks; "
                "their exposed time may be wait or transfer and counts as rest"
            )
        if steps.alignment == "lead":
            notes.append(f"{which}: the steps of the ranks do not match; only the first rank is used here")
    return notes


def _measure(work: RankWork, collectives: RankCollectives, wait: Int64s) -> RankSteps:
    """The leaves of every step of one rank."""
    low, high = work.low_ns, work.high_ns
    start, end = collectives.start_ns, collectives.end_ns
    known = wait >= 0
    come = np.minimum(start + np.maximum(wait, 0), end)
    transfer = intersect(unite(come[known], end[known]), work.comm)
    unmatched = intersect(unite(start[~known], end[~known]), work.comm)
    waiting = intersect(unite(start[known], come[known]), work.comm)

    def beside_work(*sets: Intervals) -> Int64s:
        return cover_windows(unite_sets(*sets, work.work), low, high) - worked

    worked = cover_windows(work.work, low, high)
    transfers = beside_work(transfer)
    or_unmatched = beside_work(transfer, unmatched)
    or_waiting = beside_work(transfer, unmatched, waiting)
    exposed = beside_work(work.comm)
    busy = cover_windows(work.busy, low, high)
    steps, place = np.unique(work.step, return_inverse=True)
    columns = [
        or_waiting - or_unmatched,
        transfers,
        worked,
        (or_unmatched - transfers) + (exposed - or_waiting),
        busy - worked - exposed,
        (high - low) - busy,
    ]
    parts = np.zeros((len(steps), len(LEAVES)), dtype=np.int64)
    np.add.at(parts, place, np.stack(columns, axis=1))
    return RankSteps(index=steps, weight=np.ones(len(steps), dtype=np.int64), parts_ns=parts)
