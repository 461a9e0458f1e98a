"""Money, failures and energy against values computed by hand."""

from __future__ import annotations

import pytest

from hotloop.ahead.plan.cost import (
    Failures,
    daly_interval_s,
    pick_price,
    predict_checkpoint,
    predict_cost,
    waste_ratio,
)
from hotloop.ahead.plan.time import predict_step

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
    assert cost.price == "2 USD per hour, on-demand, A, 2026-01-01"


@pytest.mark.parametrize(("mtbf_min", "interval_min"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_interval_is_the_published_one(mtbf_min: float, interval_min: float) -> None:
    """Daly 2006, figures 3 to 5: a checkpoint of 5 minutes."""
    found = daly_interval_s(5 * 60, mtbf_min * 60) / 60
    assert round(found, 1 if mtbf_min == 15 else 0) == interval_min


def test_the_expected_waste_by_hand() -> None:
    # 600 s of compute and 60 s of checkpoint, M = 3600 s: they take M (e^(660 / M) - 1) = 3600 x 0.201215 = 724.37 s.
    assert waste_ratio(600, 60, 3600, 0) == pytest.approx(1 - 600 / 724.37, abs=1e-5)
    # A restart of 300 s that may be interrupted: e^(300 / M) = 1.08690 times as long.
    assert waste_ratio(600, 60, 3600, 300) == pytest.approx(1 - 600 / 724.37 / 1.08690, abs=1e-5)
    # Rare interruptions: Young's first order, C/T + (T/2 + R)/M, here 0.05 + 0.006.
    assert waste_ratio(1000, 50, 100_000, 100) == pytest.approx(0.056, rel=0.06)
    assert waste_ratio(1000, 50, 1, 3600) == 1


def test_preemptions_come_on_top_of_failures_on_spot_devices_only() -> None:
    workload, step = make_workload(), predict_step(make_workload(), DEVICE, IDEAL)
    failures = Failures(gpu_hours_per_failure=300, gpu_hours_per_preemption=150)
    usual = predict_cost(step, workload, DEVICE, 10**9, failures=failures, price=pick_price(DEVICE))
    spot = predict_cost(step, workload, DEVICE, 10**9, failures=failures, price=pick_price(DEVICE, "spot"))
    assert usual.mtbf_s == pytest.approx(300 / 8 * 3600)
    assert spot.mtbf_s == pytest.approx(100 / 8 * 3600)
    unknown = predict_cost(step, workload, DEVICE, 10**9, price=pick_price(DEVICE, "spot"))
    assert any("preemption rate is unknown" in note for note in unknown.notes)


def test_a_checkpoint_stalls_for_its_bytes_over_the_storages_rate() -> None:
    workload = make_workload(sharding="fsdp")
    params = workload.model.params
    # Float32 weights and two moments: 12 bytes a parameter, an eighth from each rank.
    found = predict_checkpoint(workload, DEVICE, Failures(storage_bytes_per_s=1e9))
    assert (found.total_bytes, found.rank_bytes, found.ranks) == (12 * params, round(12 * params / 8), 8)
    assert found.stall_s == pytest.approx(12 * params / 1e9)
    # DeepSpeed's stage 1: one rank's 16-bit weights, and of master weights and moments each rank its share.
    zero1 = predict_checkpoint(make_workload(sharding="zero1"), DEVICE, Failures())
    assert (zero1.total_bytes, zero1.rank_bytes) == (14 * params, round(params * (2 + 12 / 8)))
    alone = predict_checkpoint(make_workload(sharding="ddp"), DEVICE, Failures(checkpoint_s=7))
    assert (alone.rank_bytes, alone.ranks, alone.stall_s) == (12 * params, 1, 7)


def test_an_unknown_stall_stays_unknown_and_is_never_free() -> None:
    workload, step = make_workload(), predict_step(make_workload(), DEVICE, IDEAL)
    unknown = predict_cost(step, workload, DEVICE, 10**12)
    assert unknown.checkpoint.stall_s is None
    assert unknown.stall_per_step_ns is None
    assert any("storage_bytes_per_s" in note for note in unknown.notes)
    known = predict_cost(step, workload, DEVICE, 10**12, failures=Failures(storage_bytes_per_s=1e9))
    assert known.stall_per_step_ns == pytest.approx(known.checkpoint.stall_s / known.interval_s * step.mid_ns)
    assert known.notes == ()
    slow = predict_cost(step, workload, DEVICE, 10**12, failures=Failures(storage_bytes_per_s=1e7))
    assert slow.hours > known.hours > known.compute_hours
