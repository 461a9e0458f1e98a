"""The header of a trace and back, and headers that others made up."""

from __future__ import annotations

from hotloop.core.trace_plan import TraceDemand, format_demand, read_demand

DEMAND = TraceDemand(cores_count=2, loading_ns=100, loading_busy_ns=40, steps_ns=1000, input_wait_ns=200, cpu_ns=1280)


def test_what_was_told_is_read() -> None:
    assert read_demand(format_demand(DEMAND) | {"record_shapes": 1}) == DEMAND
