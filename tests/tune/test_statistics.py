"""Verdicts on drawn processes: right, rarely wrong, and honest about what a few processes can tell."""

import random

import pytest

from hotloop.tune.statistics import (
    CANNOT_TELL,
    FASTER,
    LOOKS,
    SLOWER,
    compare,
    measure_noise,
    order_abba,
    student_quantile,
)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [(0.975, 1, 12.706), (0.975, 10, 2.228), (0.995, 6, 3.707), (0.9995, 30, 3.646), (0.5, 7, 0.0)],
)
def test_quantiles_of_student_are_those_of_the_tables(probability: float, freedom: float, value: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(value, abs=1e-3)


def draw(random_: random.Random, n: int, mean: float, kind: str) -> list[float]:
    """Process means as they were seen: near-normal, heavy-tailed, two modes, drifting."""
    out, drift = [], 0.0
    for _ in range(n):
        noise = random_.gauss(0, 0.02)
        if kind == "tails":
            noise = 0.02 * random_.gauss(0, 1) / max(0.05, random_.gammavariate(1.5, 1 / 1.5)) ** 0.5
        elif kind == "modes":
            noise += 0.15 * (random_.random() < 0.2)
        elif kind == "drift":
            drift = 0.8 * drift + random_.gauss(0, 0.02)
            noise = drift
        out.append(mean * (1 + max(-0.9, noise)))
    return out


def decide(random_: random.Random, kind: str, gain: float) -> str:
    """A whole comparison as tune makes it: processes in ABBA order, looked at after each planned number."""
    sequence = draw(random_, 2 * LOOKS[-1], 10.0, kind)
    arms: tuple[list[float], list[float]] = ([], [])
    for time, changed in zip(sequence, order_abba(LOOKS[-1]), strict=True):
        arms[changed].append(time * (1 - gain if changed else 1))
        n = min(map(len, arms))
        if len(arms[0]) == len(arms[1]) and n in LOOKS:
            found = compare(*arms, noise_ratio=measure_noise(arms))
            if found.verdict != CANNOT_TELL:
                return found.verdict
    return CANNOT_TELL


@pytest.mark.parametrize("kind", ["normal", "tails", "modes", "drift"])
def test_equal_arms_are_told_apart_in_at_most_one_and_a_half_percent(kind: str) -> None:
    random_ = random.Random(f"aa {kind}")
    wrong = sum(decide(random_, kind, 0.0) != CANNOT_TELL for _ in range(1000))
    assert wrong <= 15


@pytest.mark.parametrize("kind", ["normal", "tails", "drift"])
def test_five_percent_are_found_and_never_with_the_wrong_sign(kind: str) -> None:
    random_ = random.Random(f"five {kind}")
    verdicts = [decide(random_, kind, 0.05) for _ in range(200)]
    assert verdicts.count(SLOWER) == 0
    assert verdicts.count(FASTER) >= 160
    assert decide(random_, kind, -0.2) == SLOWER


def test_few_processes_decide_nothing() -> None:
    found = compare([10.0, 10.0, 10.0], [5.0, 5.0, 5.0])
    assert found.verdict == CANNOT_TELL
    assert found.speedup_ratio == pytest.approx(2.0)
    assert compare([10.0] * 4, [5.0] * 4).verdict == FASTER
    assert compare([10.0], [5.0]).high_ratio == float("inf")


def test_processes_that_agree_by_chance_prove_no_small_spread() -> None:
    """1 % apart with no spread at all in four processes each: less than the machine's noise can tell."""
    assert compare([10.0] * 4, [9.9] * 4).verdict == CANNOT_TELL


def test_times_that_are_no_times_are_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        compare([1.0], [0.0])
    with pytest.raises(ValueError, match="above zero"):
        compare([], [1.0])
