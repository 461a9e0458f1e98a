"""Analysis -> what a technique would save, from what the run itself measured."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Saving, saving_within
from hotloop.core.worker_model import LoadingWork, found_ratio, simulate_workers


def forecast_removal(analysis: Analysis, removed_ns: float, *, is_hidden: bool = False) -> Saving | None:
    """The saving of a step when this many measured ns of the host's time are removed.

    ``is_hidden``: the device may be at work meanwhile, so that nothing may come of it. Otherwise the low end is what is
    measured less twice the run's own noise.
    """
    rank = analysis.lead
    if removed_ns <= 0 or rank.step_mean_ns <= 0:
        return None
    share = min(1.0, removed_ns / rank.step_mean_ns)
    low = 0.0 if is_hidden else share - 2 * rank.step_noise_ratio
    return saving_within(share, low, share if not is_hidden else share / 2, share, Basis.MEASURED)


def forecast_workers(analysis: Analysis, workers: int) -> Saving | None:
    """The saving of worker processes over loading in the training process, from the measured times of a batch.

    Loading then overlaps with the step, in ``workers`` processes at once (core/worker_model.py). None where it is not
    measured, or where workers load already.
    """
    rank = analysis.lead
    loaders = [one for one in rank.loaders if one.feeds_backward]
    if len(loaders) != 1 or loaders[0].num_workers != 0 or loaders[0].fetch_ns is None:
        return None
    loader, step_ns, wait_ns, cpu_ns = loaders[0], rank.step_mean_ns, rank.mean["input_wait_ns"], rank.mean["cpu_ns"]
    batches = rank.mean["micro_batches"]
    cores = (rank.cores or 0) / max(1, rank.local_world_size or 1)
    if min(wait_ns, cpu_ns, batches) <= 0 or cores <= 0 or workers < 1 or loader.fetch_ns is None:
        return None
    fetch_cpu_ns = loader.fetch_ns if loader.fetch_cpu_ns is None else min(loader.fetch_ns, loader.fetch_cpu_ns)
    collate_ns = loader.collate_ns or 0.0
    work = LoadingWork(wall_ns=batches * (loader.fetch_ns + collate_ns), cpu_ns=batches * (fetch_cpu_ns + collate_ns))
    compute_ns = max(1.0, step_ns - wait_ns)
    busy = min(cores, max(1.0, (cpu_ns - work.cpu_ns) / compute_ns))
    step = simulate_workers(compute_ns=compute_ns, work=work, batches=batches, cores=cores, busy=busy, workers=workers)
    low, mid, high = (1.0 - one / step_ns for one in (step.worst_ns, step.mid_ns, step.best_ns))
    return saving_within(min(1.0, wait_ns / step_ns), low, mid, high, Basis.SIMULATED)


KEPT_LOW_RATIO, KEPT_MID_RATIO = 0.5, 0.75
"""Share of the time to make samples that is saved where they are copied instead (as for samples prepared ahead,
hotloop/judge/diagnose/loading.py: 0.73 to 1.09 of it was saved)."""


def forecast_kept_samples(analysis: Analysis) -> Saving | None:
    """The saving of samples that are read once and kept, over the epochs of this run: the first one reads them.

    None where samples must not be kept (drawn at random, an iterable dataset) or where the time of reading them, the
    epochs or the draws are not known.
    """
    rank = analysis.lead
    loaders = [one for one in rank.loaders if one.feeds_backward]
    if len(loaders) != 1:
        return None
    loader, wait_ns = loaders[0], rank.mean["input_wait_ns"]
    if loader.iterable or loader.draws_random is not False or not loader.fetch_ns or not loader.length:
        return None
    if wait_ns <= 0 or not loader.batches or rank.step_mean_ns <= 0:
        return None
    fetch_ns = wait_ns * loader.fetch_ns / (loader.fetch_ns + (loader.collate_ns or 0.0))
    won = fetch_ns / rank.step_mean_ns * found_ratio(loader.batches / loader.length, max(1, rank.world_size))
    return saving_within(min(1.0, won), KEPT_LOW_RATIO * won, KEPT_MID_RATIO * won, won, Basis.SIMULATED)
