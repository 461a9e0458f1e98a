"""The header of a trace and back, and headers that others made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.core.trace_plan import TraceDemand, format_demand, read_demand

DEMAND = TraceDemand(cores_count=2, loading_ns=100, loading_busy_ns=40, steps_ns=1000, input_wait_ns=200, cpu_ns=1280)


def test_what_was_told_is_read() -> None:
    assert read_demand(format_demand(DEMAND) | {"record_shapes": 1}) == DEMAND
    assert DEMAND.loading_busy_ratio == pytest.approx(0.4)
    # 1280 less the 80 of the loading, over the 800 that were no waiting for input.
    assert DEMAND.busy_cores == pytest.approx(1.5)


def test_what_was_not_measured_is_not_known() -> None:
    assert replace(DEMAND, loading_ns=0, loading_busy_ns=0).loading_busy_ratio is None
    assert replace(DEMAND, input_wait_ns=1000).busy_cores is None
    assert replace(DEMAND, cpu_ns=0).busy_cores is None
