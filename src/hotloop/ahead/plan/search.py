"""All ways to run a model that fit -> the fastest, cheapest or smallest, and the trade-off between time and money."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hotloop.ahead.plan.cost import USUAL_FAILURES, Failures, pick_price, predict_cost
from hotloop.ahead.plan.hardware_files import Efficiency, read_efficiency, read_hardware
from hotloop.ahead.plan.time import predict_step
from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware
from hotloop.core.planning import PlannedOption, PlannedSearch
from hotloop.core.prediction import CostPrediction, MemoryPrediction, StepPrediction
from hotloop.core.workload import RECOMPUTES, PlannedRun, Workload, require_choice

from .memory import predict_memory
from .workload_file import PlanRequest

GOALS = ("time", "cost", "memory")
GPU_LIMIT = 16_384
SEARCHED_SHARDINGS = ("ddp", "zero1", "fsdp", "hsdp")
MICRO_BATCH_LIMIT = 64
KEPT_OPTIONS = 10

Memory = Callable[[Workload, Hardware], MemoryPrediction]


def build_search(
    request: PlanRequest,
    goal: str,
    tokens: int,
    gpu_counts: Sequence[int] | None,
    gpus: Sequence[str],
    hours: float | None,
) -> PlannedSearch:
    """The best runs that fit, by the goal, over the GPU counts, for the request's device or those in ``gpus``."""
    return search(
        request.workload,
        [read_hardware(name) for name in gpus] or [request.hardware],
        optimize=goal,
        tokens=tokens,
        hours=hours,
        gpu_counts=gpu_counts,
        failures=request.failures,
        price_kind=request.price_kind,
    )


def search(
    workload: Workload,
    hardware: Sequence[Hardware],
    memory: Memory = predict_memory,
    *,
    optimize: str = "time",
    tokens: int | None = None,
    hours: float | None = None,
    gpu_counts: Sequence[int] | None = None,
    failures: Failures = USUAL_FAILURES,
    price_kind: str = "on-demand",
    efficiency: Efficiency | None = None,
    keep: int = KEPT_OPTIONS,
) -> PlannedSearch:
    """Varies micro-batch, recompute, sharding, tensor and pipeline ranks, GPU count and kind; the model, the global
    batch and the rest of the run stay.

    ``tokens`` of the whole training, by default one step's; ``hours`` that it may take. ``gpu_counts``: by default only
    the workload's own. By cost, runs without a price come last. Raises UsageError if nothing fits.
    """
    require_choice("optimize", optimize, GOALS)
    counts = (workload.gpus,) if gpu_counts is None else tuple(sorted(set(gpu_counts)))
    if not counts or counts[0] < 1 or counts[-1] > GPU_LIMIT:
        raise UsageError(f"GPU counts {', '.join(map(str, counts)) or 'none'}: give counts of 1 to {GPU_LIMIT}")
    total = workload.tokens_per_step if tokens is None else tokens
    found: list[PlannedOption] = []
    tried = 0
    for device in hardware:
        constants = read_efficiency(device) if efficiency is None else efficiency
        price = pick_price(device, price_kind)
        for gpus, runs in ((count, runs) for count in counts for runs in _ladders(workload, device, count)):
            tried += len(runs)
            for run in runs:
                planned = Workload(model=workload.model, run=run, gpus=gpus)
                needed = memory(planned, device)
                if not needed.fits:
                    break  # a larger micro-batch needs at least as much
                step = predict_step(planned, device, constants)
                try:
                    cost = predict_cost(step, planned, device, total, failures=failures, price=price)
                except UsageError:
                    continue  # this many devices are interrupted too often to train at all
                if hours is None or cost.hours <= hours:
                    found.append(_describe_option(planned, device, needed, step, cost))
    if not found:
        by = "" if hours is None else f" within {hours:g} hours"
        raise UsageError(
            f"none of {tried} configurations fits{by}: use more or larger devices, a shorter sequence, or offload"
        )
    found.sort(key=_KEYS[optimize])
    return PlannedSearch(
        goal=optimize, tried=tried, fitting=len(found), options=tuple(found[:keep]), front=_find_front(found)
    )


def _describe_option(
    workload: Workload, device: Hardware, memory: MemoryPrediction, step: StepPrediction, cost: CostPrediction
) -> PlannedOption:
    run = workload.run
    names = ["micro_batch", "recompute", "sharding", "tp", "pp", *(["pipeline_chunks"] * (run.pipeline_chunks > 1))]
    return PlannedOption(
        device=device.name,
        gpus=workload.gpus,
        changes={name: getattr(run, name) for name in names},
        peak_bytes=memory.peak_bytes,
        step_ns=step.mid_ns,
        tokens_per_s=step.tokens_per_s_per_gpu * workload.gpus,
        mfu_ratio=step.mfu_ratio,
        hours=cost.hours,
        usd=cost.usd,
    )


def _by_cost(option: PlannedOption) -> tuple[float, ...]:
    return float("inf") if option.usd is None else option.usd, option.gpus * option.hours, option.hours


_KEYS: dict[str, Callable[[PlannedOption], tuple[float, ...]]] = {
    "time": lambda option: (option.hours, option.peak_bytes),
    "cost": _by_cost,
    "memory": lambda option: (option.peak_bytes, option.hours),
}


def _find_front(options: Sequence[PlannedOption]) -> tuple[PlannedOption, ...]:
    least, kept = float("inf"), []
    for option in sorted(options, key=lambda one: (one.hours, _by_cost(one))):
        if option.usd is not None and option.usd < least:
            least = option.usd
            kept.append(option)
    return tuple(kept)


def _ladders(workload: Workload, device: Hardware, gpus: int) -> Iterator[list[PlannedRun]]:
    """Runs that differ only in micro-batch, in ascending order, for every other choice."""
    model, run = workload.model, workload.run
    for tp in _powers(min(device.gpus_per_node, gpus)):
        if model.heads % tp or model.kv_head_count % tp:
            continue
        for pp in _powers(min(model.layers, gpus // tp)):
            ranks = tp * pp * run.cp
            if model.layers % pp or gpus % ranks or (gpus // ranks) % run.ep:
                continue
            data_ranks = gpus // ranks
            batches = [b for b in _powers(MICRO_BATCH_LIMIT) if run.global_batch % (b * data_ranks) == 0]
            shardings = SEARCHED_SHARDINGS if data_ranks > 1 else ("ddp",)
            chunks = run.pipeline_chunks if pp > 1 and model.layers % (pp * run.pipeline_chunks) == 0 else 1
            for sharding in shardings:
                # Sharded weights would be gathered for every micro-batch of a pipeline. hsdp needs two nodes.
                if (pp > 1 and sharding in ("fsdp", "hsdp")) or (sharding == "hsdp" and gpus <= device.gpus_per_node):
                    continue
                for recompute in RECOMPUTES:
                    base = replace(
                        run, tp=tp, pp=pp, sharding=sharding, recompute=recompute, pipeline_chunks=chunks,
                        micro_batch=1, global_batch=run.global_batch,
                    )  # fmt: skip
                    if batches:
                        yield [replace(base, micro_batch=batch) for batch in batches]


def _powers(limit: int) -> Iterator[int]:
    value = 1
    while value <= limit:
        yield value
        value *= 2
