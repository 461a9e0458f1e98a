"""The request of a workload file -> PlanReport: memory, time and cost.

A plan that does not fit comes with remedies: changes of the run, each planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware
from hotloop.core.planning import PlanReport, Remedy, make_memory, make_range
from hotloop.core.prediction import StepPrediction
from hotloop.core.workload import PlannedRun, Workload, field_names

from .cost import pick_price, predict_cost
from .memory import layer_parts, predict_memory
from .time import predict_step
from .workload_file import PlanRequest

PredictStep = Callable[[Workload, Hardware], StepPrediction]

NUMERICS = {
    "accumulation": "reordered",
    "recompute": "exact",
    "offload": "exact",
    "sharding": "reordered",
    "tensor-parallel": "reordered",
    "attention": "reordered",
    "loss": "reordered",
    "batch": "lossy",
    "precision": "lossy",
    "optimizer": "lossy",
}
"""The effect of a change on the training's numbers, as docs/techniques.md states it for the techniques."""

STEPS = {
    "recompute": (("selective", "full"), "recompute"),
    "sharding": (("zero1", "zero2", "fsdp"), "sharding"),
    "offload": (("activations", "optimizer", "parameters"), "offload"),
    "optimizer": (("adamw-8bit",), "optimizer"),
}
"""Remedy -> the key of [run], and the values that it tries, mildest first."""


def find_remedies(workload: Workload, hardware: Hardware, forecast: PredictStep | None = None) -> tuple[Remedy, ...]:
    """Changes that save memory: the mildest of each kind that makes the run fit, else the change that saves the most.

    First those that make it fit: first those that leave the learning unchanged, then by time lost, then by bytes saved.
    If none fits alone, ``together`` combines those that leave the learning unchanged until the run fits.
    """
    before = predict_memory(workload, hardware).peak_bytes
    pace = None if forecast is None else _ns_per_token(workload, hardware, forecast)

    def judge(name: str, changes: Mapping[str, Any], changed: Workload) -> Remedy:
        found = predict_memory(changed, hardware)
        after = None if forecast is None else _ns_per_token(changed, hardware, forecast)
        return Remedy(
            id=name,
            changes=changes,
            saved_bytes=before - found.peak_bytes,
            peak_bytes=found.peak_bytes,
            fits=found.fits,
            slower_ratio=None if pace is None or after is None else after / pace - 1,
            numerics=NUMERICS.get(name, "reordered"),
        )

    judged = [judge(name, changes, changed) for name, changes, changed in _alternatives(workload)]
    kinds: dict[str, Remedy] = {}
    for one in judged:
        best = kinds.get(one.id)
        if one.saved_bytes > 0 and (best is None or (not best.fits and one.saved_bytes > best.saved_bytes)):
            kinds[one.id] = one
    helping = list(kinds.values())
    if helping and not any(one.fits for one in helping):
        helping.extend(_combine(workload, helping, judge))
    return tuple(sorted(helping, key=_rank))


def _rank(remedy: Remedy) -> tuple[bool, bool, float, int]:
    slowness = remedy.slower_ratio if remedy.fits and remedy.slower_ratio is not None else 0.0
    return not remedy.fits, remedy.fits and remedy.numerics == "lossy", round(slowness, 2), -remedy.saved_bytes


def _ns_per_token(workload: Workload, hardware: Hardware, forecast: PredictStep) -> float | None:
    try:
        return forecast(workload, hardware).mid_ns / workload.tokens_per_step
    except UsageError:
        return None


def _alternatives(workload: Workload) -> Iterator[tuple[str, dict[str, Any], Workload]]:
    """(remedy, changed keys, changed workload) of each possible change."""
    run, model = workload.run, workload.model
    for micro in _smaller(run.micro_batch):
        yield from _try(workload, "accumulation", micro_batch=micro)
        share = run.micro_batch // micro
        if run.global_batch % share == 0:
            yield from _try(workload, "batch", micro_batch=micro, global_batch=run.global_batch // share)
    if run.precision == "fp32":
        yield from _try(workload, "precision", precision="bf16")
    if run.precision != "pure-bf16":
        yield from _try(workload, "precision", precision="pure-bf16")
    for name, (values, key) in STEPS.items():
        present = getattr(run, key)
        left = values[values.index(present) + 1 :] if present in values else values
        if name == "sharding" and (workload.data_ranks == 1 or present in ("zero3", "fsdp")):
            continue
        for value in left:
            if key == "offload" and value == "parameters" and run.sharding not in ("zero3", "fsdp", "hsdp"):
                continue
            yield from _try(workload, name, **{key: value})
    if not run.fused_loss:
        yield from _try(workload, "loss", fused_loss=True)
    if model.attention == "math":
        yield "attention", {"model.attention": "flash"}, replace(workload, model=replace(model, attention="flash"))
    yield from _try(workload, "tensor-parallel", tp=2 * run.tp)


def _smaller(micro_batch: int) -> Iterator[int]:
    """The value halved repeatedly, down to 1."""
    while micro_batch > 1 and micro_batch % 2 == 0:
        micro_batch //= 2
        yield micro_batch
    if micro_batch > 1:
        yield 1


def _try(workload: Workload, name: str, **changes: Any) -> Iterator[tuple[str, dict[str, Any], Workload]]:
    try:
        changed = replace(workload, run=replace(workload.run, **changes))
    except UsageError:
        return  # such as a batch that the ranks do not divide
    yield name, {f"run.{key}": value for key, value in changes.items()}, changed


def _combine(
    workload: Workload,
    helping: list[Remedy],
    judge: Callable[[str, Mapping[str, Any], Workload], Remedy],
) -> Iterator[Remedy]:
    """The remedies that leave the learning unchanged, largest first, each added to the earlier ones until the run
    fits."""
    changes: dict[str, Any] = {}
    for one in sorted(helping, key=lambda one: -one.saved_bytes):
        if one.numerics == "lossy" or any(key in changes for key in one.changes):
            continue
        wanted = {**changes, **one.changes}
        try:
            changed = replace(
                workload,
                run=replace(workload.run, **_part(wanted, "run.")),
                model=replace(workload.model, **_part(wanted, "model.")),
            )
        except UsageError:
            continue
        changes = wanted
        found = judge("together", changes, changed)
        if found.fits:
            yield found
            return


def _part(changes: Mapping[str, Any], start: str) -> dict[str, Any]:
    return {key.removeprefix(start): value for key, value in changes.items() if key.startswith(start)}


def build_plan(request: PlanRequest, version: str, tokens: int, *, wants_remedies: bool) -> PlanReport:
    """The plan of a training on this many tokens; with remedies if requested, if it does not fit, or if it fits by less
    than the error of the forecast."""
    workload, hardware = request.workload, request.hardware
    memory, step = predict_memory(workload, hardware), predict_step(workload, hardware)
    price = pick_price(hardware, request.price_kind)
    cost = predict_cost(step, workload, hardware, tokens, failures=request.failures, price=price)
    stall = None if cost.checkpoint is None else cost.checkpoint.stall_s
    given = request.failures.checkpoint_s is not None
    return PlanReport(
        tool_version=version,
        name=request.name,
        gpu=request.gpu,
        device=hardware.name,
        gpus=workload.gpus,
        params=workload.model.params,
        micro_batches=workload.micro_batches,
        data_ranks=workload.data_ranks,
        tokens_per_step=workload.tokens_per_step,
        fits=memory.fits,
        memory=make_memory(memory, layer_parts(workload)),
        step=make_range(step),
        tokens_per_s_per_gpu=step.tokens_per_s_per_gpu,
        mfu_ratio=step.mfu_ratio,
        hfu_ratio=step.hfu_ratio,
        cost=cost,
        remedies=find_remedies(workload, hardware, predict_step) if wants_remedies or not memory.fits_surely else (),
        run={name: getattr(workload.run, name) for name in field_names(PlannedRun)},
        basis={
            "memory.states": "formula",
            "memory.activations": "formula",
            "memory.context": memory.basis,
            "step": step.basis,
            "cost": "formula",
            "cost.stall": "assumed" if stall is None else "measured" if given else "formula",
        },
    )
