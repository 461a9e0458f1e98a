"""What an event does to the steps after it is told from the noise of the steps."""

from __future__ import annotations

import random

from hotloop.diagnose.measured import excess_after


def test_noise_alone_is_no_aftermath() -> None:
    drawn = random.Random(3)
    found = [sum(excess_after([drawn.gauss(100, 20) for _ in range(200)], range(9, 200, 10))) for _ in range(40)]
    # Each offset of 40 runs is tested at two standard errors: a rare one passes, by little.
    assert sum(value > 0 for value in found) <= 6
    assert max(found) < 30


def test_an_excess_is_found_below_the_noise_of_single_steps() -> None:
    drawn = random.Random(4)
    starts = range(9, 600, 10)
    steps = [drawn.gauss(100, 20) + (25 if (i - 9) % 10 < 2 else 0) for i in range(600)]
    assert 35 < sum(excess_after(steps, starts)) < 65


def test_a_single_event_and_events_in_every_step_say_nothing() -> None:
    assert excess_after([10.0] * 20 + [90.0] + [10.0] * 20, [20]) == ()
    assert excess_after([10.0] * 20, range(20)) == ()


def test_a_slowdown_after_two_of_five_events_counts_as_what_it_costs() -> None:
    starts = range(9, 600, 10)
    slow = {start for number, start in enumerate(starts) if number % 5 < 2}
    steps = [100.0 + i % 3 + (50 if i in slow else 0) for i in range(600)]
    (excess,) = excess_after(steps, starts)
    assert 18 < excess < 22


def test_one_long_step_after_an_event_is_no_aftermath() -> None:
    starts = range(9, 600, 10)
    steps = [100.0 + i % 3 + (5_000 if i == 209 else 0) for i in range(600)]
    assert excess_after(steps, starts) == ()
