"""Scaling curve and search of a workload file's request, as its PlanReport states them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hotloop.core.planning import PlannedOption, PlannedScale, PlannedSearch
from hotloop.core.prediction import SharingPrediction

from .cost import pick_price, predict_cost
from .efficiency import Efficiency
from .hardware_files import read_hardware
from .memory import predict_memory
from .scaling import scaling_curve
from .search import GPU_LIMIT, PlanOption, search
from .sharing import predict_sharing
from .workload_file import PlanRequest

SCALES = 8
"""Points of a scaling curve: each has twice the devices of the one before."""


def build_scaling(
    request: PlanRequest, kind: str, tokens: int, efficiency: Efficiency | None = None
) -> tuple[PlannedScale, ...]:
    """The curve from the request's count on, by doubling."""
    workload, hardware = request.workload, request.hardware
    price = pick_price(hardware, request.price_kind)
    counts = [workload.gpus * 2**power for power in range(SCALES) if workload.gpus * 2**power <= GPU_LIMIT]
    found = []
    for point in scaling_curve(workload, hardware, counts, weak=kind == "weak", efficiency=efficiency):
        run = replace(workload.run, global_batch=point.global_batch)
        grown = replace(workload, gpus=point.gpus, run=run)
        cost = predict_cost(point.step, grown, hardware, tokens, failures=request.failures, price=price)
        found.append(
            PlannedScale(
                gpus=point.gpus,
                global_batch=point.global_batch,
                step_ns=point.step.mid_ns,
                tokens_per_s=point.tokens_per_s,
                efficiency_ratio=point.efficiency_ratio,
                hours=cost.hours,
                usd=cost.usd,
                low_tokens_per_s=point.tokens_per_s * point.step.mid_ns / point.step.high_ns,
                high_tokens_per_s=point.tokens_per_s * point.step.mid_ns / point.step.low_ns,
            )
        )
    return tuple(found)


def build_search(
    request: PlanRequest,
    goal: str,
    tokens: int,
    gpu_counts: Sequence[int] | None,
    gpus: Sequence[str],
    hours: float | None,
    efficiency: Efficiency | None = None,
) -> PlannedSearch:
    """The best of what fits, by the goal: over the GPU counts, of the request's device or those in ``gpus``."""
    found = search(
        request.workload,
        [read_hardware(name) for name in gpus] or [request.hardware],
        predict_memory,
        optimize=goal,
        tokens=tokens,
        hours=hours,
        gpu_counts=gpu_counts,
        failures=request.failures,
        price_kind=request.price_kind,
        efficiency=efficiency,
    )
    return PlannedSearch(
        goal=goal,
        tried=found.tried,
        fitting=found.fitting,
        options=tuple(_describe_option(option) for option in found.options),
        front=tuple(_describe_option(option) for option in found.front),
    )


def build_sharing(request: PlanRequest, peak_bytes: int) -> SharingPrediction | None:
    """Of the file's [sharing], whose jobs hold the plan's own peak where it states no memory."""
    if request.sharing is None:
        return None
    hardware, table = request.hardware, request.sharing
    return predict_sharing(
        table.get("memory_bytes", peak_bytes),
        hardware.memory_bytes,
        table.get("utilization_ratio"),
        pick_price(hardware, request.price_kind),
    )


def choose_best(request: PlanRequest, found: PlannedSearch, gpus: Sequence[str]) -> PlanRequest:
    """The request of the search's first option, over the devices in ``gpus`` as ``build_search``."""
    best = found.options[0]
    devices = {device.name: device for device in [read_hardware(name) for name in gpus] or [request.hardware]}
    changes: dict[str, Any] = {"pipeline_chunks": 1, **best.changes}
    workload = replace(request.workload, run=replace(request.workload.run, **changes), gpus=best.gpus)
    return replace(request, workload=workload, hardware=devices[best.device])


def _describe_option(option: PlanOption) -> PlannedOption:
    run, step = option.workload.run, option.step
    names = (
        "micro_batch",
        "recompute",
        "sharding",
        "tp",
        "pp",
        *(("pipeline_chunks",) if run.pipeline_chunks > 1 else ()),
    )
    return PlannedOption(
        device=option.hardware.name,
        gpus=option.workload.gpus,
        changes={name: getattr(run, name) for name in names},
        peak_bytes=option.memory.peak_bytes,
        step_ns=step.mid_ns,
        tokens_per_s=step.tokens_per_s_per_gpu * option.workload.gpus,
        mfu_ratio=step.mfu_ratio,
        hours=option.cost.hours,
        usd=option.cost.usd,
    )
