"""Findings about what each start pays once -> how many steps a trial needs for them, and which it cannot judge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hotloop.core.findings import Finding
from hotloop.core.measurement import Measurement

from .budget import Budget
from .search import Candidate
from .statistics import LEAST_PAIRS

STEADY_BEHIND = 10
"""Steps that a trial trains behind the start that it has to show, for the steady steps to be compared too."""
ADVICE = "compare two runs of your own, one with it: hotloop diff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What trials have: ``steps`` in each process, which takes about ``process_s``, from ``now_s`` of the clock on."""

    steps: int
    process_s: float
    now_s: float
    budget: Budget


def start_steps(findings: Iterable[Finding]) -> int:
    """The first steps of a run in which findings see a cost that each start pays once; 0 where none does."""
    counts = [finding.evidence.get("steps") for finding in findings if finding.base == "run"]
    return max((count for count in counts if isinstance(count, int)), default=0)


def least_steps(findings: Iterable[Finding]) -> int:
    """Steps that a trial needs to show the start and some steady steps behind it; 0 where nothing is paid once."""
    first = start_steps(findings)
    return first + STEADY_BEHIND if first else 0


def trial_s(observed: Measurement, steps: int) -> float:
    """About how long a process of so many steps takes, by one that was observed for longer or shorter."""
    return max(0.0, observed.duration_s - (observed.whole_count - steps) * observed.step_ns * 1e-9)


def leave_out_unjudged(
    candidates: Sequence[Candidate], findings: Sequence[Finding], room: Room
) -> tuple[Candidate, ...]:
    """The candidates; those for the start that these trials cannot judge say so in place of being tried."""
    why = why_unjudged(findings, room)
    return tuple(
        replace(one, why_not=why) if one.is_one_time and not one.why_not and why else one for one in candidates
    )


def why_unjudged(findings: Sequence[Finding], room: Room) -> str:
    """Why whole runs cannot tell within the budget what the start saves, and what would; empty where they may."""
    first = start_steps(findings)
    if not first:
        return ""  # nothing was seen to lie in the start alone
    told = f"not tried: its cost is paid once per start, in the first {first} steps"
    if room.steps < least_steps(findings):
        return f"{told}, and a trial has only {room.steps}; {ADVICE}"
    # One process of the baseline is a reference and the first pair's other side; the second reference is one more.
    needed_s = (2 * LEAST_PAIRS + 1) * room.process_s
    if room.now_s + needed_s <= room.budget.search_until_s:
        return ""
    whole_s = (room.now_s - room.budget.begun_s + needed_s) / (1 - room.budget.kept_ratio)
    minutes = math.ceil(whole_s / 60)
    return (
        f"{told}, so it takes whole runs to judge: {LEAST_PAIRS} pairs of {room.steps} steps take about "
        f"{math.ceil(needed_s / 60)} min; use --budget {minutes}m, or {ADVICE}"
    )
