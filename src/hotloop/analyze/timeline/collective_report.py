"""RankCollectives of all ranks -> CollectiveReport: who waits for whom, how fast links are, and who is to blame.

A collective begins on a rank when its kernel (or, with gloo, its range) begins there, and nobody can leave before the
last one has come. So wait = latest start - own start, transfer = latest end - latest start. This holds for all-reduce,
all-gather, reduce-scatter, all-to-all and barrier; a broadcast's root may leave early, so rooted collectives are
listed, but stand in no sum.

Bandwidth as NCCL's tests define it (PERFORMANCE.md of NVIDIA's nccl-tests): algorithm bandwidth = size / time; bus
bandwidth = that times 2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast
and reduce. The time here is the transfer alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.graph import (
    OPS,
    Clocks,
    CollectiveKind,
    CollectiveReport,
    MatchedCollective,
    RankCollectives,
    RankShare,
)
from hotloop.core.link_fit import COLLECTIVES, bus_factor
from hotloop.core.trace import TraceNote
from hotloop.core.trace_analysis import RankWait

from .clocks import align_clocks, align_instants
from .collectives import MAX_COLLECTIVES, OP
from .intervals import Int64s
from .nesting import NONE

WORST_COUNT = 50
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
    unmatched: Mapping[str, int]

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


def match_collectives(ranks: Sequence[RankCollectives]) -> Matches:
    """Join the ranks' collectives by process group, kind, size, and sequence number or order.

    Without sequence numbers the order within a step counts (within the trace where steps have no numbers), and only
    where all members have the same number of such collectives: otherwise nobody knows which belong together.
    """
    unmatched: Counter[str] = Counter()
    members, group_of = _join_groups(ranks)
    parts: list[NDArray[np.int64]] = []
    for place, one in enumerate(ranks):
        size = len(one)
        if size == 0:
            continue
        op = one.op.astype(np.int64)
        group = group_of[place][one.group] if len(one.group) else np.empty(0, dtype=np.int64)
        bytes_in = np.where(np.isin(op, [OP[o] for o in SIZED]), _payload(one), NONE)
        ordered = one.sequence < 0
        step = np.where(ordered, one.step.astype(np.int64), NONE)
        table = np.stack([group, op, bytes_in, step, one.sequence, np.full(size, place), np.arange(size)], axis=1)
        usable = np.ones(size, dtype=bool)
        for reason, left in (
            ("point-to-point", op == OP["point_to_point"]),
            ("unknown kind", op == OP["unknown"]),
            ("group unknown", _unknown_members(one, group, members, len(ranks))),
        ):
            unmatched[reason] += int(np.count_nonzero(left & usable))
            usable &= ~left
        parts.append(table[usable])
    if not parts:
        none = np.empty(0, dtype=np.int64)
        return Matches(none, none, none, {k: v for k, v in unmatched.items() if v})
    table = np.concatenate(parts)
    # By rank and key first, to number what has the same key on one rank in its order.
    order = np.lexsort((table[:, 6], table[:, 5], *table[:, 4::-1].T))
    table = table[order]
    new_rank = _differs(table[:, :6])
    run = np.flatnonzero(new_rank)
    number = np.arange(len(table)) - np.repeat(run, np.diff(np.append(run, len(table))))
    table = np.concatenate([table[:, :5], number[:, None], table[:, 5:]], axis=1)
    order = np.lexsort((table[:, 6], *table[:, 5::-1].T))
    table = table[order]
    first = np.flatnonzero(_differs(table[:, :6]))
    count = np.diff(np.append(first, len(table)))
    expected = np.array([len(m) for m in members], dtype=np.int64)[table[first, 0]]
    complete = count == expected
    # Where the order is all there is, a key that some rank has more often than another is in doubt as a whole.
    by_order = table[first, 4] < 0
    family = np.cumsum(_differs(table[first][:, :5])) - 1
    broken = np.zeros(int(family[-1]) + 1 if len(family) else 0, dtype=bool)
    broken[family[by_order & ~complete]] = True
    good = complete & ~broken[family]
    alone = good & (expected < 2)
    unmatched["single rank of its group"] += int(count[alone].sum())
    unmatched["missing on a rank"] += int(count[~good & ~by_order].sum())
    unmatched["counts differ"] += int(count[~good & by_order].sum())
    good &= ~alone
    entries = np.repeat(good, count)
    kept = table[entries]
    sizes = count[good]
    start = np.cumsum(sizes) - sizes
    return Matches(kept[:, 6], kept[:, 7], start, {k: v for k, v in unmatched.items() if v})


def _differs(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True at the first of every run of equal rows."""
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return new


def _payload(one: RankCollectives) -> Int64s:
    """Elements that identify a collective of even size on every rank."""
    return np.where(one.in_elements >= 0, one.in_elements, one.out_elements)


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


def _unknown_members(
    one: RankCollectives, group: Int64s, members: list[tuple[int, ...]], present: int
) -> NDArray[np.bool_]:
    """Collectives whose group has no listed members and a size that is not that of all ranks."""
    listed = np.array([ranks is not None for ranks in one.group_ranks], dtype=bool)
    is_listed = listed[one.group] if len(one.group) else np.zeros(0, dtype=bool)
    result: NDArray[np.bool_] = ~is_listed & (one.group_size > 0) & (one.group_size != present)
    return result


def compare_ranks(
    ranks: Sequence[RankCollectives], *, expected_bus_bytes_per_s: float | None = None
) -> CollectiveReport | None:
    """What the collectives of all ranks say together; None with fewer than two ranks.

    ``expected_bus_bytes_per_s``: bus bandwidth that the links should reach, to judge a slow link by.
    """
    if len(ranks) < 2:
        return None
    matches = match_collectives(ranks)
    clocks = align_clocks(ranks, matches.rank, matches.at, matches.first, _are_synchronising(ranks, matches))
    notes: list[TraceNote] = []
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
    start, end = _aligned(ranks, matches, clocks)
    latest, last_end, last = _latest(matches, start, end)
    of_entry = matches.of_entry
    wait = latest[of_entry] - start
    synchronising = _are_synchronising(ranks, matches)
    doubtful = _find_doubtful(ranks, matches, clocks, end, latest, synchronising)
    counted = synchronising & ~doubtful
    shares = _share_ranks(ranks, matches, wait, latest, last, counted)
    transfer = last_end - latest
    total_wait = _divide_up(int(wait[counted[of_entry]].sum()), len(ranks))
    total_transfer = int(transfer[counted].sum())
    span = int(last_end[counted].max() - start[counted[of_entry]].min()) if counted.any() else 0
    kinds = _list_kinds(ranks, matches, wait, transfer, doubtful)
    straggler = _find_straggler(shares, clocks, int(np.count_nonzero(counted)), span)
    compute_excess, own_excess = _excess(shares, straggler)
    slow_link = _judge_links(kinds, total_transfer, span, expected_bus_bytes_per_s)
    cause, reason = _name_cause(shares, straggler, compute_excess, own_excess, slow_link, total_wait, span)
    if int(np.count_nonzero(doubtful)):
        notes.append(
            TraceNote(
                level="warning",
                code="doubtful-collectives",
                message=f"{int(np.count_nonzero(doubtful))} collectives end on a rank before the last rank arrived "
                "and are left out; they are matched wrongly, or the clock offset is wrong",
                count=int(np.count_nonzero(doubtful)),
            )
        )
    return CollectiveReport(
        ranks=shares,
        kinds=kinds,
        matched_count=int(np.count_nonzero(~doubtful)),
        doubtful_count=int(np.count_nonzero(doubtful)),
        unmatched=matches.unmatched,
        clocks=clocks,
        wait_ns=total_wait,
        transfer_ns=total_transfer,
        span_ns=span,
        straggler=straggler,
        cause=cause,
        cause_reason=reason,
        straggler_compute_excess_ns=compute_excess,
        straggler_own_excess_ns=own_excess,
        worst=_list_worst(ranks, matches, wait, latest, last_end, last, doubtful),
        notes=tuple(notes),
    )


def _divide_up(total: int, parts: int) -> int:
    return (total + parts // 2) // parts if parts else 0


def _column(ranks: Sequence[RankCollectives], matches: Matches, field: str) -> NDArray[np.int64]:
    """One column of every matched entry."""
    result = np.empty(len(matches.rank), dtype=np.int64)
    for place, one in enumerate(ranks):
        mine = matches.rank == place
        result[mine] = getattr(one, field)[matches.at[mine]]
    return result


def _are_synchronising(ranks: Sequence[RankCollectives], matches: Matches) -> NDArray[np.bool_]:
    op = _column(ranks, matches, "op")[matches.first] if len(matches) else np.empty(0, dtype=np.int64)
    return np.isin(op, [OP[o] for o in SYNCHRONISING])


def _aligned(ranks: Sequence[RankCollectives], matches: Matches, clocks: Clocks) -> tuple[Int64s, Int64s]:
    start, end = _column(ranks, matches, "start_ns"), _column(ranks, matches, "end_ns")
    for place in range(len(ranks)):
        mine = matches.rank == place
        start[mine], end[mine] = (align_instants(clocks, place, one[mine]) for one in (start, end))
    return start, end


def _latest(matches: Matches, start: Int64s, end: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """(latest start, latest end, place of the rank that came last; the lowest of several) of each collective."""
    if len(matches) == 0:
        none = np.empty(0, dtype=np.int64)
        return none, none, none
    latest = np.maximum.reduceat(start, matches.first)
    last_end = np.maximum.reduceat(end, matches.first)
    far = np.iinfo(np.int64).max
    came_last = np.where(start == latest[matches.of_entry], matches.rank, far)
    return latest, last_end, np.minimum.reduceat(came_last, matches.first)


def _find_doubtful(
    ranks: Sequence[RankCollectives],
    matches: Matches,
    clocks: Clocks,
    end: Int64s,
    latest: Int64s,
    synchronising: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    if len(matches) == 0:
        return np.zeros(0, dtype=bool)
    slack = np.array(
        [
            2 * (offset.uncertainty_ns or 0) + 2 * one.time_unit_ns
            for offset, one in zip(clocks.offsets, ranks, strict=True)
        ],
        dtype=np.int64,
    )
    early = end + slack[matches.rank] < latest[matches.of_entry]
    result: NDArray[np.bool_] = np.maximum.reduceat(early, matches.first) & synchronising
    return result


def _share_ranks(
    ranks: Sequence[RankCollectives],
    matches: Matches,
    wait: Int64s,
    latest: Int64s,
    last: Int64s,
    counted: NDArray[np.bool_],
) -> tuple[RankShare, ...]:
    entries = counted[matches.of_entry]
    found = np.flatnonzero(counted)
    first = int(found[np.argmin(latest[found])]) if len(found) else None
    shares = []
    for place, one in enumerate(ranks):
        mine = entries & (matches.rank == place)
        at = np.sort(matches.at[mine])
        start, end = one.start_ns[at], np.maximum.accumulate(one.end_ns[at]) if len(at) else one.end_ns[at]
        shares.append(
            RankShare(
                rank=one.rank,
                wait_ns=int(wait[mine].sum()),
                first_wait_ns=int(wait[mine & (matches.of_entry == first)].sum()) if first is not None else 0,
                last_arrivals_count=int(np.count_nonzero(last[counted] == place)),
                own_ns=int(np.maximum(start[1:] - end[:-1], 0).sum()),
                compute_ns=int(one.compute_before_ns[at[1:]].sum()),
            )
        )
    return tuple(shares)


def _sizes_bytes(ranks: Sequence[RankCollectives], matches: Matches) -> Int64s:
    """Bytes of each matched collective by the rule of NCCL's tests, mean over its ranks; -1 where unknown."""
    if len(matches) == 0:
        return np.empty(0, dtype=np.int64)
    op = _column(ranks, matches, "op")
    sent, got = _column(ranks, matches, "in_elements"), _column(ranks, matches, "out_elements")
    width = _column(ranks, matches, "element_bytes")
    members = _member_counts(ranks, matches)[matches.of_entry]
    gathered = np.where(got >= 0, got, np.where(sent >= 0, sent * members, NONE))
    elements = np.where(op == OP["all_gather"], gathered, np.where(sent >= 0, sent, got))
    known = (elements >= 0) & (width > 0)
    total = np.add.reduceat(np.where(known, elements * width, 0), matches.first)
    whole = np.minimum.reduceat(known.astype(np.int64), matches.first) == 1
    return np.where(whole, total // matches.count, NONE)


def _member_counts(ranks: Sequence[RankCollectives], matches: Matches) -> Int64s:
    size = _column(ranks, matches, "group_size")[matches.first]
    listed = np.empty(len(matches), dtype=np.int64)
    for i, entry in enumerate(matches.first.tolist()):
        one = ranks[int(matches.rank[entry])]
        members = one.group_ranks[int(one.group[matches.at[entry]])]
        listed[i] = len(members) if members is not None else NONE
    return np.where(size > 0, size, np.where(listed > 0, listed, matches.count))


def _list_kinds(
    ranks: Sequence[RankCollectives], matches: Matches, wait: Int64s, transfer: Int64s, doubtful: NDArray[np.bool_]
) -> tuple[CollectiveKind, ...]:
    if len(matches) == 0:
        return ()
    op = _column(ranks, matches, "op")[matches.first]
    size, members = _sizes_bytes(ranks, matches), _member_counts(ranks, matches)
    names = [_group_name(ranks, matches, i) for i in range(len(matches))]
    mean_wait = np.add.reduceat(wait, matches.first) // matches.count
    table: dict[tuple[int, str, int, int], list[int]] = {}
    for i in np.flatnonzero(~doubtful).tolist():
        table.setdefault((int(op[i]), names[i], int(size[i]), int(members[i])), []).append(i)
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
                min_transfer_ns=int(transfer[at].min()),
                algorithm_bytes_per_s=speed,
                bus_bytes_per_s=speed * factor if speed is not None and factor is not None else None,
            )
        )
    return tuple(sorted(kinds, key=lambda k: (-k.wait_ns - k.transfer_ns, k.op, k.group, k.bytes or 0)))


def _group_name(ranks: Sequence[RankCollectives], matches: Matches, i: int) -> str:
    entry = int(matches.first[i])
    one = ranks[int(matches.rank[entry])]
    return one.groups[int(one.group[matches.at[entry]])]


def _list_worst(
    ranks: Sequence[RankCollectives],
    matches: Matches,
    wait: Int64s,
    latest: Int64s,
    last_end: Int64s,
    last: Int64s,
    doubtful: NDArray[np.bool_],
) -> tuple[MatchedCollective, ...]:
    if len(matches) == 0:
        return ()
    total = np.add.reduceat(wait, matches.first)
    size, members = _sizes_bytes(ranks, matches), _member_counts(ranks, matches)
    op, step = _column(ranks, matches, "op")[matches.first], _column(ranks, matches, "step")[matches.first]
    count = matches.count
    listed = []
    for i in np.argsort(-total, kind="stable")[:WORST_COUNT].tolist():
        low = int(matches.first[i])
        high = low + int(count[i])
        listed.append(
            MatchedCollective(
                op=OPS[int(op[i])],
                group=_group_name(ranks, matches, i),
                step=int(step[i]) if step[i] >= 0 else None,
                bytes=int(size[i]) if size[i] >= 0 else None,
                members_count=int(members[i]),
                ranks=tuple(matches.rank[low:high].tolist()),
                waits_ns=tuple(wait[low:high].tolist()),
                last=int(last[i]),
                latest_start_ns=int(latest[i]),
                end_ns=int(last_end[i]),
                is_doubtful=bool(doubtful[i]),
            )
        )
    return tuple(listed)


STRAGGLER_RATIO = 0.02
"""Share of the time between the first and the last collective that the others must wait for one rank."""
LINK_TIME_RATIO = 0.10
SLOW_LINK_RATIO = 0.5
LARGE_BYTES = 1 << 20
"""Smaller collectives measure latency, not links."""


def _find_straggler(shares: tuple[RankShare, ...], clocks: Clocks, count: int, span: int) -> int | None:
    """The rank that waits least and comes last most often, where the others' excess is above what clocks can feign."""
    if count == 0:
        return None
    least = min(range(len(shares)), key=lambda i: (shares[i].wait_ns, -shares[i].last_arrivals_count))
    most = max(share.last_arrivals_count for share in shares)
    others = sorted(s.wait_ns for i, s in enumerate(shares) if i != least)
    excess = others[(len(others) - 1) // 2] - shares[least].wait_ns
    feigned = count * max((offset.uncertainty_ns or 0) for offset in clocks.offsets)
    if shares[least].last_arrivals_count < most or excess < STRAGGLER_RATIO * span or excess <= feigned:
        return None
    return least


def _excess(shares: tuple[RankShare, ...], straggler: int | None) -> tuple[int | None, int | None]:
    if straggler is None:
        return None, None
    others = [s for i, s in enumerate(shares) if i != straggler]

    def middle(values: list[int]) -> int:
        return sorted(values)[(len(values) - 1) // 2]

    compute = shares[straggler].compute_ns - middle([s.compute_ns for s in others])
    own = shares[straggler].own_ns - middle([s.own_ns for s in others])
    return compute, own


def _judge_links(
    kinds: tuple[CollectiveKind, ...], transfer: int, span: int, expected: float | None
) -> tuple[bool | None, str]:
    """(whether links are slow; None when nobody can tell, why)."""
    if span == 0 or transfer < LINK_TIME_RATIO * span:
        return False, "transfers take little of the time"
    large = [k for k in kinds if k.op in SYNCHRONISING and (k.bytes or 0) >= LARGE_BYTES and k.bus_bytes_per_s]
    if not large:
        return None, "no collective is large enough to measure the links"
    best = max(k.bus_bytes_per_s or 0.0 for k in large)
    if expected is not None:
        return best < SLOW_LINK_RATIO * expected, f"the best bus bandwidth is {best / 1e9:.2f} GB/s"
    uneven = [k for k in large if k.count >= 8 and k.median_transfer_ns * SLOW_LINK_RATIO > k.min_transfer_ns]
    if uneven:
        return True, "the same transfer can take more than twice its best time: the links are shared or unsteady"
    return None, f"the best bus bandwidth is {best / 1e9:.2f} GB/s; the capacity of the links is unknown"


def _name_cause(
    shares: tuple[RankShare, ...],
    straggler: int | None,
    compute_excess: int | None,
    own_excess: int | None,
    link: tuple[bool | None, str],
    wait: int,
    span: int,
) -> tuple[str, str]:
    slow, why = link
    if span == 0:
        return "unknown", "no collective could be matched across ranks"
    if straggler is None:
        if slow:
            return "slow-link", why
        if slow is None:
            return "unknown", why
        small = wait < STRAGGLER_RATIO * span
        return (
            "balanced" if small else "unknown",
            "ranks arrive together" if small else "ranks wait, but not for a single rank",
        )
    rank = shares[straggler].rank
    who = f"rank {rank}" if rank is not None else f"file {straggler}"
    if compute_excess and own_excess and compute_excess * 2 > own_excess:
        reason = f"{who} arrives last: its device computes {compute_excess} ns longer than the others'"
    else:
        reason = f"{who} arrives last; its device does not compute longer, so its host or its input is late"
    waited, before = sum(s.wait_ns for s in shares), sum(s.first_wait_ns for s in shares)
    if before * 2 > waited:
        reason += (
            f"; {before * 100 // waited} % of the wait is in the first recorded collective, so its cause is before "
            "the recording"
        )
    return ("both", f"{reason}; {why}") if slow else ("slow-rank", reason)


def list_waits(ranks: Sequence[RankCollectives]) -> tuple[Int64s, ...]:
    """What each rank waits in each of its collectives, ns; -1 where it could not be matched, or stands in no sum."""
    waits = tuple(np.full(len(one), NONE, dtype=np.int64) for one in ranks)
    matches = match_collectives(ranks)
    synchronising = _are_synchronising(ranks, matches)
    clocks = align_clocks(ranks, matches.rank, matches.at, matches.first, synchronising)
    start, end = _aligned(ranks, matches, clocks)
    latest, _, _ = _latest(matches, start, end)
    doubtful = _find_doubtful(ranks, matches, clocks, end, latest, synchronising)
    counted = (synchronising & ~doubtful)[matches.of_entry]
    wait = latest[matches.of_entry] - start
    for place, column in enumerate(waits):
        mine = counted & (matches.rank == place)
        column[matches.at[mine]] = wait[mine]
    return waits


def compute_waits_by_row(ranks: Sequence[RankCollectives], place: int) -> dict[int, int]:
    """What one rank waits in each of its matched collectives, ns, by row of the first device event or range."""
    wait = list_waits(ranks)[place]
    known = wait >= 0
    return dict(zip(ranks[place].first_row[known].tolist(), wait[known].tolist(), strict=True))


def list_rank_waits(report: CollectiveReport) -> tuple[RankWait, ...]:
    """The waits as the rules take them; empty when nothing could be matched."""
    if not report.matched_count:
        return ()
    return tuple(
        RankWait(rank=s.rank, wait_ns=s.wait_ns, last_arrivals_count=s.last_arrivals_count) for s in report.ranks
    )
