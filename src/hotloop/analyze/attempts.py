"""Attempts of a training -> what its restarts cost, and which ranks began late."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hotloop.core.hosts import Attempt
from hotloop.core.report import Health

from .host_clocks import Clock, corrected_s
from .process import ProcessAnalysis

LATE_S = 2.0
"""Ranks that begin so much later than most are told; imports alone make them differ by less."""

Processes = Sequence[ProcessAnalysis]


def describe_attempts(attempts: Sequence[Processes], clocks: dict[str, Clock]) -> tuple[Attempt, ...]:
    """Every attempt, with what was lost between it and the one before."""
    found = [_describe(attempts[0])]
    for before, after in pairwise(attempts):
        this = _describe(after)
        repeated, basis = _count_repeated(found[-1], this, before)
        longest = max(before, key=lambda p: p.rank.steps)
        kept = None if repeated is None else max(0, longest.rank.steps - repeated)
        found.append(
            replace(
                this,
                gap_ns=_find_gap(before, after, clocks),
                repeated_steps=repeated,
                repeated_ns=None if kept is None else _time_after(longest, kept),
                repeated_basis=basis,
            )
        )
    return tuple(found)


def _describe(processes: Processes) -> Attempt:
    counted = [one.state_steps for p in processes for one in p.rank.optimizers if one.state_steps is not None]
    return Attempt(
        restart=max(p.rank.restart for p in processes),
        world_size=max(p.rank.world_size for p in processes),
        ranks_count=len(processes),
        hosts=tuple(dict.fromkeys(p.rank.host for p in processes)),
        steps=max(p.rank.steps for p in processes),
        # The state was read behind the first step.
        first_step=max(0, max(counted) - 1) if counted else None,
        trained_ns=max(p.trained_ns for p in processes),
    )


def _count_repeated(before: Attempt, this: Attempt, processes: Processes) -> tuple[int | None, str | None]:
    """Steps of the attempt before that are made again, and how that is known."""
    if before.first_step is not None and this.first_step is not None:
        return max(0, before.first_step + before.steps - this.first_step), "optimizer state"
    saved = [p.ends.saved_after for p in processes if p.ends.saved_after is not None]
    return (max(0, before.steps - max(saved)), "last checkpoint") if saved else (None, None)


def _time_after(process: ProcessAnalysis, done: int) -> int:
    """From the end of so many steps to the end of the last one, ns."""
    ends = process.ends
    begin = ends.at_step(done) if done >= int(ends.done[0]) else float(ends.marks_ns[-1, 0]) - process.trained_ns
    return max(0, round(float(ends.marks_ns[-1, 0]) - begin))


def _find_gap(before: Processes, after: Processes, clocks: dict[str, Clock]) -> int | None:
    """From the last step of one attempt to the first of the next, ns: on the clock of a host of both where there is
    one, else on clocks that can be compared."""
    gaps = []
    for host in dict.fromkeys(p.rank.host for p in after):
        ended = [p.end_wall_s for p in before if p.rank.host == host and p.end_wall_s is not None]
        began = [p.begin_wall_s for p in after if p.rank.host == host and p.begin_wall_s is not None]
        if ended and began:
            gaps.append(min(began) - max(ended))
    if not gaps:
        ended = [t for p in before if (t := corrected_s(p, p.end_wall_s, clocks)) is not None]
        began = [t for p in after if (t := corrected_s(p, p.begin_wall_s, clocks)) is not None]
        gaps = [min(began) - max(ended)] if ended and began else []
    return round(max(0.0, min(gaps)) * 1e9) if gaps else None


def warn_of_restarts(attempts: Sequence[Attempt]) -> tuple[Health, ...]:
    """That the figures are of the last attempt alone, how many ranks each had, and what the restarts cost."""
    if len(attempts) < 2:
        return ()
    earlier, last = attempts[:-1], attempts[-1]
    steps = max(one.steps for one in earlier)
    text = "1 earlier attempt" if len(earlier) == 1 else f"{len(earlier)} earlier attempts"
    most = f"up to {steps} step{'' if steps == 1 else 's'} a process"
    is_or_are = "is" if len(earlier) == 1 else "are"
    message = f"the training was restarted: {text} ({most}) {is_or_are} not included in the figures"
    if len({one.world_size for one in attempts}) > 1:
        message += "; world size " + ", then ".join(str(one.world_size) for one in attempts)
    cost = describe_cost(attempts)
    gone = [host for host in dict.fromkeys(host for one in earlier for host in one.hosts) if host not in last.hosts]
    new = [host for host in last.hosts if host not in attempts[0].hosts]
    moved = [f"{', '.join(hosts)} {word}" for hosts, word in ((gone, "left"), (new, "joined")) if hosts]
    return (Health(level="warning", message="; ".join((message, *moved, *((cost,) if cost else ())))),)


def describe_cost(attempts: Sequence[Attempt]) -> str | None:
    """What the restarts cost, in words; None where nothing of it is known."""
    restarts = attempts[1:]
    gaps = [one.gap_ns for one in restarts if one.gap_ns is not None]
    parts = []
    if gaps:
        parts.append(f"{sum(gaps) * 1e-9:.3g} s without a step")
    again = [(one.repeated_steps, one.repeated_ns or 0) for one in restarts if one.repeated_steps is not None]
    if len(again) == len(restarts) and again:
        count = sum(steps for steps, _ in again)
        taken = f", {sum(ns for _, ns in again) * 1e-9:.3g} s" if count else ""
        assumed = any(one.repeated_basis == "last checkpoint" for one in restarts)
        parts.append(
            f"{count:,} step{'' if count == 1 else 's'} made again{taken}"
            + (" if the last checkpoint was loaded" if assumed else "")
        )
    elif restarts:
        parts.append("how many steps were made again is not known")
    return f"restarts cost {' and '.join(parts)}" if gaps or again else None


def tell_late_ranks(processes: Processes, clocks: dict[str, Clock]) -> tuple[Health, ...]:
    """Ranks that began LATE_S later than most, as far as clocks tell."""
    alone = len({p.rank.host for p in processes}) == 1
    began = [p.begin_wall_s if alone else corrected_s(p, p.begin_wall_s, clocks) for p in processes]
    known = [(p, at) for p, at in zip(processes, began, strict=True) if at is not None and p.rank.rank is not None]
    if len(known) < 2:
        return ()
    usual = statistics.median_low([at for _, at in known])
    late = [(p.rank.rank, at - usual) for p, at in known if at - usual > LATE_S]
    if not late:
        return ()
    ranks = tuple(rank for rank, _ in late if rank is not None)
    seconds = max(after for _, after in late)
    message = f"{name_ranks(ranks)} began up to {seconds:.3g} s after the others, which waited in their first step"
    return (Health(level="info", message=message),)


def name_ranks(ranks: Sequence[int]) -> str:
    """
    >>> name_ranks((4, 5, 6, 7)), name_ranks((2,)), name_ranks((0, 2, 3))
    ('ranks 4-7', 'rank 2', 'ranks 0, 2-3')
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    named = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'' if len(ranks) == 1 else 's'} {named}"
