"""Hours, failures, money and energy of a whole training, from the time of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random

from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware, Price
from hotloop.core.prediction import CostPrediction, StepPrediction
from hotloop.core.workload import Workload

GPU_HOURS_PER_FAILURE = 50_000.0
"""Unexpected interruptions of Llama 3: 419 in 54 days on 16,384 H100 (arXiv:2407.21783, section 3.3.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often a training is interrupted, and what that costs."""

    gpu_hours_per_failure: float = GPU_HOURS_PER_FAILURE
    """Device hours between two interruptions, over all devices; of spot devices, between two preemptions."""
    checkpoint_s: float = 30.0
    """Training stands still for so long to write one."""
    restart_s: float = 600.0
    """From the interruption to the first step again, without what is computed twice."""

    def __post_init__(self) -> None:
        if self.gpu_hours_per_failure <= 0:
            raise UsageError(f"gpu_hours_per_failure = {self.gpu_hours_per_failure}: give hours above 0")
        for name in ("checkpoint_s", "restart_s"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} = {getattr(self, name)}: give seconds of 0 or more")

    def mtbf_s(self, gpus: int) -> float:
        """Mean time between two interruptions of a training on so many devices."""
        return self.gpu_hours_per_failure / gpus * 3600


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Compute between two checkpoints that wastes least, to first order: sqrt(2 C M) (Young 1974).

    >>> young_interval_s(50, 10_000)
    1000.0
    """
    return sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """The same to higher order (Daly 2006, equation 37); M where a checkpoint takes longer than 2 M.

    >>> round(daly_interval_s(50, 10_000), 1)
    967.1
    """
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    part = checkpoint_s / (2 * mtbf_s)
    return young_interval_s(checkpoint_s, mtbf_s) * (1 + sqrt(part) / 3 + part / 9) - checkpoint_s


def waste_ratio(interval_s: float, checkpoint_s: float, mtbf_s: float, restart_s: float) -> float:
    """Share of wall time that trains nothing: C/T + (T/2 + R)/M, at most 1 (Young 1974).

    >>> waste_ratio(1000, 50, 10_000, 100)
    0.11
    """
    return min(1.0, checkpoint_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s)


def least_waste_ratio(failures: Failures, gpus: int) -> float:
    """At Daly's interval."""
    mtbf_s = failures.mtbf_s(gpus)
    interval_s = daly_interval_s(failures.checkpoint_s, mtbf_s) if failures.checkpoint_s else 1.0
    return waste_ratio(interval_s, failures.checkpoint_s, mtbf_s, failures.restart_s)


def spot_break_even(on_demand: Failures, spot: Failures, gpus: int) -> float:
    """Spot is cheaper where its price is below this share of the on-demand price.

    >>> always = Failures(gpu_hours_per_failure=1e12, checkpoint_s=0, restart_s=0)
    >>> often = Failures(gpu_hours_per_failure=8 * 10_000 / 3600, checkpoint_s=50, restart_s=100)
    >>> round(spot_break_even(always, often, 8), 2)
    0.89
    """
    kept = 1 - least_waste_ratio(on_demand, gpus)
    return (1 - least_waste_ratio(spot, gpus)) / kept if kept else float("inf")


def pick_price(hardware: Hardware, kind: str = "on-demand", provider: str | None = None) -> Price | None:
    """The cheapest known price of this kind, of this provider where one is given; None where none is known."""
    fitting = [p for p in hardware.prices if p.kind == kind and provider in (None, p.provider)]
    return min(fitting, key=lambda price: price.usd_per_hour, default=None)


def predict_cost(
    step: StepPrediction,
    workload: Workload,
    hardware: Hardware,
    tokens: int,
    *,
    failures: Failures | None = None,
    price: Price | None = None,
) -> CostPrediction:
    """Totals of training on so many tokens at the predicted pace; ``price`` of one device's hour.

    Without ``failures``, interruptions come as often as Llama 3's. Money is None where ``price`` is. Raises UsageError
    where interruptions leave no time to train.
    """
    if tokens < 1:
        raise UsageError(f"tokens = {tokens}: give a whole number of 1 or more")
    steps = -(-tokens // workload.tokens_per_step)
    compute_hours = steps * step.mid_ns / 3.6e12
    waste = least_waste_ratio(failures or Failures(), workload.gpus)
    if waste >= 1:
        raise UsageError(
            f"{workload.gpus} devices are interrupted before they have restarted: use fewer, or steadier ones"
        )
    hours = compute_hours / (1 - waste)
    gpu_hours = hours * workload.gpus
    watt = hardware.power_watt
    return CostPrediction(
        tokens=tokens,
        hours=hours,
        compute_hours=compute_hours,
        gpu_hours=gpu_hours,
        usd=None if price is None else gpu_hours * price.usd_per_hour,
        energy_kwh=None if watt is None else gpu_hours * watt / 1000,
        price="unknown"
        if price is None
        else f"{price.usd_per_hour:g} USD an hour, {price.kind}, {price.provider}, {price.day}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedHours:
    """Wall hours of a training over many simulated ones."""

    mean: float
    low: float
    """A tenth takes less."""
    high: float
    """A tenth takes more."""
    interruptions: float
    """Mean."""
    runs: int
    seed: int


def simulate_hours(
    compute_hours: float, gpus: int, failures: Failures, *, seed: int = 0, runs: int = 1000
) -> SimulatedHours:
    """Monte Carlo: exponential times between interruptions, checkpoints at Daly's interval, restart after each.

    Interruptions during a restart start it again. Raises UsageError where a training never ends.
    """
    if least_waste_ratio(failures, gpus) >= 1:
        raise UsageError(f"{gpus} devices are interrupted before they have restarted: use fewer, or steadier ones")
    random = Random(seed)
    mtbf_s, work_s = failures.mtbf_s(gpus), compute_hours * 3600
    interval_s = daly_interval_s(failures.checkpoint_s, mtbf_s) if failures.checkpoint_s else min(60.0, work_s)
    found = sorted(_one_run(random, work_s, mtbf_s, interval_s, failures) for _ in range(runs))
    return SimulatedHours(
        mean=sum(hours for hours, _ in found) / runs,
        low=found[runs // 10][0],
        high=found[runs - 1 - runs // 10][0],
        interruptions=sum(count for _, count in found) / runs,
        runs=runs,
        seed=seed,
    )


def _one_run(random: Random, work_s: float, mtbf_s: float, interval_s: float, failures: Failures) -> tuple[float, int]:
    wall_s, done_s, count = 0.0, 0.0, 0
    while True:
        until_s = random.expovariate(1 / mtbf_s)
        left_s = work_s - done_s
        # The last stretch needs no checkpoint after it.
        saves = max(0, -(-left_s // interval_s) - 1)
        needed_s = left_s + saves * failures.checkpoint_s
        if until_s >= needed_s:
            return (wall_s + needed_s) / 3600, count
        done_s += until_s // (interval_s + failures.checkpoint_s) * interval_s
        wall_s += until_s
        count += 1
        while (until_s := random.expovariate(1 / mtbf_s)) < failures.restart_s:
            wall_s += until_s
            count += 1
        wall_s += failures.restart_s


def jobs_per_gpu(memory_bytes: float, capacity_bytes: float, utilization_ratio: float) -> int:
    """Jobs that time-slice one device and lose nothing: there is memory for all, and time for what they use of it.

    >>> jobs_per_gpu(15e9, 80e9, 0.3), jobs_per_gpu(15e9, 80e9, 0.05), jobs_per_gpu(90e9, 80e9, 0.1)
    (3, 5, 0)
    """
    if memory_bytes <= 0 or not 0 < utilization_ratio <= 1:
        raise UsageError(
            f"{memory_bytes:g} bytes at a utilisation of {utilization_ratio:g}: give bytes above 0 and a share up to 1"
        )
    return min(int(capacity_bytes // memory_bytes), int(1 / utilization_ratio + 1e-9))


def cheapest_within(costs: Sequence[CostPrediction], hours: float) -> CostPrediction | None:
    """The cheapest that ends in time; None where none does or none has a price."""
    fitting = [cost for cost in costs if cost.usd is not None and cost.hours <= hours]
    return min(fitting, key=lambda cost: cost.usd or 0.0, default=None)
