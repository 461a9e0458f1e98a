"""Steps of one CPU process -> whether its slow steps were slow because it did not get the cores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotloop.core.recording import FLAG_DEEP

from .segments import BoolColumn, Steps

MIN_STEPS_COUNT = 40
"""Steps, or groups of short ones, of which the CPU time is known."""
MIN_VARIATION_RATIO = 0.2
"""Coefficient of variation of the steps' own computation below which nothing needs to be said."""
MIN_COMPUTE_RATIO = 0.5
"""Share of the step that computation must take, so that the CPU time of the whole step says something about it."""
MIN_ROOM_RATIO = 0.5
"""What a step did off the cores is theirs only where its fast steps were on them at least this part of the time."""
MAX_RUNNING_RATIO = 0.5
"""At most so much CPU time per second by which slow steps are longer: not even one thread was on a core for half of
it. Work that merely uses fewer threads keeps one of them busy, so it stays above."""

COMPUTE_FIELDS = ("forward_ns", "nograd_ns", "backward_ns", "optimizer_ns")
OWN_EVENTS = ("checkpoints", "bursts", "compiles", "compile_ns", "iterators", "gc_count", "collectives")
"""What a program does now and then by itself; steps with any of it are no evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrest:
    """``variation_ratio`` is the coefficient of variation of the steps' computation; ``running_ratio`` the CPU time per
    time by which the slowest quarter of the steps computed longer than the fastest quarter."""

    variation_ratio: float
    running_ratio: float


def find_unrest(steps: Steps, base: BoolColumn) -> Unrest | None:
    """Unrest that the process's own work does not explain; None where there is none, or where it cannot be told.

    Compared are steps without any event of their own. Whatever a step computes more costs CPU time; a step whose
    computation only lasts longer was kept from the cores. Meant for one process that computes on the CPU and shares
    them with neither loader workers nor other ranks: the caller knows.
    """
    columns = steps.columns
    alike = base & ~steps.is_block & ((columns["flags"] & FLAG_DEEP) == 0)
    for name in OWN_EVENTS:
        alike &= columns[name] <= 0
    compute = np.zeros(len(alike), dtype=np.int64)
    for name in COMPUTE_FIELDS:
        compute += columns[name]
    # Short steps share one reading of the CPU time with those after them: only what lies between two readings compares.
    ends = np.flatnonzero(columns["cpu_ns"] > 0)
    if not len(ends):
        return None
    starts = np.concatenate(([0], ends[:-1] + 1))
    until = ends[-1] + 1
    whole = np.logical_and.reduceat(alike[:until], starts)
    if int(whole.sum()) < MIN_STEPS_COUNT:
        return None
    variation = float(compute[alike].std()) / max(1.0, float(compute[alike].mean()))
    compute, step, cpu = (
        np.add.reduceat(column[:until], starts)[whole] for column in (compute, steps.step_ns, columns["cpu_ns"])
    )
    mean_ns = float(compute.mean())
    if mean_ns <= 0 or mean_ns < MIN_COMPUTE_RATIO * float(step.mean()):
        return None
    order = np.argsort(compute, kind="stable")
    quarter = len(order) // 4
    fast, slow = order[:quarter], order[-quarter:]
    fast_cpu = float(cpu[fast].mean())
    if variation < MIN_VARIATION_RATIO or fast_cpu < MIN_ROOM_RATIO * float(step[fast].mean()):
        return None
    longer_ns = float(compute[slow].mean() - compute[fast].mean())
    # Slow steps may have computed less outside these phases than fast ones did: that hides some of their CPU time.
    rest_ns = max(0.0, float((step - compute)[fast].mean() - (step - compute)[slow].mean()))
    more_cpu_ns = float(cpu[slow].mean()) - fast_cpu + rest_ns * fast_cpu / float(step[fast].mean())
    running = max(0.0, more_cpu_ns / longer_ns)
    return Unrest(variation_ratio=variation, running_ratio=running) if running <= MAX_RUNNING_RATIO else None
