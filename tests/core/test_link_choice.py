"""The choice of how to send gradients: quick links refuse, slow ones pick, and costs are those that were measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.link_choice import (
    LEAST_GAIN_RATIO,
    SAFE_WAYS,
    Exchange,
    choose_way,
    forecast_ways,
)
from hotloop.core.link_fit import LinkFit

SENDERS = ("compress-gradients",)
MIB = 1 << 20
LARGE = Exchange(bucket_bytes=(MIB, *[25 * MIB] * 4), backward_ns=0.9e9, step_ns=2e9, ranks=2)


def link(bytes_per_s: float, latency_ns: float = 3e5) -> LinkFit:
    return LinkFit(latency_ns=latency_ns, bytes_per_s=bytes_per_s)


def test_a_quick_link_keeps_ddps_own_way() -> None:
    choice = choose_way(LARGE, link(1e9), SENDERS)
    assert choice.picked is choice.now
    assert choice.picked.technique is None


def test_a_slow_link_picks_the_mildest_safe_way_that_no_other_beats_by_a_tenth_of_the_step() -> None:
    choice = choose_way(LARGE, link(1.2e7), SENDERS)
    assert choice.picked.way == "int8"
    assert choice.picked.settings == {"method": "int8"}
    quickest = min(way.exposed_ns for way in choice.ways if way.way in SAFE_WAYS)
    assert choice.picked.exposed_ns <= quickest + LEAST_GAIN_RATIO * LARGE.step_ns


def test_a_way_that_costs_loss_is_forecast_and_never_chosen() -> None:
    choice = choose_way(LARGE, link(1.2e6), SENDERS)
    ways = {way.way: way.exposed_ns for way in choice.ways}
    assert ways["topk"] < ways["int8"]
    assert choice.picked.way == "int8"


def test_nothing_is_forecast_of_what_was_never_measured_on_a_device() -> None:
    on_device = Exchange(bucket_bytes=LARGE.bucket_bytes, backward_ns=1e8, step_ns=2e8, ranks=8, on_device=True)
    assert [way.way for way in forecast_ways(on_device, link(1e8), SENDERS)] == ["none", "bf16"]


@given(
    st.floats(1e5, 1e12),
    st.floats(0, 1e7),
    st.floats(1e6, 1e10),
    st.integers(2, 256),
    st.lists(st.integers(4, 1 << 30), min_size=1, max_size=20),
)
def test_the_choice_is_never_forecast_to_lose(
    rate: float, latency_ns: float, backward_ns: float, ranks: int, sizes: list[int]
) -> None:
    exchange = Exchange(bucket_bytes=sizes, backward_ns=backward_ns, step_ns=2 * backward_ns, ranks=ranks)
    choice = choose_way(exchange, link(rate, latency_ns), SENDERS)
    assert choice.picked.exposed_ns <= choice.now.exposed_ns
    assert all(way.exposed_ns >= 0 for way in choice.ways)
