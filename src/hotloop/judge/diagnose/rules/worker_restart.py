"""worker-restart: DataLoader workers restart for every pass over the data."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Fix, saving_of_removal
from hotloop.core.rules import rule
from hotloop.judge.diagnose.loading import (
    enough_workers,
    has_costly_restarts,
    main_loader,
    restart_ns,
    restart_slowdown_ns,
)
from hotloop.judge.diagnose.measured import (
    format_interval,
    format_share,
    format_time,
    known_count,
    known_mean,
    known_places,
    recurs_unevenly,
    steps_between,
)


@rule("worker-restart", "DataLoader workers restart for every pass over the data", ablation="replay-batches")
def worker_restart(analysis: Analysis) -> Finding | None:
    """## What it does
    Measures what each new iterator of a DataLoader with workers costs: starting the processes, waiting longer than
    usual for the first batches, and computing more slowly in the step right after.

    ## Why it costs
    Without `persistent_workers`, the workers end with the iterator. Each new pass forks or spawns them again, imports
    what they need, copies the data set to them and starts with an empty queue, while the loop waits. After a fork, the
    training process shares its memory pages with the workers: each page is copied at the first write.

    ## How to recognize it
    Several iterators were created, `num_workers` is greater than 0, `persistent_workers` is off, and the steps that
    begin a pass take longer than the others by the reported time. Short epochs and the spawn start method make it
    worse.

    ## What to do
    Set `DataLoader(..., persistent_workers=True)`. For very short epochs, let one pass cover several of them (a sampler
    that repeats), which also saves the wait for the first batch. `enough_workers` in the evidence is the number of
    workers beyond which the cost model expects no further gain: fewer workers start faster.

    ## When it is wrong
    Persistent workers keep the data set as it was when they started. Code that changes the data set between epochs (a
    curriculum, changing augmentation) has to pass the change to the workers in another way. They also keep their
    memory.
    """
    rank = max(analysis.ranks, key=restart_ns)
    loader = main_loader(rank)
    waited_ns, slowdown_ns = restart_ns(rank), restart_slowdown_ns(rank)
    lost_ns = waited_ns + slowdown_ns
    if loader is None or waited_ns <= 0 or not has_costly_restarts(rank):
        return None
    cost_ratio = min(1.0, lost_ns / rank.step_mean_ns)
    iterators = known_count(rank, "iterators")
    # Persistent workers still begin each pass with an empty queue: the first batch has to be made while the loop waits.
    first_batch_ns = iterators * ((loader.fetch_ns or 0.0) + (loader.collate_ns or 0.0))
    start_ns = min(waited_ns, known_mean(rank, "iterator_ns") or 0.0)
    first_batch_ns = min(first_batch_ns, waited_ns - start_ns)
    removed_ratio = (lost_ns - first_batch_ns) / rank.step_mean_ns
    sure_ratio = (waited_ns - first_batch_ns) / rank.step_mean_ns
    each_ns = lost_ns / iterators
    every = steps_between(rank.columns["iterators"]) or 1.0 / iterators
    how_often = format_interval(every, recurs_unevenly(rank.columns["iterators"]))
    enough = enough_workers(rank, loader)
    return Finding(
        title=f"{loader.num_workers} loader worker{'s' * (loader.num_workers != 1)} restart "
        f"{how_often}: {format_time(each_ns)} each time, {format_share(cost_ratio)} of the run",
        phase="input_wait",
        cost_ns=round(lost_ns),
        time_ns={"input_wait": round(waited_ns), "forward": round(slowdown_ns)},
        cost_ratio=cost_ratio,
        saving=saving_of_removal(cost_ratio, removed_ratio, sure_ratio),
        evidence={
            "num_workers": loader.num_workers,
            "persistent_workers": loader.persistent_workers,
            "start_method": loader.start_method,
            "iterators": round(iterators * rank.steady_count),
            "steps_per_iterator": round(every, 1),
            "restart_ns": round(each_ns),
            "slower_first_step_ns": round(slowdown_ns / iterators),
            "iterator_start_ns": None if loader.iterator_start_ns is None else round(loader.iterator_start_ns),
            "enough_workers": None if enough is None else enough.workers,
            "first_wait_ns": None if loader.first_wait_ns is None else round(loader.first_wait_ns),
        },
        where=known_places(loader.where),
        fix=Fix(
            technique="loader-workers",
            # The number of workers is not part of this fault: if it is a fault too, input-bound reports it.
            settings={"persistent_workers": True},
        ),
    )
