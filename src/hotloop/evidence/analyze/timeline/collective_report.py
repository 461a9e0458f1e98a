"""RankCollectives of all ranks -> their clocks aligned, and who waits for whom.

A collective begins on a rank when its kernel (or, with gloo, its range) begins there, and nobody can leave before the
last rank has arrived. So wait = latest start - own start, transfer = latest end - latest start. This holds for
all-reduce, all-gather, reduce-scatter, all-to-all and barrier; a broadcast's root may leave early, so rooted
collectives count in no sum.

Clocks: all ranks leave a synchronizing collective within its last transfer, so the median difference of the ends of two
ranks is the difference of their clocks. Ranks of one host share a clock, so no correction applies there. This does not
show how the clocks of two hosts drift apart in the seconds of a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.graph import RankCollectives
from hotloop.core.hosts import HostClock
from hotloop.core.trace import TraceNote
from hotloop.core.trace_analysis import RankWait

from .collectives import MAX_COLLECTIVES, OP
from .intervals import Int64s
from .links import NONE

FEW = 4
"""With fewer common collectives, the spread of their ends says nothing; their shortest duration bounds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """One rank's clock against the first rank's, from the ends of their common collectives."""

    rank: int | None
    host: str | None
    uncertainty_ns: int | None
    """Half the interquartile range of the differences plus the unit of the clocks; sums along the way to the
    reference."""
    collectives_count: int
    applied_ns: int
    """Subtract this from the rank's instants: 0 on the reference's host, and if it does not exceed the uncertainty."""
    shift_ns: int
    """Add this to an instant of the rank's trace to convert to the first rank's clock."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """The k synchronizing collectives that the same m ranks share."""

    members: tuple[int, ...]
    """Places of the ranks."""
    end_ns: Int64s
    """(k, m) On the hosts' clocks."""
    duration_ns: Int64s
    """(k, m)"""


@dataclass(frozen=True, slots=True)
class _Offset:
    """How far a rank's clock was measured to be ahead of the first rank's."""

    offset_ns: int
    uncertainty_ns: int
    collectives_count: int


def align_clocks(
    ranks: Sequence[RankCollectives], matches: Matches, is_synchronising: NDArray[np.bool_]
) -> tuple[RankClock, ...]:
    """All clocks against that of the first rank, from the matched collectives that nobody can leave early."""
    shared = _list_shared(ranks, matches, is_synchronising)
    measured = {0: _Offset(0, 0, 0)}
    while candidates := [offset for one in shared for offset in _measure_offsets(ranks, one, measured)]:
        # The most certain of all that can be joined to a rank with a measure.
        place, offset = min(candidates, key=lambda candidate: candidate[1].uncertainty_ns)
        measured[place] = offset
    return tuple(_choose_clock(ranks, place, measured) for place in range(len(ranks)))


def _list_shared(
    ranks: Sequence[RankCollectives], matches: Matches, is_synchronising: NDArray[np.bool_]
) -> list[_Shared]:
    base_ns = np.array([one.base_ns for one in ranks], dtype=np.int64)
    start, end = _column(ranks, matches, "start_ns"), _column(ranks, matches, "end_ns")
    if not len(matches):
        return []
    collectives: dict[tuple[int, ...], list[int]] = {}
    for i, places in enumerate(np.split(matches.rank, matches.first[1:])):
        if is_synchronising[i]:
            collectives.setdefault(tuple(places.tolist()), []).append(i)
    shared = []
    for members, numbers in collectives.items():
        entries = matches.first[np.array(numbers)][:, None] + np.arange(len(members))[None, :]
        shared.append(_Shared(members, end[entries] + base_ns[list(members)], (end - start)[entries]))
    return shared


def _measure_offsets(
    ranks: Sequence[RankCollectives], shared: _Shared, measured: Mapping[int, _Offset]
) -> Iterator[tuple[int, _Offset]]:
    """(position, offset) of every rank without a measure, against the most certain of those that have one."""
    anchors = [column for column, place in enumerate(shared.members) if place in measured]
    if not anchors:
        return
    anchor = min(anchors, key=lambda column: measured[shared.members[column]].uncertainty_ns)
    reference = measured[shared.members[anchor]]
    for column, place in enumerate(shared.members):
        if place in measured:
            continue
        difference = np.sort(shared.end_ns[:, column] - shared.end_ns[:, anchor])
        count = len(difference)
        middle = int(difference[(count - 1) // 2] + difference[count // 2]) // 2
        if count >= FEW:
            spread = int(difference[(3 * count) // 4] - difference[count // 4] + 1) // 2
        else:
            spread = int(shared.duration_ns[:, [column, anchor]].min())
        unit = max(ranks[place].time_unit_ns, ranks[shared.members[anchor]].time_unit_ns)
        yield place, _Offset(reference.offset_ns + middle, reference.uncertainty_ns + spread + unit, count)


def _choose_clock(ranks: Sequence[RankCollectives], place: int, measured: Mapping[int, _Offset]) -> RankClock:
    """Ranks of one host share a clock: theirs is moved by the median of its ranks' offsets."""
    rank, offset = ranks[place], measured.get(place)
    applied_ns = 0
    shares_clock = place == 0 or (rank.host is not None and rank.host == ranks[0].host)
    if offset is not None and not shares_clock:
        if rank.host is not None and ranks[0].host is not None:
            of_host = sorted(one.offset_ns for at, one in measured.items() if ranks[at].host == rank.host)
            applied_ns = (of_host[(len(of_host) - 1) // 2] + of_host[len(of_host) // 2]) // 2
        elif abs(offset.offset_ns) > offset.uncertainty_ns:
            applied_ns = offset.offset_ns
    return RankClock(
        rank=rank.rank,
        host=rank.host,
        uncertainty_ns=None if offset is None else offset.uncertainty_ns,
        collectives_count=0 if offset is None else offset.collectives_count,
        applied_ns=applied_ns,
        shift_ns=rank.base_ns - applied_ns,
    )


def describe_hosts(clocks: Sequence[RankClock]) -> tuple[HostClock, ...]:
    """The hosts in the order of their ranks, against the first; empty if a file does not name its host."""
    by_host: dict[str, list[RankClock]] = {}
    for clock in clocks:
        if clock.host is None:
            return ()
        by_host.setdefault(clock.host, []).append(clock)
    return tuple(_describe_host(host, ranks, is_reference=host == clocks[0].host) for host, ranks in by_host.items())


def _describe_host(host: str, ranks: Sequence[RankClock], *, is_reference: bool) -> HostClock:
    names = tuple(one.rank for one in ranks if one.rank is not None)
    if is_reference:
        return HostClock(name=host, ranks=names, offset_ns=0, drift_ppm=None, uncertainty_ns=0, basis="the reference")
    uncertainties = sorted(one.uncertainty_ns for one in ranks if one.uncertainty_ns is not None)
    count = min((one.collectives_count for one in ranks if one.uncertainty_ns is not None), default=0)
    return HostClock(
        name=host,
        ranks=names,
        offset_ns=ranks[0].applied_ns if uncertainties else None,
        drift_ppm=None,
        uncertainty_ns=uncertainties[len(uncertainties) // 2] if uncertainties else None,
        basis=f"ends of {count} collectives that both share" if uncertainties else "no common collectives",
    )


SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Nobody can leave these before everybody has come."""
SIZED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "barrier")
"""The same size on every rank; an all-to-all may be uneven."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Matched collectives of all ranks; entries of one collective are adjacent, ordered by rank."""

    rank: Int64s
    """Place of the rank."""
    at: Int64s
    """Place in that rank's RankCollectives."""
    first: Int64s
    """Where each collective begins in the arrays above."""

    def __len__(self) -> int:
        return len(self.first)

    @property
    def count(self) -> Int64s:
        """Ranks of each collective."""
        return np.diff(np.append(self.first, len(self.rank)))

    @property
    def of_entry(self) -> Int64s:
        """The collective of each entry."""
        return np.repeat(np.arange(len(self.first), dtype=np.int64), self.count)

    def reduce(self, function: np.ufunc, values: Int64s) -> Int64s:
        """One value a collective, of values by entry."""
        if not len(self.first):
            return np.empty(0, dtype=np.int64)
        reduced: Int64s = function.reduceat(values, self.first)
        return reduced


def match_collectives(ranks: Sequence[RankCollectives]) -> Matches:
    """Join the ranks' collectives by process group, kind, size, and sequence number or order.

    Without sequence numbers, the order within a step counts (within the trace if steps have no numbers), and only if
    all members have the same number of such collectives: otherwise nobody knows which belong together.
    """
    members, group_of = _join_groups(ranks)
    parts: list[NDArray[np.int64]] = []
    for place, one in enumerate(ranks):
        size, op, group = len(one), one.op.astype(np.int64), group_of[place][one.group]
        # Elements that identify a collective of even size on every rank.
        payload = np.where(one.in_elements >= 0, one.in_elements, one.out_elements)
        payload = np.where(np.isin(op, [OP[o] for o in SIZED]), payload, NONE)
        step = np.where(one.sequence < 0, one.step.astype(np.int64), NONE)
        table = np.stack([group, op, payload, step, one.sequence, np.full(size, place), np.arange(size)], axis=1)
        usable = ~np.isin(op, (OP["point_to_point"], OP["unknown"])) & ~_unknown_members(one, len(ranks))
        parts.append(table[usable])
    table = np.concatenate(parts)
    # By rank and key first, to number in its order what has the same key on one rank.
    table = table[np.lexsort((table[:, 6], table[:, 5], *table[:, 4::-1].T))]
    run = np.flatnonzero(_differs(table[:, :6]))
    number = np.arange(len(table)) - np.repeat(run, np.diff(np.append(run, len(table))))
    table = np.concatenate([table[:, :5], number[:, None], table[:, 5:]], axis=1)
    table = table[np.lexsort((table[:, 6], *table[:, 5::-1].T))]
    first = np.flatnonzero(_differs(table[:, :6]))
    count = np.diff(np.append(first, len(table)))
    expected = np.array([len(m) for m in members], dtype=np.int64)[table[first, 0]]
    complete = count == expected
    # If the order is all there is, a key that some rank has more often than another is entirely in doubt.
    by_order = table[first, 4] < 0
    family = np.cumsum(_differs(table[first][:, :5])) - 1
    broken = np.zeros(int(family[-1]) + 1 if len(family) else 0, dtype=bool)
    broken[family[by_order & ~complete]] = True
    good = complete & ~broken[family] & (expected > 1)
    kept, sizes = table[np.repeat(good, count)], count[good]
    return Matches(kept[:, 6], kept[:, 7], np.cumsum(sizes) - sizes)


def _differs(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True at the first of every run of equal rows."""
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return new


def _join_groups(ranks: Sequence[RankCollectives]) -> tuple[list[tuple[int, ...]], list[Int64s]]:
    """(places of the present members of every distinct group, number of each rank's groups)."""
    numbers = [one.rank for one in ranks]
    by_rank = {number: place for place, number in enumerate(numbers) if number is not None}
    if len(by_rank) < len(ranks):
        by_rank = {place: place for place in range(len(ranks))}
    keys: dict[tuple[str, tuple[int, ...] | None], int] = {}
    members: list[tuple[int, ...]] = []
    columns = []
    for one in ranks:
        column = np.empty(len(one.groups), dtype=np.int64)
        for i, key in enumerate(zip(one.groups, one.group_ranks, strict=True)):
            if key not in keys:
                keys[key] = len(members)
                listed = key[1]
                everybody = tuple(range(len(ranks)))
                members.append(everybody if listed is None else tuple(by_rank[r] for r in listed if r in by_rank))
            column[i] = keys[key]
        columns.append(column)
    return members, columns


def _unknown_members(one: RankCollectives, present: int) -> NDArray[np.bool_]:
    """Collectives whose group has no listed members and a size that is not that of all ranks."""
    listed = np.array([ranks is not None for ranks in one.group_ranks], dtype=bool)
    result: NDArray[np.bool_] = ~listed[one.group] & (one.group_size > 0) & (one.group_size != present)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveReport:
    """The combined results of the ranks' collectives."""

    waits: tuple[RankWait, ...]
    """One per rank; empty if nothing could be matched."""
    matched_count: int
    clocks: tuple[RankClock, ...]
    transfer_ns: int
    """From the last arrival to the end, summed over the matched collectives."""
    span_ns: int
    """First start to last end of the matched collectives."""
    notes: tuple[TraceNote, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """Matched collectives on one clock, by collective unless said otherwise."""

    matches: Matches
    clocks: tuple[RankClock, ...]
    start_ns: Int64s
    """By entry."""
    wait_ns: Int64s
    """By entry."""
    latest_ns: Int64s
    """Latest start."""
    end_ns: Int64s
    """Latest end."""
    last: Int64s
    """Position of the rank that came last; the lowest if there are several."""
    is_synchronising: NDArray[np.bool_]
    is_doubtful: NDArray[np.bool_]
    """A rank left before the last one came, by more than the clocks' uncertainty: the collectives are not the same, or
    the clocks are further apart than stated."""

    @property
    def is_counted(self) -> NDArray[np.bool_]:
        """Whether it counts in the sums."""
        return self.is_synchronising & ~self.is_doubtful


def _time_matches(ranks: Sequence[RankCollectives]) -> _Timed:
    matches = match_collectives(ranks)
    is_synchronising = np.isin(_column(ranks, matches, "op")[matches.first], [OP[o] for o in SYNCHRONISING])
    clocks = align_clocks(ranks, matches, is_synchronising)
    start, end = _column(ranks, matches, "start_ns"), _column(ranks, matches, "end_ns")
    for place, clock in enumerate(clocks):
        mine = matches.rank == place
        start[mine] += clock.shift_ns
        end[mine] += clock.shift_ns
    latest, of_entry = matches.reduce(np.maximum, start), matches.of_entry
    slack = [2 * (clock.uncertainty_ns or 0) + 2 * rank.time_unit_ns for clock, rank in zip(clocks, ranks, strict=True)]
    is_early = end + np.array(slack, dtype=np.int64)[matches.rank] < latest[of_entry]
    came_last = np.where(start == latest[of_entry], matches.rank, len(ranks))
    return _Timed(
        matches=matches,
        clocks=clocks,
        start_ns=start,
        wait_ns=latest[of_entry] - start,
        latest_ns=latest,
        end_ns=matches.reduce(np.maximum, end),
        last=matches.reduce(np.minimum, came_last),
        is_synchronising=is_synchronising,
        is_doubtful=matches.reduce(np.maximum, is_early.astype(np.int64)).astype(bool) & is_synchronising,
    )


def compare_ranks(ranks: Sequence[RankCollectives]) -> CollectiveReport | None:
    """The combined results of the collectives of all ranks; None with fewer than two ranks."""
    if len(ranks) < 2:
        return None
    timed = _time_matches(ranks)
    counted, doubtful_count = timed.is_counted, int(np.count_nonzero(timed.is_doubtful))
    of_entry = counted[timed.matches.of_entry]
    notes = []
    left_out = sum(one.left_out_count for one in ranks)
    if left_out:
        notes.append(
            TraceNote(
                level="info",
                code="collectives-left-out",
                message=f"{left_out} collectives after the first {MAX_COLLECTIVES} of a rank are not compared",
                count=left_out,
            )
        )
    if doubtful_count:
        notes.append(
            TraceNote(
                level="warning",
                code="doubtful-collectives",
                message=f"{doubtful_count} collectives end on a rank before the last rank arrived "
                "and are left out; they are matched wrongly, or the clock offset is wrong",
                count=doubtful_count,
            )
        )
    waits = tuple(
        RankWait(
            rank=one.rank,
            wait_ns=int(timed.wait_ns[of_entry & (timed.matches.rank == place)].sum()),
            last_arrivals_count=int(np.count_nonzero(timed.last[counted] == place)),
        )
        for place, one in enumerate(ranks)
    )
    matched_count = len(timed.matches) - doubtful_count
    return CollectiveReport(
        waits=waits if matched_count else (),
        matched_count=matched_count,
        clocks=timed.clocks,
        transfer_ns=int((timed.end_ns - timed.latest_ns)[counted].sum()),
        span_ns=int(timed.end_ns[counted].max() - timed.start_ns[of_entry].min()) if counted.any() else 0,
        notes=tuple(notes),
    )


def _column(ranks: Sequence[RankCollectives], matches: Matches, field: str) -> NDArray[np.int64]:
    """One column of every matched entry."""
    result = np.empty(len(matches.rank), dtype=np.int64)
    for place, one in enumerate(ranks):
        mine = matches.rank == place
        result[mine] = getattr(one, field)[matches.at[mine]]
    return result
