"""Every way to run a model that fits -> the quickest, cheapest or smallest, and the front of time and money."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware
from hotloop.core.prediction import CostPrediction, MemoryPrediction, StepPrediction
from hotloop.core.workload import RECOMPUTES, PlannedRun, Workload, require_choice
from hotloop.plan.cost import USUAL_FAILURES, Failures, pick_price, predict_cost
from hotloop.plan.efficiency import Efficiency, read_efficiency
from hotloop.plan.time import predict_step

GOALS = ("time", "cost", "memory")
GPU_LIMIT = 16_384
SEARCHED_SHARDINGS = ("ddp", "zero1", "fsdp", "hsdp")
MICRO_BATCH_LIMIT = 64

Memory = Callable[[Workload, Hardware], MemoryPrediction]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOption:
    """One way to run, and what it is predicted to need."""

    workload: Workload
    hardware: Hardware
    memory: MemoryPrediction
    step: StepPrediction
    cost: CostPrediction

    @property
    def hours(self) -> float:
        return self.cost.hours


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found, best first."""

    options: tuple[PlanOption, ...]
    front: tuple[PlanOption, ...]
    """No other is both quicker and cheaper; quickest first. Empty where no price is known."""
    tried: int
    """Configurations whose memory was predicted or known not to fit."""
    fitting: int
    """Of those, the ones that fit and end in time."""


def search(
    workload: Workload,
    hardware: Sequence[Hardware],
    memory: Memory,
    *,
    optimize: str = "time",
    tokens: int | None = None,
    hours: float | None = None,
    gpu_counts: Sequence[int] | None = None,
    failures: Failures = USUAL_FAILURES,
    price_kind: str = "on-demand",
    efficiency: Efficiency | None = None,
    keep: int = 10,
) -> SearchResult:
    """Micro-batch, recompute, sharding, tensor and pipeline ranks, GPU count and kind; model, global batch and the rest
    of the run stay.

    ``tokens`` of the whole training, one step's by default; ``hours`` that it may take. ``gpu_counts``: only the
    workload's own by default. By cost, what has no price comes last. Raises UsageError where nothing fits.
    """
    require_choice("optimize", optimize, GOALS)
    counts = (workload.gpus,) if gpu_counts is None else tuple(sorted(set(gpu_counts)))
    if not counts or counts[0] < 1 or counts[-1] > GPU_LIMIT:
        raise UsageError(f"GPU counts {', '.join(map(str, counts)) or 'none'}: give counts of 1 to {GPU_LIMIT}")
    total = workload.tokens_per_step if tokens is None else tokens
    found: list[PlanOption] = []
    tried = 0
    for device in hardware:
        constants = read_efficiency(device) if efficiency is None else efficiency
        price = pick_price(device, price_kind)
        for gpus in counts:
            for runs in _ladders(workload, device, gpus):
                for index, run in enumerate(runs):
                    planned = Workload(model=workload.model, run=run, gpus=gpus)
                    needed = memory(planned, device)
                    if not needed.fits:
                        # A greater micro-batch needs no less.
                        tried += len(runs) - index
                        break
                    tried += 1
                    step = predict_step(planned, device, constants)
                    try:
                        cost = predict_cost(step, planned, device, total, failures=failures, price=price)
                    except UsageError:
                        # So many devices are interrupted too often to train at all.
                        continue
                    if hours is None or cost.hours <= hours:
                        found.append(PlanOption(workload=planned, hardware=device, memory=needed, step=step, cost=cost))
    if not found:
        by = "" if hours is None else f" within {hours:g} hours"
        raise UsageError(
            f"none of {tried} configurations fits{by}: use more or larger devices, a shorter sequence, or offload"
        )
    found.sort(key=_KEYS[optimize])
    return SearchResult(options=tuple(found[:keep]), front=_front(found), tried=tried, fitting=len(found))


def _by_time(option: PlanOption) -> tuple[float, ...]:
    return (option.hours, option.memory.peak_bytes)


def _by_cost(option: PlanOption) -> tuple[float, ...]:
    usd = option.cost.usd
    return (float("inf") if usd is None else usd, option.cost.gpu_hours, option.hours)


def _by_memory(option: PlanOption) -> tuple[float, ...]:
    return (option.memory.peak_bytes, option.hours)


_KEYS: dict[str, Callable[[PlanOption], tuple[float, ...]]] = {"time": _by_time, "cost": _by_cost, "memory": _by_memory}


def _front(options: Sequence[PlanOption]) -> tuple[PlanOption, ...]:
    least, kept = float("inf"), []
    for option in sorted(options, key=lambda one: (one.hours, _by_cost(one))):
        if option.cost.usd is not None and option.cost.usd < least:
            least = option.cost.usd
            kept.append(option)
    return tuple(kept)


def _ladders(workload: Workload, device: Hardware, gpus: int) -> Iterator[list[PlannedRun]]:
    """Runs that differ only in micro-batch, ascending, for every other choice."""
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
