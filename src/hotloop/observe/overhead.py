"""Counts of hook calls x their cost measured in this process -> what the hooks cost the training, in ns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from . import wrappers
from .recorder import COUNTED, FORWARD, Recorder
from .session import Session

METHOD = "calls of each hook x its min-of-N cost around an empty call, measured in the training process"

_ROUNDS, _CALLS = 5, 40


def _min_cost_ns(call: Callable[[], Any]) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        start_ns = time.perf_counter_ns()
        for _ in range(_CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - start_ns) / _CALLS)
    return best


def _empty(*args: Any, **kwargs: Any) -> None:
    return None


def hook_costs_ns(session: Session) -> dict[str, float]:
    """Cost of one call of each hook around an empty function, in ns; nothing of the training is touched."""
    probe: Any = Session({"run": ""})
    probe.recorder.on_start = None
    probe.learning = False
    probe.owner = threading.get_ident()
    recorder: Recorder = probe.recorder
    subject_class = type("Probe", (), {"training": True})
    subject = subject_class()
    call = wrappers.wrap_module_call(probe)(_empty)
    backward = wrappers.wrap_run_backward(probe)(_empty)
    advance = wrappers.wrap_loader_next(probe)(_empty)
    collective = wrappers.wrap_collective(probe)(_empty)
    step = wrappers.wrap_optimizer_step(probe)(_empty)
    recorder.optimizer_index(subject)
    step(subject)
    empty_ns = _min_cost_ns(lambda: _empty(subject))
    costs = {
        "batches": _min_cost_ns(lambda: advance(subject)),
        "backwards": _min_cost_ns(lambda: backward(subject)),
        "forwards": _min_cost_ns(lambda: call(subject)),
        "collectives": _min_cost_ns(lambda: collective(subject)),
        "rows": _min_cost_ns(lambda: step(subject)),
    }
    recorder.enter(FORWARD)
    costs["nested"] = _min_cost_ns(lambda: call(subject))
    recorder.leave()
    costs["nograd_forwards"] = costs["forwards"]
    costs["checkpoints"] = costs["collectives"]
    return {name: max(0.0, cost_ns - empty_ns) for name, cost_ns in costs.items()}


WRITE_NS = 2_500.0
"""Packing and committing one row in the file (benchmarks/overhead.py); not measured per process: it would write."""


def hooks_overhead_ns(session: Session) -> int:
    """Host time that the hooks have cost so far, in ns."""
    if session.hook_costs_ns is None:
        session.hook_costs_ns = hook_costs_ns(session)
    costs = session.hook_costs_ns
    rows = session.recorder.rows
    total_ns = rows * (costs["rows"] + WRITE_NS) + session.nested_total() * costs["nested"]
    for name, count in zip(COUNTED, session.call_counts, strict=True):
        total_ns += count * costs[name]
    return int(total_ns)
