"""Ends of matched collectives -> Clocks: how far each rank's clock is off, and what is corrected.

Nobody leaves a synchronising collective before the last one has come, and all leave within its last transfer, so the
median difference of the ends of two ranks is the difference of their clocks. Ranks of one host share a clock: there
the difference is measured and shown, but never applied. Over a long recording the clocks of two hosts also drift apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hotloop.analyze.clock_line import MOST_DRIFT_PPM, ClockLine, fit_line
from hotloop.core.graph import ClockOffset, Clocks, RankCollectives
from hotloop.core.hosts import HostClock

from .intervals import Int64s

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
            reason=f"{one.reason}, with its drift",
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
        applied, reason = 0, ""
        if place == 0:
            reason = "the reference"
        elif one.host is not None and one.host == reference:
            reason = "one host, one clock: not applied"
        elif value is None:
            reason = "no common collectives: clocks are used as they are"
        elif one.host is not None and reference is not None:
            on_host = sorted(by_host[one.host])
            applied = (on_host[(len(on_host) - 1) // 2] + on_host[len(on_host) // 2]) // 2
            reason = f"another host: median of its {len(on_host)} ranks"
        elif abs(value[0]) <= value[1]:
            reason = "within its uncertainty: not applied"
        else:
            applied = value[0]
            reason = "the hosts are not known, and the clocks differ by more than the uncertainty"
        offsets.append(
            ClockOffset(
                rank=one.rank,
                host=one.host,
                measured_ns=None if value is None else value[0],
                uncertainty_ns=None if value is None else value[1],
                collectives_count=0 if value is None else value[2],
                applied_ns=applied,
                reason=reason,
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
