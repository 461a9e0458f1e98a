"""Counts of hook calls x their cost measured in this process -> what the hooks cost the training, in ns."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from . import wrappers
from .loader_state import LoaderState
from .recorder import FORWARD, Recorder
from .session import Session

IN_PLACE_RATIO = 2.1
"""What hooks cost between torch's operators over what ``hook_costs_ns`` says: 35.1 us a step (95 % interval 31.9 to
40.6, 200 pairs of blocks with and without) over 16.4 us, on a 3-layer MLP (2026-11-24, 2 cores of an Intel Xeon, torch
2.13.0 CPU; docs/overhead.md). It was 2.3 and 3.7 in passes before. Other loops may differ: 3.7 with 201 modules."""

METHOD = (
    "Hook calls × median cost of an empty call (cold cache), measured in the training process, "
    f"× {IN_PLACE_RATIO}, by which paired runs with and without hotloop cost more (docs/overhead.md)"
)

_ROUNDS = 15
_EVICTED_BYTES = 1 << 20


def _cold_cost_ns(call: Callable[[], Any]) -> float:
    """Median cost of a call whose data has left the inner caches, as torch's operators leave it, in ns."""
    source, target = bytearray(_EVICTED_BYTES), bytearray(_EVICTED_BYTES)
    spent_ns = []
    for _ in range(_ROUNDS):
        target[:] = source
        start_ns = time.perf_counter_ns()
        call()
        spent_ns.append(time.perf_counter_ns() - start_ns)
    return float(sorted(spent_ns)[_ROUNDS // 2])


def _empty(*args: Any, **kwargs: Any) -> None:
    return None


def hook_costs_ns(session: Session) -> dict[str, float]:
    """Cost of one call of each hook around an empty function, in ns; nothing of the training is touched.

    About 20 ms in all. In place a hook costs IN_PLACE_RATIO times as much: what torch's operators do to the branch
    predictors is not repeated here.
    """
    probe: Any = Session({"run": ""})
    probe.recorder.on_start = None
    probe.learning = False
    probe.owner = threading.get_ident()
    recorder: Recorder = probe.recorder
    probe.matching_inputs, probe.plain_forwards = session.matching_inputs, session.plain_forwards
    subject_class = type("Probe", (), {"training": True, "parameters": lambda self: iter((None,))})
    subject = subject_class()
    call = wrappers.wrap_module_call(probe)(_empty)
    backward = wrappers.wrap_run_backward(probe)(_empty)
    advance = wrappers.wrap_loader_next(probe)(_empty)
    collective = wrappers.wrap_collective(probe)(_empty)
    step = wrappers.wrap_optimizer_step(probe)(_empty)
    recorder.optimizers[id(subject)] = 0
    # The loader and the model are known, as they are in nearly every step.
    probe.loading.state = probe.loading.last_state = LoaderState(0, None, None)
    probe.loading.state.feeds_backward = True
    probe.loading.iterator_ref = weakref.ref(subject)
    probe.counting.counted_row = sys.maxsize
    step(subject)
    call(subject)
    backward(subject)
    advance(subject)
    recorder.quick = session.recorder.quick
    empty_ns = _cold_cost_ns(lambda: _empty(subject))
    costs = {
        "batches": _cold_cost_ns(lambda: advance(subject)),
        "backwards": _cold_cost_ns(lambda: backward(subject)),
        "forwards": _cold_cost_ns(lambda: call(subject)),
        "collectives": _cold_cost_ns(lambda: collective(subject)),
        "rows": _cold_cost_ns(lambda: step(subject)),
    }
    recorder.enter(FORWARD)
    costs["nested"] = _cold_cost_ns(lambda: call(subject))
    recorder.leave()
    costs["nograd_forwards"] = costs["forwards"]
    costs["checkpoints"] = costs["collectives"]
    return {name: max(0.0, cost_ns - empty_ns) for name, cost_ns in costs.items()}


WRITE_NS = 6_000.0
"""Copying one row into the file and committing it, between torch's operators; not measured here: it would write."""


SWITCH_NS = 180_000.0
"""Watching nested modules again for a row: what emptying the caches of types costs a net of 201 modules."""


def hooks_overhead_ns(session: Session) -> int:
    """Host time that the hooks have cost so far, in ns."""
    return int(IN_PLACE_RATIO * replayed_hooks_ns(session))


def replayed_hooks_ns(session: Session) -> float:
    """The same by the costs of ``hook_costs_ns`` as they are, in ns."""
    if session.hook_costs_ns is None:
        session.hook_costs_ns = hook_costs_ns(session)
    costs = session.hook_costs_ns
    rows = session.recorder.rows
    total_ns = rows * (costs["rows"] + WRITE_NS) + session.nested_total() * costs["nested"]
    for name, count in session.call_counts().items():
        total_ns += count * costs[name]
    if session.module_patch is not None:
        total_ns += session.module_patch.widened_count * SWITCH_NS
    return total_ns
