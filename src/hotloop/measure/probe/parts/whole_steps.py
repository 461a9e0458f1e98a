"""A step's recorded forward operators -> full passes of them: unchanged, with larger batches, with other threads."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hotloop.measure.probe.clock import middle, time_call
from hotloop.measure.probe.operators import (
    NOT_TIMED,
    NotReplayable,
    Operator,
    find_overload,
    flatten,
    is_differentiable,
    make_inputs,
    scale_batch,
)
from hotloop.measure.probe.opportunities import Part, ProbeRequest, RecordedOptimizer

MOST_CALLS = 3_000
PASS_COPIES = 6
"""A pass keeps its inputs, outputs and gradients, once for each batch size."""
LEAST_PASS_RATIO = 0.8
"""Share of the calls that a pass has to hold to represent the step."""


def order_calls(forward: Sequence[Operator]) -> list[Operator]:
    """One entry per call, as layers of a network make them: every operator once in turn while it has calls left."""
    ordered = sorted(forward, key=lambda op: op.first)
    left = [round(op.count) for op in ordered]
    calls = []
    while any(left):
        for i, op in enumerate(ordered):
            if left[i]:
                left[i] -= 1
                calls.append(op)
    return calls


class WholePass:
    """All forward calls of a step, each fed with what an earlier one made where the sizes fit, and one backward.

    Operators timed alone find their tensors in the caches. In a step they find what the steps' other operators left
    there, which is what decides how the time grows with the batch.
    """

    def __init__(self, calls: Sequence[Operator], batch: int, factor: int = 1) -> None:
        self.leaves: list[torch.Tensor] = []
        self._fed: dict[tuple[Any, ...], torch.Tensor] = {}
        self._calls = [call for op in calls if (call := self._prepare(op, batch, factor)) is not None]

    @property
    def calls_count(self) -> int:
        return len(self._calls)

    def _prepare(self, op: Operator, batch: int, factor: int) -> tuple[Any, list[Any], dict[str, Any], Any] | None:
        op = op.functional
        try:
            overload = find_overload(op)
            bigger = scale_batch(op, batch)
            shapes = (scale_batch(op, batch, factor) if bigger is not None else None) or op.shapes
            positional, keywords = make_inputs(op, overload, shapes, not overload._schema.is_mutable)
            overload(*positional, **keywords)
        except NOT_TIMED:
            return None
        # What grows with the batch is data, which calls hand on; the rest are this call's own weights.
        data = [i for i, (old, new) in enumerate(zip(op.shapes, bigger or (), strict=False)) if old != new]
        fed: list[tuple[int, tuple[int, ...], torch.dtype]] = []
        for i, value in enumerate(positional):
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            if i in data:
                positional[i] = self._fed.setdefault((tuple(value.shape), value.dtype), value)
                fed.append((i, tuple(value.shape), value.dtype))
        self.leaves += [t for t in flatten([*positional, *keywords.values()]) if is_differentiable(t)]
        return overload, positional, keywords, fed

    def run(self) -> None:
        """Forward and backward once."""
        made: dict[int, torch.Tensor] = {}
        unused: dict[int, torch.Tensor] = {}
        for overload, positional, keywords, fed in self._calls:
            arguments = list(positional)
            for i, shape, dtype in fed:
                source = made.get(math.prod(shape))
                if source is not None and source.dtype is dtype:
                    unused.pop(id(source), None)
                    arguments[i] = source.reshape(shape)
            out = overload(*arguments, **keywords)
            for one in flatten([out])[:1]:
                if is_differentiable(one):
                    made[one.numel()] = one
                    unused[id(one)] = one
        ends = list(unused.values())
        if ends:
            torch.autograd.grad(ends, self.leaves, [torch.ones_like(one) for one in ends], allow_unused=True)


MOST_PASSES = 60
LARGER_FACTORS = (4, 8, 16, 32, 64)
LARGER_RUNS = 4
"""A larger pass is made (which runs its forward), run once, and timed twice."""
BOTH_RATIO = 0.5
"""Part of the passes' time for the present batch and twice of it; the rest is for larger ones."""


def time_passes(request: ProbeRequest, budget_s: float) -> dict[str, Any] | None:
    """Full steps' forwards and backwards unchanged and with twice the batch, taking turns; then with larger ones.

    ns of a pass with the recorded batch and with twice of it; ``larger`` holds (factor, ns) for that many times the
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
    """(factor, ns of a pass) for larger batches, as far as time allows: each is made, run, and timed."""
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


THREAD_ROUNDS = 8


def time_threads(request: ProbeRequest, budget_s: float) -> dict[str, Any] | None:
    """A step's passes and its optimizer with the present number of threads and with as many as there are cores, in ns.

    The optimizer is left out where it cannot be built; None where the passes cannot represent the step.

    Full passes, with Python between the operators: threads go to sleep there and are woken late. The mean of all
    rounds counts, unlike elsewhere: an unlucky round is what too many threads cost.
    """
    deadline_s = time.perf_counter() + budget_s
    present, cores = torch.get_num_threads(), request.cores
    pieces = _pieces_for_threads(request)
    if not pieces:
        return None
    totals: dict[tuple[str, int], list[float]] = {}
    rounds = 0
    # A team of threads is rebuilt when its size changes, so full rounds take turns, after a warm-up each.
    while rounds < THREAD_ROUNDS and (rounds < 2 or time.perf_counter() < deadline_s):
        rounds += 1
        for threads in (present, cores):
            torch.set_num_threads(threads)
            for name, call in pieces.items():
                call()
                totals.setdefault((name, threads), []).append(time_call(call, 2, time.perf_counter_ns))
    torch.set_num_threads(present)
    means = {key: round(statistics.fmean(values)) for key, values in totals.items()}
    found = {
        "present_threads": present,
        "cores": cores,
        "rounds": rounds,
        "present_ns": means["train", present],
        "cores_ns": means["train", cores],
    }
    if "optimizer" in pieces:
        found |= {
            "optimizer_present_ns": means["optimizer", present],
            "optimizer_cores_ns": means["optimizer", cores],
        }
    return found


def _pieces_for_threads(request: ProbeRequest) -> dict[str, Callable[[], object]]:
    """The calls of a step, by name; empty where its forward and backward cannot be passed through."""
    forward = [op for op in request.ops if not op.backward and op.computes]
    fits = sum(op.count * op.size_bytes for op in forward) * (PASS_COPIES // 2) <= request.memory_bytes
    count = sum(op.count for op in forward)
    if not fits or count > MOST_CALLS:
        return {}
    passed = WholePass(order_calls(forward), request.batch_size or 1)
    if not passed.leaves or passed.calls_count < LEAST_PASS_RATIO * count:
        return {}
    pieces: dict[str, Callable[[], object]] = {"train": passed.run}
    if request.optimizer:
        with contextlib.suppress(*NOT_TIMED):
            pieces["optimizer"] = present_optimizer(request.optimizer, request.memory_bytes)
    return pieces


def present_optimizer(facts: RecordedOptimizer, memory_bytes: int) -> Callable[[], object]:
    """A step of the recorded optimizer over parameters of the recorded sizes."""
    parameters, share = facts.make_parameters(memory_bytes)
    if share < 1.0:
        raise NotReplayable("the parameters are too large for the memory allowed")
    step: Callable[[], object] = facts.kind(parameters, lr=1e-6, **facts.settings, **facts.present).step
    return step


def _is_wanted(request: ProbeRequest) -> bool:
    return bool(request.ops) and "threads" in request.arms


THREADS = Part(id="threads", order=2, budget_ratio=0.2, is_wanted=_is_wanted, measure=time_threads)
