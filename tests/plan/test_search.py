"""The search finds the best of what fits, and prunes only what cannot fit."""

from __future__ import annotations

from dataclasses import replace

from hotloop.ahead.plan.search import search

from .build_plan import DEVICE, IDEAL, SHAPE, make_workload, states_only

BIG = replace(SHAPE, layers=32, hidden=4096, heads=32)


def test_each_goal_is_reached() -> None:
    workload = make_workload(model=BIG, gpus=64, micro_batch=1, global_batch=512)
    found = {
        goal: search(workload, [DEVICE], states_only, optimize=goal, tokens=10**10, efficiency=IDEAL, keep=10**6)
        for goal in ("time", "cost", "memory")
    }
    everything = found["time"].options
    assert len(everything) == found["time"].fitting > 50
    assert found["time"].options[0].hours == min(one.hours for one in everything)
    assert found["cost"].options[0].usd == min(one.usd or 0 for one in everything)
    assert found["memory"].options[0].peak_bytes == min(one.peak_bytes for one in everything)
    assert all(one.peak_bytes <= DEVICE.memory_bytes for one in everything)


def test_no_option_of_the_front_is_beaten() -> None:
    workload = make_workload(model=BIG, gpus=8, micro_batch=1, global_batch=512)
    result = search(
        workload, [DEVICE], states_only, tokens=10**10, gpu_counts=[8, 16, 64, 256], efficiency=IDEAL, keep=10**6
    )
    front = result.front
    assert [one.hours for one in front] == sorted(one.hours for one in front)
    for one in front:
        better = [o for o in result.options if o.hours <= one.hours and (o.usd or 0) < (one.usd or 0)]
        assert better == []


def test_without_prices_there_is_no_front() -> None:
    bare = replace(DEVICE, prices=())
    result = search(make_workload(), [bare], states_only, optimize="cost", efficiency=IDEAL)
    assert result.front == ()
    assert result.options[0].usd is None
