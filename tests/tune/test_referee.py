"""Verdicts of pairs that are made up: what is faster, the same, refused, and what cannot be told."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hotloop.change.tune.referee import Match, referee
from hotloop.change.tune.trials import CRASH, Ran
from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement

from .records import LOSSES, failed, measurement, ok

SideOf = Callable[[str, int], Ran]


def play(run: SideOf, *, budget_s: float = 1000.0, numerics: Numerics = Numerics.REORDERED) -> Match:
    """A referee's match on a clock that each process moves on by ten seconds."""
    clock = [0.0]

    def timed(side: str, number: int) -> Ran:
        clock[0] += 10.0
        return run(side, number)

    match = Match(least_ratio=0.03, numerics=numerics, observed=measurement())
    referee(match, timed, until_s=budget_s, process_s=10.0, clock_s=lambda: clock[0], emit=lambda text: None)
    return match


def machine(ratio: float, noise: float, seed: int = 0, **b: object) -> SideOf:
    draws = random.Random(seed)

    def run(side: str, number: int) -> Ran:
        step_ns = 1e6 * (ratio if side == "B" else 1.0) * draws.lognormvariate(0.0, noise)
        changes = b if side == "B" else {}
        one: Measurement = measurement(step_ns, **changes)
        return ok(one)

    return run


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [
        (0.9, 0.01, "faster"),
        (1.1, 0.01, "slower"),
        (1.0, 0.005, "same"),
        (1.04, 0.005, "slower"),
        (1.0, 0.2, "cannot tell"),
    ],
)
def test_a_verdict_is_what_the_pairs_show(ratio: float, noise: float, verdict: str) -> None:
    match = play(machine(ratio, noise))
    assert match.verdict == verdict
    assert len(match.a) == len(match.b) >= 4


def test_equal_variants_are_almost_never_told_apart() -> None:
    verdicts = [play(machine(1.0, 0.03, seed)).verdict for seed in range(300)]
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) <= 1


def test_a_loss_that_moves_is_refused_before_any_time_is_compared() -> None:
    moved = tuple(loss * 1.05 for loss in LOSSES)
    assert play(machine(0.5, 0.01, losses=moved)).verdict == "refused"
    halves = tuple(loss * (1 + 0.005 * (-1) ** step) for step, loss in enumerate(LOSSES))
    assert play(machine(0.5, 0.01, losses=halves), numerics=Numerics.LOSSY).verdict == "faster"


def test_a_variant_that_fails_is_refused_and_its_other_side_cannot_be_told() -> None:
    def failing(name: str) -> SideOf:
        return lambda side, number: failed(CRASH) if side == name else ok(measurement())

    assert (play(failing("B")).verdict, play(failing("A")).verdict) == ("refused", "cannot tell")


def test_a_budget_that_is_too_small_is_said() -> None:
    match = play(machine(0.5, 0.01), budget_s=45.0)
    assert (match.verdict, len(match.b)) == ("cannot tell", 2)
    assert "budget" in match.reason
