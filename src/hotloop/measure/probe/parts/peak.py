"""The rate of a large matrix product with the training's threads: the most that its products could reach here."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from hotloop.core.operators import PRODUCTS
from hotloop.measure.probe.clock import time_call
from hotloop.measure.probe.operators import DTYPES, NOT_TIMED
from hotloop.measure.probe.opportunities import Part, ProbeRequest

SIZE = 1024
"""Rows and columns: far more work (2 x 1024^3) than memory traffic."""
FEWEST_ROUNDS = 5


def measure_peaks(request: ProbeRequest, budget_s: float) -> dict[str, Any]:
    """FLOPs a second by element type; the fastest of all rounds, since a peak is a bound.

    Of every floating-point type that the recorded products compute in; types that torch cannot multiply are absent.
    """
    kinds = {DTYPES[name] for op in request.ops if op.name in PRODUCTS for name in op.dtypes if name in DTYPES}
    wanted = sorted((kind for kind in kinds if kind.is_floating_point), key=str)
    found: dict[str, float] = {}
    for kind in wanted:
        left, right = (torch.randn(SIZE, SIZE).to(kind) for _ in range(2))
        try:
            torch.mm(left, right)
        except NOT_TIMED:
            continue
        deadline_s, seen = time.perf_counter() + budget_s / len(wanted), list[float]()
        while len(seen) < FEWEST_ROUNDS or time.perf_counter() < deadline_s:
            seen.append(time_call(partial(torch.mm, left, right), 1))
        found[str(kind).removeprefix("torch.")] = 2 * SIZE**3 / (min(seen) * 1e-9)
    return {"flops_per_s": found, "threads": torch.get_num_threads()}


def _is_wanted(request: ProbeRequest) -> bool:
    return any(op.name in PRODUCTS for op in request.ops)


PEAK = Part(id="peak", order=7, budget_ratio=0.04, is_wanted=_is_wanted, measure=measure_peaks)
