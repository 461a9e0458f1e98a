"""The verdict over process means: bounds against tables, and how often it errs on noise like a shared machine's."""

import math
import random
from collections.abc import Callable, Sequence

import pytest

from hotloop.change.tune.goals import CROWDING
from hotloop.change.tune.statistics import (
    DECISION_LEVEL,
    LOOKS,
    MOST_PAIRS,
    Covariate,
    Noise,
    compare,
    crowding,
    level_pairs,
    noise_of,
    pairs_to_decide,
    t_bound,
)
from hotloop.core.tuning import TrialVerdict

TABLE = (
    (1, 0.05, 12.706),
    (2, 0.01, 9.925),
    (3, 0.002, 10.215),
    (5, 0.001, 6.869),
    (7, 0.002, 4.785),
    (30, 0.01, 2.750),
)


@pytest.mark.parametrize(("freedom", "level", "bound"), TABLE)
def test_bounds_are_those_of_printed_tables(freedom: int, level: float, bound: float) -> None:
    assert t_bound(freedom, level) == pytest.approx(bound, rel=1e-3)


def test_the_two_directions_mirror_each_other() -> None:
    slow, fast = [10.0, 10.2, 9.9, 10.1], [5.0, 5.1, 4.9, 5.0]
    faster, slower = compare(slow, fast), compare(fast, slow)
    assert (faster.verdict, slower.verdict) == (TrialVerdict.FASTER, TrialVerdict.SLOWER)
    assert faster.low_ratio is not None
    assert slower.high_ratio is not None
    assert faster.low_ratio == pytest.approx(1 / slower.high_ratio)


def test_equal_arms_end_early_without_a_winner() -> None:
    a = [10.0, 10.01, 9.99, 10.0, 10.01]
    found = compare(a, a[1:] + a[:1])
    assert (found.verdict, found.decided) == (TrialVerdict.CANNOT_TELL, True)
    assert "below 2%" in found.reason


def test_a_certain_difference_below_one_percent_is_not_recommended() -> None:
    base = [10.0, 10.0001, 9.9999, 10.0]
    assert compare(base, [x / 1.005 for x in base]).verdict is TrialVerdict.CANNOT_TELL


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite and positive"):
        compare([1.0], [bad])


def machine(generator: random.Random, count: int) -> list[float]:
    """Times of ``count`` processes in a row: heavy tails (slow ones), drift that stays for a while, bursts of load."""
    level, burst, times = 0.0, 0, []
    for _ in range(count):
        level = 0.8 * level + generator.gauss(0, 0.02)
        burst = burst - 1 if burst else (generator.randrange(1, 5) if generator.random() < 0.08 else 0)
        tail = generator.expovariate(40) if generator.random() < 0.2 else 0.0
        times.append(math.exp(level + 0.25 * bool(burst) + tail + generator.gauss(0, 0.01)))
    return times


def verdict_in_turn(
    run: Callable[[float], tuple[float, ...]], speedup: float, most_pairs: int, words: Sequence[str]
) -> TrialVerdict:
    """A comparison of processes that ``run`` makes, AB BA AB: time per unit, then a value for each covariate."""
    every, own = [run(1.0), run(1.0)], []
    for number in range(most_pairs):
        first = run(1 / speedup if number % 2 else 1.0)
        second = run(1.0 if number % 2 else 1 / speedup)
        every.append(second if number % 2 else first)
        own.append(first if number % 2 else second)
        if len(own) not in dict(LOOKS):
            continue
        base = every[2:]
        covariates = [
            Covariate(
                baseline=[one[place] for one in base],
                candidate=[one[place] for one in own],
                every=[(one[0], one[place]) for one in every],
                words=name,
            )
            for place, name in enumerate(words, start=1)
        ]
        found = compare(
            [one[0] for one in base],
            [one[0] for one in own],
            noise=noise_of([one[0] for one in every]),
            covariates=covariates,
        )
        if found.decided:
            return found.verdict
    return TrialVerdict.CANNOT_TELL


def restless_verdict(generator: random.Random, speedup: float) -> TrialVerdict:
    times = iter(machine(generator, 2 + 2 * MOST_PAIRS))
    return verdict_in_turn(lambda factor: (factor * next(times),), speedup, MOST_PAIRS, [])


def test_equal_arms_on_a_restless_machine_are_told_apart_at_most_at_the_level() -> None:
    generator = random.Random(11)
    count = 2_000
    wrong = sum(restless_verdict(generator, 1.0) is not TrialVerdict.CANNOT_TELL for _ in range(count))
    assert wrong <= 0.015 * count, f"{wrong} of {count} at level {DECISION_LEVEL}"


def test_the_noise_of_other_processes_never_makes_an_interval_narrower_than_they_say() -> None:
    """Three pairs agree to the bit by chance: with the baseline's spread beside them they prove nothing."""
    quiet = compare([10.0] * 4, [9.8] * 4)
    beside = compare([10.0] * 4, [9.8] * 4, noise=Noise(spread_ratio=0.05, freedom=6))
    assert quiet.verdict is TrialVerdict.FASTER
    assert beside.verdict is TrialVerdict.CANNOT_TELL
    # A spread that is told by more processes decides earlier than three degrees of freedom can.
    times = [10.0, 11.0, 9.4, 10.6], [6.1, 6.0, 6.4, 6.9]
    assert compare(*times, level=0.001).verdict is TrialVerdict.CANNOT_TELL
    assert compare(*times, level=0.001, noise=Noise(spread_ratio=0.12, freedom=12)).verdict is TrialVerdict.FASTER


def test_pairs_that_are_noisier_than_the_baseline_stand_for_themselves() -> None:
    """The baseline's degrees of freedom count only where its spread is theirs."""
    times = [10.0, 12.0, 9.0, 10.6], [6.1, 5.0, 6.4, 7.9]
    alike = compare(*times, level=0.01, noise=Noise(spread_ratio=0.2, freedom=12))
    quieter = compare(*times, level=0.01, noise=Noise(spread_ratio=0.01, freedom=12))
    alone = compare(*times, level=0.01)
    assert alike.verdict is TrialVerdict.FASTER
    assert (quieter.verdict, quieter.low_ratio) == (TrialVerdict.CANNOT_TELL, alone.low_ratio)


def test_no_gain_worth_having_ends_a_comparison_before_it_is_proven_slower() -> None:
    base = [10.0, 10.3, 9.7, 10.1]
    found = compare(base, [x * y for x, y in zip(base, (1.04, 1.09, 1.07, 1.035), strict=True)], level=0.05)
    assert (found.verdict, found.decided) == (TrialVerdict.CANNOT_TELL, True)


def test_the_pairs_still_needed_shrink_with_the_difference() -> None:
    small = compare([10.0, 10.4, 9.6, 10.0], [9.5, 9.1, 9.9, 9.4])
    large = compare([10.0, 12.4, 8.6, 10.0], [7.5, 7.1, 8.9, 7.4])
    needed = (pairs_to_decide(small), pairs_to_decide(large))
    assert all(one in dict(LOOKS) for one in needed if one is not None)
    assert needed[0] is not None
    assert pairs_to_decide(compare([10.0] * 3, [9.0] * 3)) is None
    assert pairs_to_decide(compare([10.0, 11.0, 9.0, 10.0], [10.0, 9.9, 10.1, 9.95])) is None


def test_a_difference_of_a_quarter_is_found_and_never_with_the_wrong_sign() -> None:
    generator = random.Random(12)
    found = [restless_verdict(generator, 1.25) for _ in range(300)]
    assert TrialVerdict.SLOWER not in found
    assert found.count(TrialVerdict.FASTER) >= 0.9 * len(found)


def crowded(baseline: Sequence[float], candidate: Sequence[float], every: Sequence[tuple[float, float]]) -> Covariate:
    """What others used of the cores, as tune hands it to the comparison."""
    return Covariate(
        baseline=[crowding(share) for share in baseline],
        candidate=[crowding(share) for share in candidate],
        every=[(time, crowding(share)) for time, share in every],
        words=CROWDING,
    )


def crowded_verdict(generator: random.Random, speedup: float, most_pairs: int, *, is_seen: bool) -> TrialVerdict:
    """A comparison on a machine whose cores are full: a process gets what others, who come and go, leave it."""
    share = 0.3

    def run(factor: float) -> tuple[float, ...]:
        nonlocal share
        share = min(0.8, max(0.0, share + generator.gauss(0, 0.15)))
        return factor * math.exp(crowding(share) + generator.gauss(0, 0.06)), crowding(share)

    return verdict_in_turn(run, speedup, most_pairs, [CROWDING] if is_seen else [])


def test_equal_arms_at_equal_crowding_are_told_apart_at_most_at_the_level() -> None:
    generator = random.Random(15)
    count = 1_000
    verdicts = [crowded_verdict(generator, 1.0, MOST_PAIRS, is_seen=True) for _ in range(count)]
    assert sum(verdict is not TrialVerdict.CANNOT_TELL for verdict in verdicts) <= 0.015 * count


def test_equal_crowding_finds_on_a_crowded_machine_what_its_noise_hides() -> None:
    generator = random.Random(16)
    seen = [crowded_verdict(generator, 1.3, 8, is_seen=True) for _ in range(150)]
    blind = [crowded_verdict(generator, 1.3, 8, is_seen=False) for _ in range(150)]
    assert TrialVerdict.SLOWER not in seen + blind
    assert seen.count(TrialVerdict.FASTER) >= 0.9 * len(seen)
    assert blind.count(TrialVerdict.FASTER) <= 0.4 * len(blind)


def test_crowding_that_the_candidate_may_cause_is_not_taken_out() -> None:
    base, own = [10.0, 10.4, 9.7, 10.1], [11.1, 11.3, 10.9, 11.2]
    every = [(time, share) for time, share in zip(base, (0.10, 0.14, 0.07, 0.11), strict=True)]
    apart = crowded([share for _, share in every], [0.3, 0.33, 0.28, 0.31], every)
    assert level_pairs(base, own, apart) is None
    mixed = crowded([share for _, share in every], [0.10, 0.13, 0.06, 0.12], every)
    assert level_pairs(base, own, mixed) is not None


def test_crowding_that_hardly_varies_or_speeds_up_is_not_taken_out() -> None:
    base, own = [10.0, 10.4, 9.7, 10.1], [9.0, 9.3, 8.9, 9.2]
    for shares in ((0.10, 0.10, 0.10, 0.10), (0.40, 0.10, 0.70, 0.30)):
        every = list(zip(base, shares, strict=True))
        assert level_pairs(base, own, crowded(shares, shares, every)) is None
