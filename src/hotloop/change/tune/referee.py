"""Two variants of a training -> the faster one: fresh processes in turn, until it is known or time is up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from hotloop.core.proof import ProofVerdict
from hotloop.core.tuning import TrialVerdict

from . import goals, statistics
from .quality import Quality, judge_measured, make_guard
from .trials import Ran, pick_unit, time_per_unit

LEVEL = 0.003
"""Two-sided probability of a wrong ``faster`` or ``slower`` over all looks: at most one in 300 equal variants."""
SAME_LEVEL = 0.1
"""Level of the interval that has to be within the smallest difference that matters: two one-sided tests at 5 %."""
LEAST_GUARDED = 3
"""Processes of A from which its own spread of losses is known, where they are not equal bit for bit."""

RunSide = Callable[[str, int], Ran]
"""A side ("A" or "B") and the number of its process -> how that process went."""


@dataclass(slots=True, kw_only=True)
class Match:
    """A referee's knowledge so far. ``observed`` is A's first process, which determines the length of all others.

    Without ``numerics``, B may train another model: only times are compared.
    """

    least_ratio: float
    numerics: Numerics | None
    observed: Measurement | None = None
    a: list[Measurement] = field(default_factory=list)
    b: list[Measurement] = field(default_factory=list)
    verdict: ProofVerdict = "cannot tell"
    reason: str = "no pair of processes was run"
    comparison: statistics.PairComparison | None = None
    guard: Quality = field(default_factory=lambda: Quality(status="unknown", reason="no process of B was run"))

    @property
    def unit(self) -> str:
        return pick_unit([*self.a, *self.b]) if self.b else "step"

    def times_ns(self, side: Sequence[Measurement]) -> tuple[float, ...]:
        return tuple(time_per_unit(process, self.unit) for process in side)


class SideFailed(Exception):
    """A process of one side did not train."""

    def __init__(self, side: str, ran: Ran) -> None:
        super().__init__(f"{ran.ended}: {ran.reason}")
        self.side, self.ran = side, ran


def run_pairs(
    run: RunSide, most: int, *, until_s: float, process_s: float, clock_s: Callable[[], float]
) -> Iterator[tuple[Measurement, Measurement]]:
    """A process of each side, up to a number of times and while another pair fits in. Raises SideFailed.

    Every second pair runs backwards, so that a drift of the machine cancels. ``process_s`` is how long a process may
    take at first.
    """
    for number in range(most):
        begun_s = clock_s()
        if begun_s + 2 * process_s > until_s:
            return
        pair: dict[str, Measurement] = {}
        for side in ("B", "A") if number % 2 else ("A", "B"):
            ran = run(side, number)
            if ran.measured is None:
                raise SideFailed(side, ran)
            pair[side] = ran.measured
        process_s = (clock_s() - begun_s) / 2
        yield pair["A"], pair["B"]


def referee(
    match: Match,
    run: RunSide,
    *,
    until_s: float,
    process_s: float,
    clock_s: Callable[[], float],
    emit: Callable[[str], None],
) -> None:
    """Run pairs until a verdict. ``match`` holds the outcome, whatever ends this."""
    try:
        for a, b in run_pairs(run, statistics.MOST_PAIRS, until_s=until_s, process_s=process_s, clock_s=clock_s):
            match.a.append(a)
            match.b.append(b)
            judge(match)
            emit(f"pair {len(match.b)}: {match.verdict}, {match.reason}")
            if match.verdict != "cannot tell":
                return
    except SideFailed as failure:
        match.verdict = "refused" if failure.side == "B" else "cannot tell"
        match.reason = f"{failure.side} failed: {failure.ran.ended}, {failure.ran.reason}"
        return
    if len(match.b) < statistics.MOST_PAIRS:
        match.reason = f"the budget ran out: {match.reason}"


def judge(match: Match) -> None:
    """The verdict of the pairs so far; the loss goes before the time."""
    match.guard, is_sure = _judge_numbers(match)
    if match.guard.status == "rejected" and is_sure:
        match.verdict, match.reason = "refused", f"B trains a different model: {match.guard.reason}"
        return
    strict, wide = (goals.compare_speed(match.a, match.b, match.a, level=level) for level in (LEVEL, SAME_LEVEL))
    match.comparison = strict
    match.reason = _say_why(strict)
    if strict.verdict in (TrialVerdict.FASTER, TrialVerdict.SLOWER):
        match.verdict = "faster" if strict.verdict is TrialVerdict.FASTER else "slower"
    elif _is_within(wide, match.least_ratio):
        match.verdict = "same"
    if match.verdict != "cannot tell" and match.guard.status == "rejected":
        match.verdict = "cannot tell"  # one process of B left the band, and A's own spread is not known well enough yet


def _is_within(found: statistics.PairComparison, most_ratio: float) -> bool:
    """Whether all that the interval holds is smaller than the difference that matters."""
    if found.low_ratio is None or found.high_ratio is None:
        return False
    return found.high_ratio < 1 / (1 - most_ratio) and found.low_ratio > 1 / (1 + most_ratio)


def _say_why(found: statistics.PairComparison) -> str:
    if found.low_ratio is None or found.noise_ratio is None:
        return found.reason
    _, found_one, words = found.reason.partition(", corrected for ")
    corrected = f", corrected for {words}" if found_one else ""
    return f"{found.n} pairs whose ratio spreads by {found.noise_ratio:.1%}{corrected}"


def _judge_numbers(match: Match) -> tuple[Quality, bool]:
    """The verdict on the losses of B against those of A, and whether that can end the proof."""
    if match.numerics is None:
        return Quality(status="unknown", reason="only times are compared"), False
    references = [*([match.observed] if match.observed else []), *match.a]
    bands = make_guard(references, match.a)
    qualities = [judge_measured(bands, process, match.numerics).quality for process in match.b]
    rejected = [quality for quality in qualities if quality.status == "rejected"]
    if not rejected:
        return qualities[-1], False
    is_sure = bands.loss.is_repeatable or (len(match.a) >= LEAST_GUARDED and 2 * len(rejected) > len(match.b))
    return rejected[0], is_sure
