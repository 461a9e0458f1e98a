"""What a cost is held against, and what an event does to the steps after it."""

from __future__ import annotations

import random

import pytest

from hotloop.core.findings import Basis
from hotloop.judge.diagnose.measured import (
    basis_of_replay,
    excess_after,
    is_material,
    is_material_span,
    recurs_unevenly,
    steps_between,
    threshold_ratio,
)

from .build_analysis import make_analysis


def test_a_noisy_run_needs_a_larger_cost() -> None:
    assert is_material(make_analysis(step_noise_ratio=0.005), 0.05)
    assert not is_material(make_analysis(step_noise_ratio=0.04), 0.05)


def test_the_unevenness_of_the_judged_field_is_not_noise() -> None:
    saves = [200_000_000 if i % 10 == 9 else 0 for i in range(100)]
    uneven = make_analysis(columns={"checkpoint_ns": saves}, step_noise_ratio=0.15).lead
    assert threshold_ratio(uneven) == 0.30
    assert threshold_ratio(uneven, judged_fields=("checkpoint_ns",)) == 0.01


def test_noise_of_the_rest_still_counts() -> None:
    waves = [10_000_000 if i % 2 else 30_000_000 for i in range(100)]
    rank = make_analysis(columns={"forward_ns": waves}, step_noise_ratio=0.03).lead
    assert threshold_ratio(rank, judged_fields=("checkpoint_ns",)) > 0.05


def test_a_span_that_was_timed_by_itself_is_not_hidden_by_an_uneven_step() -> None:
    even = make_analysis(columns={"scaler_ns": [1_000_000 + i % 2 for i in range(100)]}, step_noise_ratio=0.1)
    assert not is_material(even, 0.05)
    assert is_material_span(even, 0.05, "scaler_ns")
    assert not is_material_span(even, 0.009, "scaler_ns")


def test_a_span_seen_once_is_within_its_own_noise() -> None:
    once = make_analysis(columns={"scaler_ns": [100_000_000] + [0] * 99}, step_noise_ratio=0.0)
    assert not is_material_span(once, 0.05, "scaler_ns")


def test_an_evaluation_now_and_then_is_no_noise_to_what_else_is_judged() -> None:
    passes = [200_000_000 if i % 10 == 9 else 0 for i in range(100)]
    rank = make_analysis(columns={"nograd_ns": passes}, step_noise_ratio=0.15).lead
    assert threshold_ratio(rank) == 0.30
    assert threshold_ratio(rank, judged_fields=("other_ns",)) == 0.01


def test_one_long_step_of_another_phase_hides_nothing() -> None:
    steps = [20_000_000] * 99 + [500_000_000]
    rank = make_analysis(columns={"other_ns": steps}, step_noise_ratio=0.001).lead
    assert threshold_ratio(rank, judged_fields=("input_wait_ns",)) == 0.01


def test_a_cost_that_may_be_one_long_step_is_judged_with_that_step() -> None:
    once = make_analysis(columns={"backward_ns": [20_000_000] * 99 + [500_000_000]}, step_noise_ratio=0.001)
    assert is_material(once, 0.10)
    assert not is_material(once, 0.10, own_fields=("backward_ns",))
    even = make_analysis(columns={"backward_ns": [20_000_000 + i % 2 for i in range(100)]}, step_noise_ratio=0.001)
    assert is_material(even, 0.10, own_fields=("backward_ns",))


def test_the_interval_of_what_lies_in_a_part_of_the_steps_is_a_mean_over_all_of_them() -> None:
    last_third = [0] * 200 + [0, 0, 0, 0, 0, 0, 0, 1] * 12
    pairs = [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] * 10
    one_burst = [0] * 50 + [1] * 10 + [0] * 40
    assert steps_between(last_third) == pytest.approx(296 / 12)
    assert steps_between(pairs) == pytest.approx(8.0, abs=0.5)
    assert steps_between(one_burst) == 10.0
    assert all(recurs_unevenly(column) for column in (last_third, pairs, one_burst))


@pytest.mark.parametrize(
    ("low_ratio", "mid_ratio", "basis"),
    [
        (0.0, 0.02, Basis.RULE_OF_THUMB),
        (0.02, 0.24, Basis.RULE_OF_THUMB),
        (0.02, 0.06, Basis.SIMULATED),
        (0.07, 0.30, Basis.SIMULATED),
    ],
)
def test_a_replay_that_promises_little_of_its_middle_is_a_guess(
    low_ratio: float, mid_ratio: float, basis: Basis
) -> None:
    assert basis_of_replay(low_ratio, mid_ratio) is basis


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
