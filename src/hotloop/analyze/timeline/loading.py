"""Loader calls of some steps and what the trace tells of their demand on cores -> the periods that workers allow.

Batches that the training process makes itself may compute or wait (for storage). Moved into workers, computing competes
for the host's cores and waiting does not. `hotloop run --trace` writes into the trace which of both it was; without
that, operators inside the loader computed, frames of known waiting calls waited, and the rest is not known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.core.trace import Category, Trace
from hotloop.core.trace_plan import TraceDemand, read_demand

from .intervals import Int64s, intersect, unite
from .links import find_categories, match_names
from .step_graph import ROLE, StepGraph

HANDOVER_NS = (200_000, 500_000, 1_000_000)
"""Taking a batch from a worker: a message, and its memory mapped. 0.2 ms of small tensors and 1.0 ms of 1 MiB in two
tensors were seen on a host whose workers had nothing else to do: least, middle, most."""
TICK_NS = 4_000_000
"""How long a thread stands still when another one gets its core: a tick of Linux with 250 Hz, which is what the
interrupted operators of traced trainings on full cores are longer by (3.0, 7.2, 11.4 ms)."""
GRACE_RATIO = 0.25
"""How much slower a batch of a worker may be than one of the main process, for the worst case."""
LAST_CALL_RATIO = 0.02
"""A loader call that takes less than this of the median one brought no batch: it found the pass at its end."""
THREADS_RATIO = 1.25
"""More cores busy than this: the training computes with several threads, which wait for the slowest of them."""
WIDE_RATIO = 0.10
"""Answers further apart than this, in shares of the step, are no single answer."""

_WAITING_FRAME = re.compile(
    r"built-in (?:function|method) (?:sleep|read|readinto|readline|recv|recv_into|acquire|select|poll|wait|accept"
    r"|connect|open|stat|listdir|scandir)\b|^(?:ssl|socket)\.py\(\d+\): (?:read|recv|recv_into|readinto)"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One assumption about what is not exactly known."""

    computing_ratio: float
    """Share of a batch's making that needs a core."""
    busy_cores: float
    """Cores that the training keeps busy while it does not load."""
    handover_ns: int
    ticks: float
    """Interruptions of the training thread for each batch, where there are more threads than cores."""
    refill_ratio: float
    """How much of a batch's making every pass over the data waits for at its beginning."""
    grace_ratio: float
    barrier_ratio: float
    """With several threads: 0, displaced work is shared by all cores; 1, all threads wait for the displaced one."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Workers beside the training."""

    workers_count: int
    cores_count: int
    """0 when unknown, or when a device computes and leaves the host's cores alone."""
    batch_ns: float
    batches_per_step: float
    passes_per_step: float
    """Ends of a pass over the data: the next batch has to be made before anything can go on."""
    best: Case
    middle: Case
    worst: Case
    doubt: str
    """Why this is no forecast; '' when everything that it rests on was measured."""

    def limit(self, host_ns: int, case: Case) -> dict[str, int]:
        """The periods of host, loader and cores, in ns, when the training without loading takes ``host_ns``."""
        making_ns = self.batch_ns * self.batches_per_step
        refill_ns = case.refill_ratio * self.passes_per_step * self.batch_ns
        host = host_ns + self.batches_per_step * case.handover_ns + refill_ns
        limits = {"host": host, "loader": making_ns * (1 + case.grace_ratio) / self.workers_count + refill_ns}
        if self.cores_count:
            busy = min(case.busy_cores, float(self.cores_count))
            computing_ns = making_ns * case.computing_ratio
            crowded = self.workers_count * case.computing_ratio + busy > self.cores_count
            tick_ns = case.ticks * self.batches_per_step * min(TICK_NS, self.batch_ns * case.computing_ratio)
            lost_ns = tick_ns if crowded else 0.0
            limits["host"] += lost_ns
            displaced_ns = max(0.0, computing_ns - min(self.cores_count - busy, self.workers_count) * host_ns)
            even = 1 / self.cores_count
            share = even + (1 - even) * case.barrier_ratio if busy > THREADS_RATIO else even
            limits["cores"] = limits["host"] + displaced_ns * share
        return {name: round(value) for name, value in limits.items()}

    def doubts(self, host_ns: int, step_ns: int) -> str:
        """``doubt``, where it matters to the answer; '' where best and worst come to the same."""
        if not self.doubt or not self.cores_count:
            return self.doubt
        apart = abs(max(self.limit(host_ns, self.worst).values()) - max(self.limit(host_ns, self.best).values()))
        return self.doubt if apart > WIDE_RATIO * step_ns else ""


def measure_loading(trace: Trace, graph: StepGraph, workers_count: int, cores_count: int) -> Loading | None:
    """The loading of the graph's steps, moved into workers; None when no batch was made in this process."""
    calls = graph.loader_ns
    if len(calls) == 0 or not len(graph.boundaries):
        return None
    ended = calls < LAST_CALL_RATIO * float(np.median(calls))
    made = calls[~ended]
    demand = read_demand(trace.facts.extra)
    cores = cores_count or (demand.cores_count if demand is not None else 0)
    if len(graph.work):
        cores = 0
    low, middle, high = _find_computing(trace, graph, demand)
    busy = demand.busy_cores if demand is not None else None
    likely, most = (1.0, float(max(cores, 1))) if busy is None else (busy, busy)
    doubts = []
    if not len(graph.work):
        if not cores:
            doubts.append("how many cores there are (give it as loader-workers=COUNT:CORES)")
        if high - low > 0.25:
            doubts.insert(0, "whether making a batch computes or waits")
        if busy is None:
            doubts.append("how many cores the training keeps busy")
    steps = len(graph.boundaries)
    best_ratio = low
    if cores and busy is not None and busy > THREADS_RATIO and workers_count * middle + busy > cores:
        # Threads that wait for each other leave their cores to a worker now and then, or it makes all of them late.
        doubts.append("how the workers and the training's threads share cores that are all in use")
        best_ratio = 0.0
    return Loading(
        workers_count=workers_count,
        cores_count=cores,
        batch_ns=float(made.mean()),
        batches_per_step=len(made) / steps,
        passes_per_step=int(np.count_nonzero(ended)) / steps,
        best=Case(best_ratio, likely, HANDOVER_NS[0], 0.0, 0.0, 0.0, 0.0),
        middle=Case(middle, likely, HANDOVER_NS[1], 1.0, 1.0, 0.0, 0.5),
        worst=Case(high, most, HANDOVER_NS[2], 2.0, 1.0, GRACE_RATIO, 1.0),
        doubt=_describe_doubts(doubts, demand_ratio=demand is not None),
    )


def _describe_doubts(doubts: Sequence[str], demand_ratio: bool) -> str:
    if not doubts:
        return ""
    shown = f"the trace does not show {', '.join(doubts)}"
    return shown if demand_ratio else f"{shown}; record one with hotloop run --trace"


def _find_computing(trace: Trace, graph: StepGraph, demand: TraceDemand | None) -> tuple[float, float, float]:
    """Share of the loading that needs a core: at least, most likely, at most."""
    demand_ratio = demand.loading_busy_ratio if demand is not None else None
    if demand_ratio is not None:
        return demand_ratio, demand_ratio, demand_ratio
    edges = np.flatnonzero(graph.role == ROLE["input"])
    if len(edges) == 0:
        return 0.0, 1.0, 1.0
    weight = graph.weight_ns[edges].astype(np.float64)
    whole = float(weight.sum())
    if whole <= 0:
        return 0.0, 1.0, 1.0
    row = graph.row[edges]
    in_op = (row >= 0) & (trace.category[np.maximum(row, 0)] == Category.CPU_OP)
    low = float(weight[in_op].sum()) / whole
    waiting = _measure_waiting(trace, row) / whole
    high = max(low, 1.0 - waiting)
    return low, high, high


def _measure_waiting(trace: Trace, rows: Int64s) -> float:
    """Time in the loader's calls, in ns, in which a Python frame that is known to wait was open."""
    frames = find_categories(trace, (Category.PYTHON,))
    if len(frames) == 0:
        return 0.0
    frames = frames[match_names(trace, trace.name[frames], _WAITING_FRAME)]
    own = np.unique(rows[rows >= 0])
    if len(frames) == 0 or len(own) == 0:
        return 0.0
    waits = unite(trace.start_ns[frames], trace.start_ns[frames] + trace.duration_ns[frames])
    calls = unite(trace.start_ns[own], trace.start_ns[own] + trace.duration_ns[own])
    return float(intersect(waits, calls).total_ns)
