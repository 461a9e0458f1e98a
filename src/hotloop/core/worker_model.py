"""The cost of making batches -> batches per second, and the step, by number of loader workers.

The only model of loader workers: the rules ask it about a recorded run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_HANDOVER_NS, HANDOVER_NS, MOST_HANDOVER_NS = 100_000.0, 200_000.0, 500_000.0
"""Taking one batch out of a worker's queue: unpickling, mapping its shared memory (0.1 to 0.3 ms measured on CPUs; the
largest value is a range factor for batches of a mebibyte)."""
SHARPNESS, WORST_SHARPNESS = 8.0, 5.0
"""Range factors: two processes of equal pace that wait for each other take 1.09 and 1.15 times as long.

By the fastest runs, four of six forecasts for workers (four in benchmarks/results/treated of 2026-11-21, two in
zoo/55f64a285295.jsonl of 2026-11-22) were within 0.10 of the middle; two were in the range, two above it by 0.01, and
two below it by 0.07 and 0.08.
"""
UNEVEN_RATIO = 1.15
"""Range factor: how much slower than their mean the workers may be; covered by the same forecasts."""
MOST_WORKERS_COUNT = 16
LATENCY_CPU_RATIO = 0.5
"""Loading that is on a CPU for less than this part of its time waits for storage or a network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingWork:
    """Making the batches of one step. Wall and CPU time per step in ns, wherever it runs; ``cpu_ns`` <= ``wall_ns``."""

    wall_ns: float
    cpu_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The forecast step if loading overlaps with the computation, in ns: optimistic, expected, pessimistic."""

    workers: int
    best_ns: float
    mid_ns: float
    worst_ns: float


def waits_for_storage(work: LoadingWork) -> bool:
    """Whether making batches is mostly waiting, so that workers may outnumber the cores."""
    return work.cpu_ns < LATENCY_CPU_RATIO * work.wall_ns


def most_workers(
    work: LoadingWork,
    cores: float,
    *,
    most: int = MOST_WORKERS_COUNT,
    free_bytes: float | None = None,
    worker_bytes: float = 0.0,
) -> int:
    """The most workers that the cores and the memory allow, at least 1.

    ``worker_bytes`` is what one worker adds, including its prefetched batches; ``free_bytes`` None: unknown, no bound.

    >>> most_workers(LoadingWork(wall_ns=9e6, cpu_ns=9e6), 4.0)
    4
    >>> most_workers(LoadingWork(wall_ns=9e6, cpu_ns=1e6), 4.0, free_bytes=3e9, worker_bytes=5e8)
    6
    """
    count = most if waits_for_storage(work) else min(most, round(cores))
    if free_bytes is not None and worker_bytes > 0:
        count = min(count, int(free_bytes / worker_bytes))
    return max(1, count)


def simulate_workers(
    *, compute_ns: float, work: LoadingWork, batches: float, cores: float, busy: float, workers: int
) -> Overlap:
    """The step with ``workers`` loader processes next to a computation of ``compute_ns`` on ``busy`` of ``cores``.

    The step is bound by the computation, by the workers' throughput and by the cores. CPU work that finds no free
    core displaces computation: at best it shares all cores evenly, at worst every thread of the computation waits
    for the one that was displaced, as at the barrier of an OpenMP loop.
    """
    throughput_ns = work.wall_ns / workers
    spare = max(0.0, cores - min(busy, cores))
    displaced_ns = max(0.0, work.cpu_ns - min(spare, workers) * compute_ns)
    even = 1.0 / max(1.0, cores)
    best_ns = max(compute_ns + displaced_ns * even, throughput_ns) + LEAST_HANDOVER_NS * batches
    mid_ns = _soft_max(compute_ns + displaced_ns * (1.0 + even) / 2, throughput_ns, SHARPNESS) + HANDOVER_NS * batches
    worst_ns = _soft_max(compute_ns + displaced_ns, throughput_ns * UNEVEN_RATIO, WORST_SHARPNESS)
    worst_ns += MOST_HANDOVER_NS * batches
    return Overlap(workers=workers, best_ns=best_ns, mid_ns=max(best_ns, mid_ns), worst_ns=max(mid_ns, worst_ns))


def best_overlap(
    *,
    compute_ns: float,
    work: LoadingWork,
    batches: float,
    cores: float,
    busy: float,
    most: int = MOST_WORKERS_COUNT,
) -> Overlap:
    """The fewest workers, at most ``most``, whose expected step is within 2 % of the best for any number of workers.

    Workers that wait for storage need no core of their own, so there may be more of them than cores.
    """
    most = most_workers(work, cores, most=most)
    choices = [
        simulate_workers(compute_ns=compute_ns, work=work, batches=batches, cores=cores, busy=busy, workers=count)
        for count in range(1, most + 1)
    ]
    best_ns = min(choice.mid_ns for choice in choices)
    return next(choice for choice in choices if choice.mid_ns <= 1.02 * best_ns)


def _soft_max(a_ns: float, b_ns: float, sharpness: float) -> float:
    """A little more than the larger of two times: two processes that take turns to be late lose some time to each
    other."""
    larger, smaller = max(a_ns, b_ns), min(a_ns, b_ns)
    if larger <= 0:
        return 0.0
    return float(larger * (1.0 + (smaller / larger) ** sharpness) ** (1.0 / sharpness))


def found_ratio(epochs: float, ranks: int = 1) -> float:
    """Share of the reads in this many epochs, 0..1, that find their sample in the cache of their own rank.

    A rank keeps what it has read. With a sampler that deals out all samples again over ``ranks`` in each epoch, it has
    met a sample in one of the ``e`` epochs before with the probability ``1 - (1 - 1 / ranks) ** e``.

    >>> found_ratio(1.0), found_ratio(4.0), found_ratio(3.0, ranks=2)
    (0.0, 0.75, 0.4166666666666667)
    """
    if epochs <= 0:
        return 0.0
    whole = math.floor(epochs)
    parts = [(1.0, epoch) for epoch in range(whole)] + [(epochs - whole, whole)]
    return math.fsum(part * (1.0 - (1.0 - 1.0 / ranks) ** epoch) for part, epoch in parts) / epochs
