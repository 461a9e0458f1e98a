"""Whole forwards and backwards as they are, with twice the batch, and with larger ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hotloop.probe.clock import middle, time_call
from hotloop.probe.operators import Operator
from hotloop.probe.request import Part, ProbeRequest
from hotloop.probe.whole_pass import LEAST_PASS_RATIO, MOST_CALLS, PASS_COPIES, WholePass, order_calls

MOST_PASSES = 60
LARGER_FACTORS = (4, 8, 16, 32, 64)
LARGER_RUNS = 4
"""A larger pass is made (which runs its forward), run once, and timed twice."""
BOTH_RATIO = 0.5
"""Part of the passes' time for the present batch and twice of it; the rest is for larger ones."""


def time_passes(request: ProbeRequest, budget_s: float) -> dict[str, Any] | None:
    """Whole steps' forwards and backwards as they are and with twice the batch, taking turns; then with larger ones.

    ns of a pass with the recorded batch and with twice of it; ``larger`` holds (factor, ns) for so many times the
    batch.

    None where that cannot be: the batch is unknown, nothing is differentiated, too many calls, too much memory.
    """
    recorded, batch = request.ops, request.batch_size
    forward = [op for op in recorded if not op.backward and op.computes]
    if not batch or not any(op.backward for op in recorded) or sum(op.count for op in forward) > MOST_CALLS:
        return None
    bytes_of_calls = sum(op.count * op.size_bytes for op in forward)
    if bytes_of_calls * PASS_COPIES > request.memory_bytes:
        return None
    deadline_s = time.perf_counter() + budget_s
    calls = order_calls(forward)
    factors = [one for one in LARGER_FACTORS if bytes_of_calls * (PASS_COPIES // 2) * one <= request.memory_bytes]
    # What a pass hands on from call to call may shrink until it is denormal, which slows operators down.
    torch.set_flush_denormal(True)
    try:
        found = _time_both(calls, batch, time.perf_counter() + BOTH_RATIO * budget_s)
        if found is None:
            return None
        return found | {"larger": _time_larger(calls, batch, factors, found["double_ns"], deadline_s)}
    finally:
        torch.set_flush_denormal(False)


def _time_both(calls: Sequence[Operator], batch: int, deadline_s: float) -> dict[str, Any] | None:
    plain, doubled = WholePass(calls, batch), WholePass(calls, batch, 2)
    if plain.calls_count != doubled.calls_count or plain.calls_count < LEAST_PASS_RATIO * len(calls):
        return None

    arms: dict[str, Callable[[], object]] = {"base": plain.run, "double": doubled.run}
    begin_s = time.perf_counter()
    for arm in arms.values():
        arm()
    if 2.0 * (time.perf_counter() - begin_s) > deadline_s - time.perf_counter():
        return None
    times: dict[str, list[float]] = {name: [] for name in arms}
    while len(times["base"]) < MOST_PASSES and (len(times["base"]) < 2 or time.perf_counter() < deadline_s):
        for name, arm in arms.items():
            times[name].append(time_call(arm, 1))
    return {
        "base_ns": round(middle(times["base"])),
        "double_ns": round(middle(times["double"])),
        "calls": plain.calls_count,
        "calls_left_out": len(calls) - plain.calls_count,
        "rounds": len(times["base"]),
    }


def _time_larger(
    calls: Sequence[Operator], batch: int, factors: Sequence[int], double_ns: float, deadline_s: float
) -> list[tuple[int, int]]:
    """(factor, ns of a pass) for so many times the batch, as far as the time reaches: each is made, run, and timed."""
    found: list[tuple[int, int]] = []
    last_factor, last_ns = 2, float(double_ns)
    for factor in factors:
        expected_s = last_ns * factor / last_factor * 1e-9
        if time.perf_counter() + LARGER_RUNS * expected_s > deadline_s:
            break
        larger = WholePass(calls, batch, factor)
        larger.run()
        last_factor, last_ns = factor, min(time_call(larger.run, 1) for _ in range(LARGER_RUNS - 2))
        found.append((factor, round(last_ns)))
    return found


PASSES = Part(id="passes", order=4, budget_ratio=0.25, is_wanted=lambda request: bool(request.ops), measure=time_passes)
