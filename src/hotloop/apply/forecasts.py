"""Analysis -> what a technique would win, from what the run itself measured."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Saving, saving_within


def forecast_removal(analysis: Analysis, removed_ns: float, *, is_hidden: bool = False) -> Saving | None:
    """What a step wins when so many measured ns of the host's time are left out.

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
    """What worker processes win over loading in the training process, from the measured times of a batch.

    Loading then happens beside the step, by ``workers`` at once; the step cannot be shorter than its own work, than the
    loading of a worker's share, nor than all CPU time on the cores that there are. None where it is not measured, or
    where workers load already.
    """
    rank = analysis.lead
    loaders = [one for one in rank.loaders if one.feeds_backward]
    if len(loaders) != 1 or loaders[0].num_workers != 0 or loaders[0].fetch_ns is None:
        return None
    step_ns, wait_ns, cpu_ns = rank.step_mean_ns, rank.mean["input_wait_ns"], rank.mean["cpu_ns"]
    batches = rank.mean["micro_batches"]
    cores = (rank.cores or 0) / max(1, rank.local_world_size or 1)
    if min(wait_ns, cpu_ns, batches) <= 0 or cores <= 0 or workers < 1:
        return None
    load_ns = batches * (loaders[0].fetch_ns + (loaders[0].collate_ns or 0.0))
    on_cores_ns = cpu_ns / cores
    rest_ns = max(0.0, step_ns - wait_ns)

    def saving(loading_ns: float, least_ns: float) -> float:
        return 1.0 - max(rest_ns, loading_ns, least_ns) / step_ns

    cost = min(1.0, wait_ns / step_ns)
    # High: as if cores were never short. Low: one worker fewer, as if the main process lost a core to them.
    high = saving(load_ns / workers, 0.0)
    mid = saving(load_ns / workers, on_cores_ns)
    low = saving(load_ns / max(1, workers - 1), cpu_ns / max(1.0, cores - 1))
    return saving_within(cost, low, mid, high, Basis.SIMULATED)
