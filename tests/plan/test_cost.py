"""Money, failures and energy against values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.core.errors import UsageError
from hotloop.plan.cost import (
    Failures,
    cheapest_within,
    daly_interval_s,
    jobs_per_gpu,
    least_waste_ratio,
    pick_price,
    predict_cost,
    simulate_hours,
    spot_break_even,
    waste_ratio,
    young_interval_s,
)
from hotloop.plan.time import predict_step

from .build_plan import DEVICE, IDEAL, make_workload

NEVER = Failures(gpu_hours_per_failure=1e15, checkpoint_s=0, restart_s=0)


def test_totals_are_steps_times_time_times_price() -> None:
    workload = make_workload()
    step = predict_step(workload, DEVICE, IDEAL)
    price = pick_price(DEVICE)
    # 64 x 1024 tokens a step: 1,000,000 need 16 steps.
    cost = predict_cost(step, workload, DEVICE, 1_000_000, failures=NEVER, price=price)
    hours = 16 * step.mid_ns / 3.6e12
    assert cost.compute_hours == pytest.approx(hours)
    assert cost.hours == pytest.approx(hours)
    assert cost.gpu_hours == pytest.approx(8 * hours)
    assert cost.usd == pytest.approx(8 * hours * 2.0)
    assert cost.energy_kwh == pytest.approx(8 * hours * 0.5)
    assert cost.price == "2 USD an hour, on-demand, A, 2026-01-01"


def test_an_unknown_price_or_power_is_none() -> None:
    workload = make_workload()
    bare = replace(DEVICE, prices=(), power_watt=None)
    cost = predict_cost(predict_step(workload, bare, IDEAL), workload, bare, 1000, price=pick_price(bare))
    assert cost.usd is None
    assert cost.energy_kwh is None
    assert cost.price == "unknown"


def test_the_cheapest_price_of_a_kind_is_taken() -> None:
    assert pick_price(DEVICE) == DEVICE.prices[0]
    assert pick_price(DEVICE, provider="B") == DEVICE.prices[1]
    assert pick_price(DEVICE, "spot") == DEVICE.prices[2]
    assert pick_price(DEVICE, "reserved") is None


def test_checkpoint_intervals_are_those_of_young_and_daly() -> None:
    assert young_interval_s(50, 10_000) == 1000
    # Daly: 1000 (1 + 1/3 sqrt(0.0025) + 0.0025 / 9) - 50.
    assert daly_interval_s(50, 10_000) == pytest.approx(1000 * (1 + 0.05 / 3 + 0.0025 / 9) - 50)
    assert daly_interval_s(300, 100) == 100
    assert waste_ratio(1000, 50, 10_000, 100) == pytest.approx(0.05 + 600 / 10_000)


def test_llama_3s_interruptions_come_every_three_hours() -> None:
    assert Failures().mtbf_s(16_384) / 3600 == pytest.approx(3.05, abs=0.01)


def test_spot_pays_below_its_break_even_and_not_above() -> None:
    spot = Failures(gpu_hours_per_failure=80, checkpoint_s=60, restart_s=300)
    share = spot_break_even(NEVER, spot, 8)
    assert share == pytest.approx(1 - least_waste_ratio(spot, 8))
    assert 0.7 < share < 0.95


def test_simulated_hours_agree_with_the_formula() -> None:
    failures = Failures(gpu_hours_per_failure=800, checkpoint_s=60, restart_s=300)
    simulated = simulate_hours(500, 8, failures, seed=3, runs=300)
    assert simulated.mean == pytest.approx(500 / (1 - least_waste_ratio(failures, 8)), rel=0.01)
    assert simulated.low < simulated.mean < simulated.high
    assert simulated.interruptions == pytest.approx(simulated.mean / 100, rel=0.1)
    assert simulate_hours(500, 8, failures, seed=3, runs=300) == simulated


def test_without_interruptions_only_checkpoints_are_added() -> None:
    simulated = simulate_hours(10, 1, replace(NEVER, checkpoint_s=0), runs=10)
    assert simulated.mean == pytest.approx(10)
    assert simulated.interruptions == 0


def test_a_training_that_never_ends_is_refused() -> None:
    hopeless = Failures(gpu_hours_per_failure=1, checkpoint_s=60, restart_s=3600)
    workload = make_workload(gpus=64, micro_batch=1)
    with pytest.raises(UsageError, match="64 devices are interrupted before"):
        predict_cost(predict_step(workload, DEVICE, IDEAL), workload, DEVICE, 10**9, failures=hopeless)
    with pytest.raises(UsageError, match="interrupted before"):
        simulate_hours(10, 64, hopeless)


def test_nonsense_is_refused() -> None:
    workload = make_workload()
    with pytest.raises(UsageError, match="tokens = 0"):
        predict_cost(predict_step(workload, DEVICE, IDEAL), workload, DEVICE, 0)
    with pytest.raises(UsageError, match="gpu_hours_per_failure = 0"):
        Failures(gpu_hours_per_failure=0)
    with pytest.raises(UsageError, match="checkpoint_s = -1"):
        Failures(checkpoint_s=-1)
    with pytest.raises(UsageError, match="share up to 1"):
        jobs_per_gpu(1e9, 80e9, 1.5)


def test_jobs_share_a_device_by_memory_and_by_time() -> None:
    assert jobs_per_gpu(20e9, 80e9, 0.1) == 4
    assert jobs_per_gpu(5e9, 80e9, 0.25) == 4
    assert jobs_per_gpu(5e9, 80e9, 1.0) == 1


def test_the_cheapest_that_ends_in_time() -> None:
    workload = make_workload()
    step = predict_step(workload, DEVICE, IDEAL)
    costs = [
        predict_cost(step, workload, DEVICE, tokens, failures=NEVER, price=pick_price(DEVICE))
        for tokens in (10**9, 10**10)
    ]
    assert cheapest_within(costs, costs[0].hours) is costs[0]
    assert cheapest_within(costs, costs[0].hours / 2) is None
