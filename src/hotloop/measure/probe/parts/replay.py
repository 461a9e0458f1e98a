"""Every recorded forward operator with its backward: as it is, in bfloat16, and with twice the batch."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from hotloop.measure.probe.clock import middle, time_arms, time_call
from hotloop.measure.probe.operators import (
    LOWERED,
    NOT_REPLAYED,
    NOT_TIMED,
    PRODUCTS,
    WEIGHTS_FROM,
    Arguments,
    Operator,
    find_overload,
    flatten,
    make_call,
    make_inputs,
    scale_batch,
)
from hotloop.measure.probe.opportunities import Part, ProbeRequest

FRESH_BYTES = 48 << 20
"""More than any block that the allocator keeps."""


def needs_no_input_gradient(op: Operator, recorded: Sequence[Operator]) -> bool:
    """True when the recorded backward made the gradient of this product's weight and none of its activation.

    So it is in a first layer, whose input is the data: the third product is as large as the others, and the training
    does not compute it. False where the record does not say it.
    """
    place = PRODUCTS.get(op.name)
    shapes = op.shapes[place : place + 2] if place is not None else []
    if len(shapes) < 2 or len(shapes[0]) < 2 or len(shapes[1]) != 2:
        return False
    rows, inner = math.prod(shapes[0][:-1]), shapes[0][-1]
    out = shapes[1][0] if op.name == "aten::linear" else shapes[1][1]
    made = {tuple(map(tuple, one.shapes[:2])) for one in recorded if one.backward and one.name == "aten::mm"}

    def was_made(first: int, through: int, last: int) -> bool:
        # Either order of the two factors gives the same gradient, one of them transposed.
        return any(((a, through), (through, b)) in made for a, b in ((first, last), (last, first)))

    return was_made(inner, rows, out) and not was_made(rows, out, inner)


def _without_input_gradient(op: Operator, arguments: Arguments) -> Arguments:
    arguments[0][PRODUCTS[op.name]].requires_grad_(False)
    return arguments


def _lowered_inputs(op: Operator, arguments: Arguments) -> Arguments:
    """The same arguments with activations already in bfloat16, as after another lowered operator."""
    weights_from = WEIGHTS_FROM.get(op.name, len(arguments[0]))
    if op.name == "aten::embedding":
        weights_from = 0

    def lower(value: Any, index: int) -> Any:
        if isinstance(value, list):
            return [lower(one, index) for one in value]
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32 and value.dim() and index < weights_from:
            return value.detach().bfloat16().requires_grad_(value.requires_grad)
        return value

    return [lower(value, i) for i, value in enumerate(arguments[0])], arguments[1]


def replay_op(
    op: Operator,
    arms: Sequence[str],
    batch: int | None,
    gradients: bool,
    budget_s: float,
    recorded: Sequence[Operator] = (),
) -> dict[str, Any]:
    """ns per call of one operator with its backward, by arm (base, bf16_cast, bf16_flow, double); of a first layer
    without its input's gradient. ``spread_ratio`` is the coefficient of variation of the base arm's rounds.

    ``recorded`` are all operators of the step, which say of a product whether it is in a first layer.
    """
    op = op.functional
    overload = find_overload(op)
    differentiable = gradients and bool(op.dtypes) and not overload._schema.is_mutable
    base = make_inputs(op, overload, op.shapes, differentiable)
    is_first_layer = differentiable and needs_no_input_gradient(op, recorded)
    if is_first_layer:
        base = _without_input_gradient(op, base)
    calls = {"base": make_call(overload, base, False)}
    if "bf16" in arms:
        flowing = _lowered_inputs(op, base)
        if op.name in LOWERED:
            calls["bf16_cast"] = make_call(overload, base, True)
        if any(a is not b for a, b in zip(flatten(base[0]), flatten(flowing[0]), strict=True)):
            calls["bf16_flow"] = make_call(overload, flowing, True)
    shapes = scale_batch(op, batch) if "double" in arms and batch else None
    if shapes is not None:
        doubled = make_inputs(op, overload, shapes, differentiable)
        calls["double"] = make_call(
            overload, _without_input_gradient(op, doubled) if is_first_layer else doubled, False
        )
    times = time_arms(calls, budget_s)
    return {name: round(middle(values)) for name, values in times.items()} | {
        "rounds": len(times["base"]),
        "spread_ratio": round(statistics.pstdev(times["base"]) / max(statistics.fmean(times["base"]), 1.0), 4),
    }


def replay_ops(request: ProbeRequest, budget_s: float) -> dict[str, Any]:
    """Every forward operator that can be replayed, by its place in the request, with its times; and why others were
    skipped.

    ``engine_ns`` is one call of the autograd engine, which each operator here pays and a step only once. Recorded times
    are ns per step.
    """
    recorded = request.ops
    forward = [op for op in recorded if not op.backward]
    gradients = any(op.backward for op in recorded)
    arms, batch = request.arms, request.batch_size
    total_ns = sum(op.cpu_ns for op in forward) or 1
    deadline_s = time.perf_counter() + budget_s
    allowed_s = max(0.5, budget_s)
    replayed: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for index, op in enumerate(recorded):
        if op.backward:
            continue
        why = ""
        if op.name in NOT_REPLAYED:
            why = "a view"
        elif op.size_bytes * 8 > request.memory_bytes:
            why = "too large for the memory allowed"
        elif time.perf_counter() > deadline_s:
            why = "no time left"
        if why:
            skipped.append({"index": index, "reason": why})
            continue
        # Half of the time by weight, half evenly: small operators decide how a small model scales.
        share_s = allowed_s * (0.5 * op.cpu_ns / total_ns + 0.5 / len(forward))
        try:
            times = replay_op(op, arms, batch, gradients, share_s, recorded)
        except NOT_TIMED as error:
            skipped.append({"index": index, "reason": f"{type(error).__name__}: {error}"[:160]})
        else:
            about = {"index": index, "name": op.name, "count": op.count, "recorded_ns": op.cpu_ns}
            replayed.append(about | times)
    return {
        "ops": replayed,
        "skipped": skipped,
        "engine_ns": round(_engine_ns()) if gradients else 0,
        "first_touch_ns_per_byte": round(_first_touch_ns_per_byte(), 4) if "bf16" in arms else None,
        "recorded_forward_ns": sum(op.cpu_ns for op in forward),
        "recorded_backward_ns": sum(op.cpu_ns for op in recorded if op.backward),
    }


def _first_touch_ns_per_byte() -> float:
    """The cost of a byte of memory fresh from the system at its first use, beyond writing it."""
    found = []
    for _ in range(3):
        fresh = torch.empty(FRESH_BYTES, dtype=torch.uint8)
        first, again = (time_call(fresh.zero_, 1) for _ in range(2))
        found.append(max(0.0, first - again) / FRESH_BYTES)
        del fresh
    return min(found)


def _engine_ns() -> float:
    """The cost of one call of the autograd engine itself: once a step in training, once an operator here."""
    leaf = torch.zeros(1, requires_grad=True)
    out = leaf.view(1)
    seed = torch.ones(1)
    call = functools.partial(torch.autograd.grad, out, leaf, seed, retain_graph=True)
    return middle([time_call(call, 50) for _ in range(9)])


REPLAY = Part(id="replay", order=1, budget_ratio=0.45, is_wanted=lambda request: bool(request.ops), measure=replay_ops)
