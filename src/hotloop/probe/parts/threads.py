"""A step's passes and its optimizer with the present number of threads, and with one per core."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from hotloop.probe.clock import time_call
from hotloop.probe.operators import NOT_TIMED, NotReplayable, find_overload, make_call, make_inputs
from hotloop.probe.request import Part, ProbeRequest, RecordedOptimizer
from hotloop.probe.whole_pass import LEAST_PASS_RATIO, MOST_CALLS, PASS_COPIES, WholePass, order_calls

THREAD_ROUNDS = 8


def time_threads(request: ProbeRequest, budget_s: float) -> dict[str, Any] | None:
    """A step's passes and its optimizer with the present number of threads and with as many as there are cores, in ns.

    The optimizer is left out where it cannot be built. ``whole_passes`` is False where only the largest operators ran,
    one after the other.

    Whole passes, with Python between the operators: threads go to sleep there and are woken late. The mean of all
    rounds counts, unlike elsewhere: an unlucky round is what too many threads cost.
    """
    deadline_s = time.perf_counter() + budget_s
    present, cores = torch.get_num_threads(), request.cores
    pieces, whole = _pieces_for_threads(request)
    if not pieces:
        return None
    totals: dict[tuple[str, int], list[float]] = {}
    rounds = 0
    # A team of threads is built anew when its size changes, so whole rounds take turns, after a warm-up each.
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
        "whole_passes": whole,
        "present_ns": means["train", present],
        "cores_ns": means["train", cores],
    }
    if "optimizer" in pieces:
        found |= {
            "optimizer_present_ns": means["optimizer", present],
            "optimizer_cores_ns": means["optimizer", cores],
        }
    return found


def _pieces_for_threads(request: ProbeRequest) -> tuple[dict[str, Callable[[], object]], bool]:
    """What a step calls, by name; and whether ``train`` is a whole forward and backward, else its largest operators."""
    forward = [op for op in request.ops if not op.backward and op.computes]
    fits = sum(op.count * op.size_bytes for op in forward) * (PASS_COPIES // 2) <= request.memory_bytes
    pieces: dict[str, Callable[[], object]] = {}
    count = sum(op.count for op in forward)
    passed = WholePass(order_calls(forward), request.batch_size or 1) if fits and count <= MOST_CALLS else None
    whole = passed is not None and bool(passed.leaves) and passed.calls_count >= LEAST_PASS_RATIO * count
    if passed is not None and whole:
        pieces["train"] = passed.run
    else:
        calls: list[tuple[int, Callable[[], object]]] = []
        for op in sorted(forward, key=lambda o: -o.cpu_ns)[:12]:
            if op.size_bytes * 8 > request.memory_bytes:
                continue
            op = op.functional
            with contextlib.suppress(*NOT_TIMED):
                overload = find_overload(op)
                arguments = make_inputs(op, overload, op.shapes, not overload._schema.is_mutable)
                calls.append((round(op.count), make_call(overload, arguments, False)))
        if not calls:
            return {}, False
        pieces["train"] = lambda: [call() for count, call in calls for _ in range(count)]
    if request.optimizer:
        with contextlib.suppress(*NOT_TIMED):
            pieces["optimizer"] = present_optimizer(request.optimizer, request.memory_bytes)
    return pieces, whole


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
