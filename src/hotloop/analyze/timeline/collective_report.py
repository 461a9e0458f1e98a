"""RankCollectives of all ranks -> their clocks aligned, who waits for whom, and how fast links are.

A collective begins on a rank when its kernel (or, with gloo, its range) begins there, and nobody can leave before the
last one has come. So wait = latest start - own start, transfer = latest end - latest start. This holds for all-reduce,
all-gather, reduce-scatter, all-to-all and barrier; a broadcast's root may leave early, so rooted collectives are
listed, but stand in no sum.

Clocks: all leave a synchronising collective within its last transfer, so the median difference of the ends of two ranks
is the difference of their clocks. Ranks of one host share a clock: there it is never applied. Over a long recording
the clocks of two hosts also drift apart.

Bandwidth as NCCL's tests define it (PERFORMANCE.md of NVIDIA's nccl-tests): algorithm bandwidth = size / time; bus
bandwidth = that times 2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast
and reduce. The time here is the transfer alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.analyze.stats import MOST_DRIFT_PPM, ClockLine, fit_line
from hotloop.core.graph import OPS, ClockOffset, Clocks, CollectiveKind, RankCollectives
from hotloop.core.hosts import HostClock
from hotloop.core.link_fit import COLLECTIVES, bus_factor
from hotloop.core.trace import TraceNote
from hotloop.core.trace_analysis import RankWait

from .collectives import MAX_COLLECTIVES, OP
from .intervals import Int64s
from .links import NONE

FEW = 4
"""With fewer common collectives the spread of their ends says nothing; their shortest duration bounds it."""


def align_clocks(
    ranks: Sequence[RankCollectives],
    rank: Int64s,
    at: Int64s,
    first: Int64s,
    synchronising: NDArray[np.bool_],
) -> Clocks:
    """All clocks against that of the first rank.

    ``rank`` and ``at`` are the entries of matched collectives (places of ranks and in their columns), ``first`` where
    each collective begins, ``synchronising`` which of them nobody can leave early.
    """
    measured: list[tuple[int, int, int] | None] = [None] * len(ranks)
    measured[0] = (0, 0, 0)
    blocks = _gather_blocks(ranks, rank, at, first, synchronising)
    while True:
        found = _measure_next(ranks, blocks, measured)
        if found is None:
            break
        place, value = found
        measured[place] = value
    offsets = _decide(ranks, measured)
    lines = _find_drifts(ranks, blocks)
    offsets = tuple(
        one
        if line is None
        else replace(
            one,
            applied_ns=round(line.offset_ns),
            uncertainty_ns=round(line.uncertainty_ns) + ranks[place].time_unit_ns,
            drift_ppm=line.drift * 1e6,
        )
        for place, (one, line) in enumerate(zip(offsets, lines, strict=True))
    )
    base = tuple(one.base_ns - offset.applied_ns for one, offset in zip(ranks, offsets, strict=True))
    middles = tuple(0 if line is None else round(line.middle_ns) for line in lines)
    return Clocks(reference=0, offsets=offsets, base_ns=base, middle_ns=middles)


def align_instants(clocks: Clocks, place: int, at_ns: Int64s) -> Int64s:
    """Instants of the trace of the rank at that place, on the aligned clock."""
    aligned: Int64s = at_ns + clocks.base_ns[place]
    drift_ppm = clocks.offsets[place].drift_ppm
    if drift_ppm is None:
        return aligned
    drifted: Int64s = aligned - np.rint((aligned - clocks.middle_ns[place]) * (drift_ppm * 1e-6)).astype(np.int64)
    return drifted


def _find_drifts(
    ranks: Sequence[RankCollectives], blocks: list[tuple[tuple[int, ...], Int64s, Int64s]]
) -> list[ClockLine | None]:
    """Of every rank of another host than the reference's the line of its host, where that drifts; else None.

    From the ends of collectives that the reference and one rank of the host share: the rank whose line is surest.
    """
    best: dict[str, ClockLine] = {}
    for members, end, _ in blocks:
        if 0 not in members:
            continue
        reference = np.sort(end[:, members.index(0)])
        order = np.argsort(end[:, members.index(0)], kind="stable")
        for column, member in enumerate(members):
            host = ranks[member].host
            if host is None or host == ranks[0].host:
                continue
            line = fit_line(reference - reference[0], end[order, column] - reference)
            if line is None or not 0 < abs(line.drift) * 1e6 <= MOST_DRIFT_PPM:
                continue
            if host not in best or line.uncertainty_ns < best[host].uncertainty_ns:
                best[host] = replace(line, middle_ns=line.middle_ns + int(reference[0]))
    return [best.get(one.host or "") for one in ranks]


def _gather_blocks(
    ranks: Sequence[RankCollectives], rank: Int64s, at: Int64s, first: Int64s, synchronising: NDArray[np.bool_]
) -> list[tuple[tuple[int, ...], Int64s, Int64s]]:
    """(members, ends, durations) with one row for each collective and one column for each member."""
    end = np.empty(len(rank), dtype=np.int64)
    duration = np.empty(len(rank), dtype=np.int64)
    for place, one in enumerate(ranks):
        mine = rank == place
        end[mine] = one.end_ns[at[mine]] + one.base_ns
        duration[mine] = one.end_ns[at[mine]] - one.start_ns[at[mine]]
    count = np.diff(np.append(first, len(rank)))
    blocks: dict[tuple[int, ...], list[int]] = {}
    for i in np.flatnonzero(synchronising).tolist():
        members = tuple(rank[first[i] : first[i] + count[i]].tolist())
        blocks.setdefault(members, []).append(i)
    gathered = []
    for members, found in blocks.items():
        index = first[np.array(found)][:, None] + np.arange(len(members))[None, :]
        gathered.append((members, end[index], duration[index]))
    return gathered


def _measure_next(
    ranks: Sequence[RankCollectives],
    blocks: list[tuple[tuple[int, ...], Int64s, Int64s]],
    measured: list[tuple[int, int, int] | None],
) -> tuple[int, tuple[int, int, int]] | None:
    """The rank without a measure that can be joined to one that has one with the least uncertainty."""
    best: tuple[int, int, tuple[int, int, int]] | None = None
    for members, end, duration in blocks:
        known = [(column, measured[m]) for column, m in enumerate(members) if measured[m] is not None]
        if not known or len(known) == len(members):
            continue
        anchor, value = min(known, key=lambda k: (k[1] or (0, 0, 0))[1])
        assert value is not None
        for column, member in enumerate(members):
            if measured[member] is not None:
                continue
            difference = np.sort(end[:, column] - end[:, anchor])
            count = len(difference)
            middle = int(difference[(count - 1) // 2] + difference[count // 2]) // 2
            if count >= FEW:
                spread = int(difference[(3 * count) // 4] - difference[count // 4] + 1) // 2
            else:
                spread = int(np.minimum(duration[:, column], duration[:, anchor]).min())
            unit = max(ranks[member].time_unit_ns, ranks[members[anchor]].time_unit_ns)
            offset = (value[0] + middle, value[1] + spread + unit, count)
            if best is None or offset[1] < best[0]:
                best = (offset[1], member, offset)
    return None if best is None else (best[1], best[2])


def _decide(ranks: Sequence[RankCollectives], measured: list[tuple[int, int, int] | None]) -> tuple[ClockOffset, ...]:
    reference = ranks[0].host
    by_host: dict[str, list[int]] = {}
    for one, value in zip(ranks, measured, strict=True):
        if one.host is not None and value is not None:
            by_host.setdefault(one.host, []).append(value[0])
    offsets = []
    for place, (one, value) in enumerate(zip(ranks, measured, strict=True)):
        offset_ns, uncertainty_ns, count = value or (0, None, 0)
        shares_clock = place == 0 or (one.host is not None and one.host == reference)
        applied_ns = 0
        if uncertainty_ns is not None and not shares_clock:
            if one.host is not None and reference is not None:
                on_host = sorted(by_host[one.host])
                applied_ns = (on_host[(len(on_host) - 1) // 2] + on_host[len(on_host) // 2]) // 2
            elif abs(offset_ns) > uncertainty_ns:
                applied_ns = offset_ns
        offsets.append(
            ClockOffset(
                rank=one.rank,
                host=one.host,
                uncertainty_ns=uncertainty_ns,
                collectives_count=count,
                applied_ns=applied_ns,
            )
        )
    return tuple(offsets)


def describe_hosts(clocks: Clocks) -> tuple[HostClock, ...]:
    """The hosts in the order of their ranks, against the reference's; none where a file does not name its host."""
    by_host: dict[str, list[ClockOffset]] = {}
    for one in clocks.offsets:
        if one.host is None:
            return ()
        by_host.setdefault(one.host, []).append(one)
    reference = clocks.offsets[clocks.reference].host
    return tuple(_describe_host(host, ranks, is_reference=host == reference) for host, ranks in by_host.items())


def _describe_host(host: str, ranks: Sequence[ClockOffset], *, is_reference: bool) -> HostClock:
    names = tuple(one.rank for one in ranks if one.rank is not None)
    if is_reference:
        return HostClock(name=host, ranks=names, offset_ns=0, drift_ppm=None, uncertainty_ns=0, basis="the reference")
    known = sorted(one.uncertainty_ns for one in ranks if one.uncertainty_ns is not None)
    count = min((one.collectives_count for one in ranks if one.uncertainty_ns is not None), default=0)
    return HostClock(
        name=host,
        ranks=names,
        offset_ns=ranks[0].applied_ns if known else None,
        drift_ppm=ranks[0].drift_ppm,
        uncertainty_ns=known[len(known) // 2] if known else None,
        basis=f"ends of {count} collectives that both share" if known else "no common collectives",
    )


SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Nobody can leave these before everybody has come."""
SIZED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "barrier")
"""The same size on every rank; an all-to-all may be uneven."""


def find_bus_factor(op: str, members_count: int) -> float | None:
    """What NCCL's tests multiply algorithm bandwidth with to get bus bandwidth; None where it has no meaning."""
    name = op.replace("_", "-")
    if members_count < 2 or name not in (*COLLECTIVES, "reduce"):
        return None
    return 1.0 if name == "reduce" else bus_factor(name, members_count)


@dataclass(frozen=True, slots=True)
class Matches:
    """Matched collectives of all ranks; entries of one collective are neighbours, ordered by rank."""

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

    Without sequence numbers the order within a step counts (within the trace where steps have no numbers), and only
    where all members have the same number of such collectives: otherwise nobody knows which belong together.
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
    # By rank and key first, to number what has the same key on one rank in its order.
    table = table[np.lexsort((table[:, 6], table[:, 5], *table[:, 4::-1].T))]
    run = np.flatnonzero(_differs(table[:, :6]))
    number = np.arange(len(table)) - np.repeat(run, np.diff(np.append(run, len(table))))
    table = np.concatenate([table[:, :5], number[:, None], table[:, 5:]], axis=1)
    table = table[np.lexsort((table[:, 6], *table[:, 5::-1].T))]
    first = np.flatnonzero(_differs(table[:, :6]))
    count = np.diff(np.append(first, len(table)))
    expected = np.array([len(m) for m in members], dtype=np.int64)[table[first, 0]]
    complete = count == expected
    # Where the order is all there is, a key that some rank has more often than another is in doubt as a whole.
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
    """What the ranks' collectives say together."""

    waits: tuple[RankWait, ...]
    """One a rank; empty when nothing could be matched."""
    kinds: tuple[CollectiveKind, ...]
    """Longest in wait and transfer first."""
    matched_count: int
    clocks: Clocks
    transfer_ns: int
    """From the last arrival to the end, summed over the matched collectives."""
    span_ns: int
    """First start to last end of the matched collectives."""
    notes: tuple[TraceNote, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """Matched collectives on one clock, by collective unless said otherwise."""

    matches: Matches
    clocks: Clocks
    start_ns: Int64s
    """By entry."""
    wait_ns: Int64s
    """By entry."""
    latest_ns: Int64s
    """Latest start."""
    end_ns: Int64s
    """Latest end."""
    last: Int64s
    """Place of the rank that came last; the lowest of several."""
    is_synchronising: NDArray[np.bool_]
    is_doubtful: NDArray[np.bool_]
    """A rank left before the last one came, by more than the clocks' uncertainty: not the same collective, or clocks
    that are further apart than stated."""

    @property
    def is_counted(self) -> NDArray[np.bool_]:
        """Stands in the sums."""
        return self.is_synchronising & ~self.is_doubtful


def _time_matches(ranks: Sequence[RankCollectives]) -> _Timed:
    matches = match_collectives(ranks)
    is_synchronising = np.isin(_column(ranks, matches, "op")[matches.first], [OP[o] for o in SYNCHRONISING])
    clocks = align_clocks(ranks, matches.rank, matches.at, matches.first, is_synchronising)
    start, end = _column(ranks, matches, "start_ns"), _column(ranks, matches, "end_ns")
    for place in range(len(ranks)):
        mine = matches.rank == place
        start[mine], end[mine] = (align_instants(clocks, place, one[mine]) for one in (start, end))
    latest, of_entry = matches.reduce(np.maximum, start), matches.of_entry
    slack = [
        2 * (offset.uncertainty_ns or 0) + 2 * one.time_unit_ns
        for offset, one in zip(clocks.offsets, ranks, strict=True)
    ]
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
    """What the collectives of all ranks say together; None with fewer than two ranks."""
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
        kinds=_list_kinds(ranks, timed),
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


def _list_kinds(ranks: Sequence[RankCollectives], timed: _Timed) -> tuple[CollectiveKind, ...]:
    matches = timed.matches
    op = _column(ranks, matches, "op")[matches.first]
    members = _member_counts(ranks, matches)
    size = _sizes_bytes(ranks, matches, members)
    mean_wait, transfer = matches.reduce(np.add, timed.wait_ns) // matches.count, timed.end_ns - timed.latest_ns
    table: dict[tuple[int, str, int, int], list[int]] = {}
    for i in np.flatnonzero(~timed.is_doubtful).tolist():
        entry = int(matches.first[i])
        one = ranks[int(matches.rank[entry])]
        group = one.groups[int(one.group[matches.at[entry]])]
        table.setdefault((int(op[i]), group, int(size[i]), int(members[i])), []).append(i)
    kinds = []
    for (kind, group, bytes_, count), found in table.items():
        at = np.array(found, dtype=np.int64)
        median = int(np.sort(transfer[at])[(len(at) - 1) // 2])
        speed = bytes_ * 1e9 / median if bytes_ >= 0 and median > 0 else None
        factor = find_bus_factor(OPS[kind], count)
        kinds.append(
            CollectiveKind(
                op=OPS[kind],
                group=group,
                bytes=bytes_ if bytes_ >= 0 else None,
                members_count=count,
                count=len(at),
                wait_ns=int(mean_wait[at].sum()),
                transfer_ns=int(transfer[at].sum()),
                median_transfer_ns=median,
                algorithm_bytes_per_s=speed,
                bus_bytes_per_s=speed * factor if speed is not None and factor is not None else None,
            )
        )
    return tuple(sorted(kinds, key=lambda k: (-k.wait_ns - k.transfer_ns, k.op, k.group, k.bytes or 0)))


def _sizes_bytes(ranks: Sequence[RankCollectives], matches: Matches, members_count: Int64s) -> Int64s:
    """Bytes of each matched collective by the rule of NCCL's tests, mean over its ranks; -1 where unknown."""
    op = _column(ranks, matches, "op")
    sent, got = _column(ranks, matches, "in_elements"), _column(ranks, matches, "out_elements")
    width, members = _column(ranks, matches, "element_bytes"), members_count[matches.of_entry]
    gathered = np.where(got >= 0, got, np.where(sent >= 0, sent * members, NONE))
    elements = np.where(op == OP["all_gather"], gathered, np.where(sent >= 0, sent, got))
    known = (elements >= 0) & (width > 0)
    total = matches.reduce(np.add, np.where(known, elements * width, 0))
    is_whole = matches.reduce(np.minimum, known.astype(np.int64)) == 1
    return np.where(is_whole, total // matches.count, NONE)


def _member_counts(ranks: Sequence[RankCollectives], matches: Matches) -> Int64s:
    size = _column(ranks, matches, "group_size")[matches.first]
    listed = np.empty(len(matches), dtype=np.int64)
    for i, entry in enumerate(matches.first.tolist()):
        one = ranks[int(matches.rank[entry])]
        members = one.group_ranks[int(one.group[matches.at[entry]])]
        listed[i] = len(members) if members is not None else NONE
    return np.where(size > 0, size, np.where(listed > 0, listed, matches.count))


def list_waits(ranks: Sequence[RankCollectives]) -> tuple[Int64s, ...]:
    """What each rank waits in each of its collectives, ns; -1 where it could not be matched, or stands in no sum."""
    waits = tuple(np.full(len(one), NONE, dtype=np.int64) for one in ranks)
    timed = _time_matches(ranks)
    counted = timed.is_counted[timed.matches.of_entry]
    for place, column in enumerate(waits):
        mine = counted & (timed.matches.rank == place)
        column[timed.matches.at[mine]] = timed.wait_ns[mine]
    return waits
