"""RankAnalysis -> what its batches cost to make, what restarts of workers cost, and who uses the cores."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from hotloop.core.analysis import Analysis, LoaderFacts, RankAnalysis
from hotloop.core.worker_model import LoadingWork, Overlap, best_overlap
from hotloop.diagnose.aftermath import aftermath_ns
from hotloop.diagnose.measured import known_mean
from hotloop.diagnose.thresholds import threshold_ratio

LEAST_CORE_RATIO = 0.1
"""Guard, no factor: a thread that seems to have got less of its core was not ready to run."""
LEAST_COMPUTE_RATIO = 0.1
"""Guard, no factor: a step that does little but load shows too little of its computation to tell what cores that got.
Seen at 2 %: a fetch that slept, with 3.7 ms of CPU time in 68.6 ms, was taken for 37 ms of computing."""
PREPARED_LOW_RATIO, PREPARED_MID_RATIO = 0.5, 0.9
"""Part of the time that makes samples which is won by preparing them ahead of the training; the copy stays.

Of six such forecasts in the known set 0.73, 1.09, 0.85, 0.53, 1.11 and 1.02 of it was won by the fastest runs: mean
0.89, all above the low part (leaf_cnn, reviews_gru, birdsong in benchmarks/results/zoo/55f64a285295.jsonl;
keyword_spotter, molnet and ppm-folder in benchmarks/results/fresh, whose twins make the same samples with less Python).
"""
COMPUTE_FIELDS = (
    "forward_ns",
    "backward_ns",
    "optimizer_ns",
    "after_input_ns",
    "after_forward_ns",
    "after_backward_ns",
)


def main_loader(rank: RankAnalysis) -> LoaderFacts | None:
    """The loader that feeds the backward pass (the one with most batches), or None when there is none."""
    feeding = [loader for loader in rank.loaders if loader.feeds_backward]
    candidates = feeding or [loader for loader in rank.loaders if loader.feeds_backward is None]
    return max(candidates, key=lambda loader: loader.batches or 0, default=None)


def waiting_rank(analysis: Analysis) -> RankAnalysis:
    """The rank that waits longest for input: in a synchronous training the others wait for it in turn."""
    return max(analysis.ranks, key=lambda rank: rank.breakdown.share("input_wait"))


def restart_ns(rank: RankAnalysis) -> float:
    """Mean time per step, in ns, that new iterators of a loader with workers cost beyond a usual step's wait.

    A restart is over when the queue is full again: the steps that take the first ``num_workers * prefetch_factor``
    batches count with what they wait longer than later steps do. Zero when the loader has no workers, when the
    workers persist, or when the steady steps saw fewer than two iterators.
    """
    loader = main_loader(rank)
    if loader is None or not loader.num_workers or loader.persistent_workers:
        return 0.0
    iterators, waits = rank.columns["iterators"], rank.columns["input_wait_ns"]
    creations, bursts = rank.columns["iterator_ns"], rank.columns["burst_input_ns"]
    starts = [i for i, count in enumerate(iterators) if count > 0]
    if sum(iterators) < 2:
        return 0.0
    filling = _steps_to_fill(loader, starts, len(waits))
    usual = [waits[i] for i in range(len(waits)) if _is_settled(i, starts, filling)]
    usual_ns = statistics.fmean(usual) if usual else 0.0
    lost_ns = 0.0
    for i, end in zip(starts, [*starts[1:], len(waits)], strict=True):
        longer_ns = sum(waits[j] - usual_ns for j in range(i, min(i + filling, end)))
        # A validation loader starts inside the burst of no-grad forwards; that part is validation's.
        lost_ns += max(0.0, float(creations[i]) + max(0.0, longer_ns) - max(0, bursts[i]))
    return lost_ns / len(iterators)


def restart_slowdown_ns(rank: RankAnalysis) -> float:
    """Mean time per step, in ns, by which computing takes longer in the steps right after the workers were started.

    A fork leaves every page of the parent to be copied at its next write, so that the first steps fault through all
    that they touch, on cores that the new workers use. Zero where `restart_ns` is.
    """
    return aftermath_ns(rank, "iterators", COMPUTE_FIELDS) if restart_ns(rank) > 0 else 0.0


def has_costly_restarts(rank: RankAnalysis) -> bool:
    """Whether worker-restart tells of this rank's restarts; else what they take is an ordinary wait for input."""
    lost_ns = restart_ns(rank) + restart_slowdown_ns(rank)
    return lost_ns > 0 and lost_ns >= rank.step_mean_ns * threshold_ratio(
        rank, judged_fields=("input_wait_ns", "iterator_ns")
    )


def _steps_to_fill(loader: LoaderFacts, starts: Sequence[int], steps_count: int) -> int:
    """Steps after a restart that may wait for a queue that is not full yet; at most half of a pass."""
    batches = (loader.num_workers or 0) * (loader.prefetch_factor or 2)
    passes = [later - earlier for earlier, later in pairwise(starts)] or [steps_count]
    return max(1, min(batches, int(statistics.fmean(passes)) // 2))


def _is_settled(step: int, starts: Sequence[int], filling: int) -> bool:
    """Whether a step lies behind the filling of the queue that came before it (steps before the first one do)."""
    before = bisect_right(starts, step) - 1
    return before < 0 or step - starts[before] >= filling


def loading_work(rank: RankAnalysis, loader: LoaderFacts, wait_ns: float) -> LoadingWork | None:
    """What the batches of a step cost to make; None when neither the loader nor the wait tells."""
    batches = max(1.0, known_mean(rank, "micro_batches") or known_mean(rank, "batches") or 1.0)
    if loader.fetch_ns is not None:
        collate_ns = loader.collate_ns or 0.0
        wall_ns = batches * (loader.fetch_ns + collate_ns)
        fetch_cpu_ns = min(loader.fetch_ns, fetch_work_ns(rank, loader, wait_ns))
        if not loader.num_workers and wait_ns > 0:
            # In the main process the wait itself is the loading; the sampled parts only tell how it divides.
            scale = wait_ns / wall_ns if wall_ns > 0 else 1.0
            return LoadingWork(wall_ns=wait_ns, cpu_ns=min(wait_ns, batches * (fetch_cpu_ns + collate_ns) * scale))
        return LoadingWork(wall_ns=wall_ns, cpu_ns=batches * (fetch_cpu_ns + collate_ns))
    if wait_ns <= 0:
        return None
    # Nothing was sampled inside the loader. Its workers were busy all the time, or there would be no wait.
    wall_ns = wait_ns if not loader.num_workers else loader.num_workers * rank.step_mean_ns
    return LoadingWork(wall_ns=wall_ns, cpu_ns=wall_ns)


def enough_workers(rank: RankAnalysis, loader: LoaderFacts) -> Overlap | None:
    """The fewest workers from which no more is expected of further ones; None where loading was not measured."""
    wait_ns = known_mean(rank, "input_wait_ns") or 0.0
    work, cores = loading_work(rank, loader, wait_ns), cores_per_rank(rank)
    if loader.fetch_ns is None or work is None or cores is None:
        return None
    compute_ns = max(1.0, rank.step_mean_ns - wait_ns)
    busy = min(cores, busy_cores(rank, wait_ns, 0.0 if loader.num_workers else work.cpu_ns))
    batches = max(1.0, known_mean(rank, "micro_batches") or 1.0)
    return best_overlap(compute_ns=compute_ns, work=work, batches=batches, cores=cores, busy=busy)


def most_saved_ratio(rank: RankAnalysis) -> float:
    """Largest share of a step that faster computing can save, 0..1: batches come no sooner than workers make them."""
    loader = main_loader(rank)
    if loader is None or not loader.num_workers:
        return 1.0
    work = loading_work(rank, loader, known_mean(rank, "input_wait_ns") or 0.0)
    if work is None:
        return 1.0
    return max(0.0, 1.0 - work.wall_ns / loader.num_workers / rank.step_mean_ns)


def fetch_work_ns(rank: RankAnalysis, loader: LoaderFacts, wait_ns: float) -> float:
    """Time that fetching a batch needs a core for: its CPU time, freed of what other programs took from it.

    Where the kernel told the time on the run queue, that is in it already.
    """
    fetch_ns = loader.fetch_ns or 0.0
    if loader.fetch_cpu_ns is None:
        return fetch_ns
    if loader.counts_run_queue:
        return min(fetch_ns, loader.fetch_cpu_ns)
    batches = max(1.0, known_mean(rank, "micro_batches") or 1.0)
    in_process_ns = 0.0 if loader.num_workers else batches * (loader.fetch_cpu_ns + (loader.collate_ns or 0.0))
    return min(fetch_ns, loader.fetch_cpu_ns / cpu_availability_ratio(rank, wait_ns, in_process_ns))


def cores_per_rank(rank: RankAnalysis) -> float | None:
    """Cores that one process of this host may count on; None when the number of cores is unknown."""
    return None if rank.cores is None else max(1.0, rank.cores / max(1, rank.local_world_size or 1))


def busy_cores(rank: RankAnalysis, loading_ns: float, loading_cpu_in_process_ns: float) -> float:
    """Cores that the step keeps busy, on average, while it does not load; at least one."""
    known = _cores_used(rank, loading_ns, loading_cpu_in_process_ns)
    return float(rank.torch_threads or 1) if known is None else max(1.0, known)


def taken_cores(rank: RankAnalysis) -> float:
    """Cores that other programs took while this process trained, in the mean; 0 where that is not known.

    What is neither idle nor this process's own belongs to others. Not told where processes of the same training run on
    the same cores: loader workers and other ranks.
    """
    used = _cores_used(rank, 0.0, 0.0)
    alone = (rank.local_world_size or 1) == 1 and not any(loader.num_workers for loader in rank.loaders)
    if rank.idle_cores is None or used is None or not alone:
        return 0.0
    idle, count = rank.idle_cores
    return max(0.0, count - idle - used)


def cpu_availability_ratio(rank: RankAnalysis, loading_ns: float, loading_cpu_in_process_ns: float) -> float:
    """How much of a core a computing thread of this process really got, 0.1..1.

    Where other programs compete for the cores, a thread that never sleeps still shows less CPU time than wall time;
    without this its loading would look like a wait for storage. Ranks that wait for each other and hosts that wait
    for a device sleep for other reasons, and a step that does little but load has no such thread: nothing is concluded
    there.
    """
    computes = rank.step_mean_ns - loading_ns >= LEAST_COMPUTE_RATIO * rank.step_mean_ns
    if rank.world_size > 1 or rank.device_type != "cpu" or not computes:
        return 1.0
    known = _cores_used(rank, loading_ns, loading_cpu_in_process_ns)
    return 1.0 if known is None else min(1.0, max(LEAST_CORE_RATIO, known))


def _cores_used(rank: RankAnalysis, loading_ns: float, loading_cpu_in_process_ns: float) -> float | None:
    wall_ns = rank.step_mean_ns - loading_ns
    cpu_ns = known_mean(rank, "cpu_ns")
    if cpu_ns is None or wall_ns <= 0:
        return None
    return (cpu_ns - loading_cpu_in_process_ns) / wall_ns
