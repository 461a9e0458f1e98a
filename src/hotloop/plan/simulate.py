"""Monte Carlo of a training that is interrupted: wall hours of many simulated ones, all at once."""

from __future__ import annotations

import numpy as np

from hotloop.core.prediction import CostPrediction, SimulatedHours


def simulate_hours(cost: CostPrediction, *, seed: int = 0, runs: int = 1000) -> SimulatedHours:
    """Simulated wall hours of the training that ``cost`` is of.

    Times between interruptions are exponential with ``cost.mtbf_s``; each loses the compute since the last checkpoint
    and costs a restart, which may be interrupted too. A checkpoint follows each interval, also the last.
    """
    assert cost.mtbf_s is not None
    assert cost.restart_s is not None
    assert cost.counted_stall_s is not None
    random = np.random.default_rng(seed)
    work_s, stall_s = cost.compute_hours * 3600, cost.counted_stall_s
    # Free checkpoints are written all the time; a thousandth of the training stands for that.
    interval_s = min(work_s, cost.interval_s if cost.interval_s is not None else work_s / 1000)
    intervals = np.ceil(work_s / interval_s - 1e-9)
    last_s = work_s - (intervals - 1) * interval_s
    wall_s, counts, done = np.zeros(runs), np.zeros(runs), np.zeros(runs)
    alive = np.arange(runs)
    while alive.size:
        until_s = random.exponential(cost.mtbf_s, alive.size)
        needed_s = (intervals - done[alive] - 1) * (interval_s + stall_s) + last_s + stall_s
        ends = until_s >= needed_s
        wall_s[alive] += np.where(ends, needed_s, until_s)
        done[alive] += until_s // (interval_s + stall_s)
        alive = alive[~ends]
        counts[alive] += 1
        restarting = alive
        while restarting.size:
            until_s = random.exponential(cost.mtbf_s, restarting.size)
            wall_s[restarting] += np.minimum(until_s, cost.restart_s)
            restarting = restarting[until_s < cost.restart_s]
            counts[restarting] += 1
    hours = wall_s / 3600
    low, high = np.quantile(hours, (0.1, 0.9))
    return SimulatedHours(
        mean_hours=float(hours.mean()),
        standard_error_hours=float(hours.std(ddof=1) / np.sqrt(runs)) if runs > 1 else None,
        low_hours=float(low),
        high_hours=float(high),
        interruptions_count=float(counts.mean()),
        usd=None if cost.usd is None else float(hours.mean() * cost.usd / cost.hours),
        usd_high=None if cost.usd is None else float(high * cost.usd / cost.hours),
        runs=runs,
        seed=seed,
    )
