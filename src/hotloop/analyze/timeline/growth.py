"""Work and collectives of the ranks of two sides -> GrowthSplit: wait, transfer, overlap slow-down, and a rest.

Of every window of a step (on the device; without one, the backward pass on the host with the communication behind it):

* wait: communication ran, no own work did, and every collective that ran was waiting for another rank to come;
* transfer: communication ran, no own work did, and at least one collective had all its ranks;
* overlap slow-down: how much longer own work took than the mean of the same work of ``before``, as far as communication
  ran during it (never more than that time); measured so on both sides, so that equal sides differ in nothing;
* the rest: all other own work, communication that could not be matched, copies, and time in which nothing ran.

They sum to the window, on each side and in the change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.analyze.changes import RankSteps, SideSteps, join_ranks, make_term, measure_half_width, sum_terms
from hotloop.core.comparison import REST_TERMS, GrowthSplit
from hotloop.core.graph import DiffTerms, RankCollectives
from hotloop.core.trace import Category, Trace

from .anatomy import find_host_phases
from .classes import COLLECTIVE_RANGE, COMPUTE, Classes, cover_devices
from .collective_report import list_waits
from .intervals import EMPTY, Int64s, Intervals, cover_windows, intersect, overlap_pieces, unite, unite_sets
from .links import Links, match_names
from .steps import StepWindows, assign_device_work

MAX_PIECES = 500_000
"""Kernels (or operators) of one rank whose times are compared one by one; more are left out of the slow-down."""
MAX_UNMATCHED_RATIO = 0.1
"""Where more of the exposed communication of a side than this is not matched, its wait and transfer are not known."""
LEAVES = ("wait", "transfer", "overlap_slowdown", *REST_TERMS)
_HASH = re.compile(r"(?:_[0-9a-f]{8,})+(?=_|$)|0x[0-9a-f]+", re.IGNORECASE)
_TRITON_NUMBER = re.compile(r"^(triton_\w+?)(?:_\d+)+(?:_?\d+[dc][0-9dce]*)?$|^(triton_\w+?)_(?:\d+[dc])[0-9dce]*$")
_NUMBERED_RANGE = re.compile(r"#\d+\b")


def normalize_name(name: str) -> str:
    """The name without what differs between two builds of the same thing: hashes, addresses, numbers of Triton kernels
    and of ranges.

    >>> normalize_name("triton_poi_fused_add_relu_12"), normalize_name("ProfilerStep#4")
    ('triton_poi_fused_add_relu', 'ProfilerStep')
    """
    short = _HASH.sub("", _NUMBERED_RANGE.sub("", name))
    triton = _TRITON_NUMBER.match(short)
    return (triton.group(1) or triton.group(2)) if triton else short


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
    names: tuple[str, ...]
    piece_name: Int64s
    """Index into ``names`` of each single piece of work, in order of start."""
    piece_step: Int64s
    piece_start_ns: Int64s
    piece_end_ns: Int64s
    pieces_left_out_count: int


@dataclass(frozen=True, slots=True)
class SideWork:
    """One side: its ranks' work and collectives, in the same order."""

    work: Sequence[RankWork]
    collectives: Sequence[RankCollectives]


def collect_work(trace: Trace, links: Links, classes: Classes, steps: StepWindows) -> RankWork | None:
    """What ``split_growth`` needs of one rank; None without device work and without a backward pass."""
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
    mine = (classes.kind[cover.work] == COMPUTE) & np.isin(seen.of_work, at)
    rows = cover.work[mine]
    return _build(
        trace,
        "device window",
        (seen.start_ns[at], seen.end_ns[at], index[at]),
        (cover.compute, cover.comm, cover.busy),
        (trace.name[links.device_rows[rows]], index[seen.of_work[mine]], links.start_ns[rows], links.end_ns[rows]),
    )


def _collect_host(trace: Trace, links: Links, steps: StepWindows, index: Int64s) -> RankWork | None:
    phases = find_host_phases(trace, links, steps)
    times = [phases.find_time(phase) for phase in ("backward", "communication")]
    threads = [t for t in (phases.main_thread, *phases.backward_threads) if t is not None]
    if not len(times[0]) or not threads:
        return None
    at = np.flatnonzero(steps.is_complete)
    at = at if len(at) else np.arange(len(steps))
    low, high, of_step, _ = overlap_pieces(Intervals(steps.start_ns[at], steps.end_ns[at]), unite_sets(*times))
    ranges = links.ranges
    is_comm = match_names(trace, trace.name[ranges.rows], COLLECTIVE_RANGE)
    is_op = (trace.category[ranges.rows] == Category.CPU_OP) & np.isin(ranges.thread, threads)
    # Of nested operators the outermost counts; user ranges around it are no work.
    opened = np.zeros(len(ranges) + 1, dtype=np.int64)
    opens = np.flatnonzero(is_op)
    opened[opens + 1] += 1
    np.subtract.at(opened, ranges.after[opens], 1)
    own = np.flatnonzero(is_op & (np.cumsum(opened)[:-1] == 0) & ~is_comm)
    library = np.flatnonzero(is_comm & ~np.isin(ranges.thread, threads))
    work = unite(ranges.start_ns[own], ranges.end_ns[own])
    comm = unite(ranges.start_ns[library], ranges.end_ns[library])
    step = steps.find_step(ranges.start_ns[own])
    # Only what a window holds is compared one by one.
    held = cover_windows(unite(low, high), ranges.start_ns[own], ranges.end_ns[own]) > 0
    held &= np.isin(step, at)
    pieces = own[held]
    return _build(
        trace,
        "backward",
        (low, high, index[at][of_step]),
        (work, comm, unite_sets(work, comm)),
        (trace.name[ranges.rows[pieces]], index[step[held]], ranges.start_ns[pieces], ranges.end_ns[pieces]),
    )


def _build(
    trace: Trace,
    window: str,
    windows: tuple[Int64s, Int64s, Int64s],
    sets: tuple[Intervals, Intervals, Intervals],
    pieces: tuple[NDArray[np.int32], Int64s, Int64s, Int64s],
) -> RankWork:
    name, step, start, end = pieces
    order = np.argsort(start, kind="stable")[:MAX_PIECES]
    used, column = np.unique(name[order], return_inverse=True)
    return RankWork(
        window=window,
        low_ns=windows[0],
        high_ns=windows[1],
        step=windows[2],
        work=sets[0],
        comm=sets[1],
        busy=sets[2],
        names=tuple(normalize_name(trace.names[i]) for i in used.tolist()),
        piece_name=column.astype(np.int64),
        piece_step=step[order],
        piece_start_ns=start[order],
        piece_end_ns=end[order],
        pieces_left_out_count=max(0, len(start) - MAX_PIECES),
    )


def split_growth(before: SideWork, after: SideWork) -> tuple[GrowthSplit | None, str]:
    """Why the window of ``after`` is longer or shorter; None, and why, where that cannot be told: windows of different
    kinds, or a side whose exposed communication is for the larger part not matched over its ranks."""
    every = (*before.work, *after.work)
    if len({one.window for one in every}) > 1:
        return None, "only one side contains device work"
    usual = _learn_durations(before, after)
    sides, counts = [], []
    overlapped = judged = 0
    for which, side in (("before", before), ("after", after)):
        waits = list_waits(side.collectives)
        measured = [
            _measure(work, collectives, wait, usual)
            for work, collectives, wait in zip(side.work, side.collectives, waits, strict=True)
        ]
        joined = join_ranks([one.steps for one in measured])
        sides.append(joined)
        counts.append([sum(int((w >= 0).sum()) for w in waits), sum(int((w < 0).sum()) for w in waits)])
        if which == "after":
            entries = sum(len(one.steps.weight) for one in measured)
            overlapped = sum(one.overlapped_ns for one in measured) // entries
            judged = sum(one.judged_ns for one in measured) // entries
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
        before_matched_count=counts[0][0],
        before_unmatched_count=counts[0][1],
        after_matched_count=counts[1][0],
        after_unmatched_count=counts[1][1],
        overlapped_ns=overlapped,
        judged_ns=judged,
        notes=tuple(_write_notes(before, after, sides, counts, (overlapped, judged))),
    )
    return split, ""


def _fold_rest(leaves: DiffTerms, before: SideSteps, after: SideSteps) -> tuple[DiffTerms, DiffTerms]:
    """The first three leaves and the sum of the others; and the others by themselves."""
    kept, folded = leaves.terms[:3], leaves.terms[3:]
    low, high = sum(t.before_ns for t in folded), sum(t.after_ns for t in folded)
    rest = make_term("rest", low, high, measure_half_width(before, after, range(3, len(LEAVES))))
    return (
        DiffTerms(before_ns=leaves.before_ns, after_ns=leaves.after_ns, whole=leaves.whole, terms=(*kept, rest)),
        DiffTerms(before_ns=low, after_ns=high, whole=rest, terms=folded),
    )


def _write_notes(
    before: SideWork,
    after: SideWork,
    sides: Sequence[SideSteps],
    counts: Sequence[Sequence[int]],
    judging: tuple[int, int],
) -> list[str]:
    notes = []
    for which, side, steps, (matched, unmatched) in zip(
        ("before", "after"), (before, after), sides, counts, strict=True
    ):
        if unmatched:
            notes.append(
                f"{which}: {unmatched} of {matched + unmatched} collectives could not be matched across ranks; "
                "their exposed time may be wait or transfer and counts as rest"
            )
        if steps.alignment == "lead":
            notes.append(f"{which}: the steps of the ranks do not match; only the first rank is used here")
        left_out = sum(one.pieces_left_out_count for one in side.work)
        if left_out:
            notes.append(f"{which}: {left_out} kernels are left out of the slowdown because there are too many")
    overlapped, judged = judging
    if overlapped and judged < overlapped:
        notes.append(
            f"the slowdown is known for {judged * 100 // overlapped} % of the work that overlaps with "
            "communication; the rest has no counterpart on the other side (different name or number of calls per "
            "step)"
        )
    return notes


@dataclass(frozen=True, slots=True)
class _Measured:
    steps: RankSteps
    overlapped_ns: int
    judged_ns: int


def _measure(work: RankWork, collectives: RankCollectives, wait: Int64s, usual: dict[str, Int64s]) -> _Measured:
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
    slower, overlapped, judged = _find_slowdown(work, steps, usual)
    columns = [
        or_waiting - or_unmatched,
        transfers,
        np.zeros(len(low), dtype=np.int64),
        worked,
        (or_unmatched - transfers) + (exposed - or_waiting),
        busy - worked - exposed,
        (high - low) - busy,
    ]
    parts = np.zeros((len(steps), len(LEAVES)), dtype=np.int64)
    np.add.at(parts, place, np.stack(columns, axis=1))
    parts[:, LEAVES.index("overlap_slowdown")] += slower
    parts[:, LEAVES.index("compute")] -= slower
    rank_steps = RankSteps(index=steps, weight=np.ones(len(steps), dtype=np.int64), parts_ns=parts)
    return _Measured(rank_steps, overlapped, judged)


def _find_slowdown(work: RankWork, steps: Int64s, usual: dict[str, Int64s]) -> tuple[Int64s, int, int]:
    """(slow-down of each step, overlapped durations, part of them that could be judged), ns."""
    slower = np.zeros(len(steps), dtype=np.int64)
    length = work.piece_end_ns - work.piece_start_ns
    comm = work.comm if len(work.comm) else EMPTY
    beside = cover_windows(comm, work.piece_start_ns, work.piece_end_ns)
    of_step = np.searchsorted(steps, work.piece_step)
    inside = (of_step < len(steps)) & (steps[np.minimum(of_step, len(steps) - 1)] == work.piece_step)
    touched = inside & (beside > 0)
    expected = np.full(len(length), -1, dtype=np.int64)
    number = _number_calls(work)
    for i, name in enumerate(work.names):
        times = usual.get(name)
        if times is None:
            continue
        mine = np.flatnonzero(work.piece_name == i)
        held = number[mine] < len(times)
        expected[mine[held]] = times[number[mine[held]]]
    judged = touched & (expected >= 0)
    extra = np.clip(length - expected, -beside, beside)
    np.add.at(slower, of_step[judged], extra[judged])
    return slower, int(length[touched].sum()), int(length[judged].sum())


def _text_ids(work: RankWork) -> tuple[dict[str, int], Int64s]:
    """Number of each distinct name (several of ``names`` may read the same), and that of each piece."""
    ids: dict[str, int] = {}
    table = np.array([ids.setdefault(name, len(ids)) for name in work.names], dtype=np.int64)
    return ids, table[work.piece_name] if len(table) else np.empty(0, dtype=np.int64)


def _number_calls(work: RankWork) -> Int64s:
    """How many calls of the same name came before each piece in its step."""
    _, name = _text_ids(work)
    order = np.lexsort((np.arange(len(name)), name, work.piece_step))
    key = np.stack([work.piece_step[order], name[order]], axis=1)
    new = np.ones(len(order), dtype=bool)
    new[1:] = (key[1:] != key[:-1]).any(axis=1)
    first = np.flatnonzero(new)
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return number


def _learn_durations(before: SideWork, after: SideWork) -> dict[str, Int64s]:
    """Mean duration in ``before`` of the first, second, ... call of each name in a step; only of names that are called
    as often in every step of every rank of both sides: elsewhere nobody knows which calls belong together."""
    often: dict[str, int] = {}
    for work in (*before.work, *after.work):
        ids, name = _text_ids(work)
        step = np.unique(work.step)
        kept = np.isin(work.piece_step, step)
        counts = np.zeros((len(step), len(ids)), dtype=np.int64)
        np.add.at(counts, (np.searchsorted(step, work.piece_step[kept]), name[kept]), 1)
        for text, i in ids.items():
            low, high = int(counts[:, i].min()), int(counts[:, i].max())
            agreed = low if low == high and often.get(text, low) == low else -1
            often[text] = agreed
    sums: dict[str, Int64s] = {}
    entries = 0
    for work in before.work:
        ids, name = _text_ids(work)
        kept = np.isin(work.piece_step, np.unique(work.step))
        number, length = _number_calls(work), work.piece_end_ns - work.piece_start_ns
        entries += len(np.unique(work.step))
        for text, i in ids.items():
            if often[text] < 1:
                continue
            mine = kept & (name == i)
            total = sums.setdefault(text, np.zeros(often[text], dtype=np.int64))
            np.add.at(total, number[mine], length[mine])
    return {text: (total + entries // 2) // entries for text, total in sums.items()}
