"""A training -> what a usual step of it does, without what comes only now and then."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from hotloop.core.analysis import RankAnalysis
from hotloop.core.measurement import StepTimes
from hotloop.core.recording import GAP_FIELDS

from .trainings import Training

MOST_FORWARDS_PER_BACKWARD = 4.0
MOST_OF_ONE_BATCH = 1.5
"""More micro-batches a step than this are accumulation."""
MEMORY_RATIO = 0.8
"""Part of the host's memory that a larger batch may fill."""


def step_times(training: Training) -> StepTimes:
    """What a probe is measured against: the means of the process that leads."""
    rank = training.lead.rank
    mean: Mapping[str, float] = rank.mean
    breakdown = rank.breakdown
    exposed: float | None = None
    if rank.ddp is not None and rank.ddp.exposed_comm_ns is not None:
        exposed = rank.ddp.exposed_comm_ns * max(1.0, mean["backwards"])
    rare_forward_ns, rare_other_ns = _rare_ns(rank)
    return StepTimes(
        step_ns=rank.step_mean_ns,
        forward_ns=breakdown.mean_ns("forward") - rare_forward_ns,
        backward_ns=breakdown.mean_ns("backward"),
        optimizer_ns=breakdown.mean_ns("optimizer"),
        input_ns=breakdown.mean_ns("input_wait") + breakdown.mean_ns("h2d"),
        other_ns=breakdown.mean_ns("other") - rare_other_ns,
        apart_ns=breakdown.mean_ns("validation") + breakdown.mean_ns("checkpoint") + rare_forward_ns + rare_other_ns,
        exposed_comm_ns=exposed,
        micro_batches=max(1.0, mean["micro_batches"] or mean["backwards"]),
        noise_ratio=rank.step_noise_ratio,
        largest_factor=_largest_factor(rank),
        batch_size=_batch_size(training),
    )


def _largest_factor(rank: RankAnalysis) -> float:
    """So many times the batch that all of the process's memory, grown with it, fits; joined micro-batches at most."""
    micro_batches = max(rank.mean["micro_batches"], rank.mean["backwards"])
    most = micro_batches if micro_batches > MOST_OF_ONE_BATCH else math.inf
    if not rank.memory_total_bytes or not rank.memory_peak_bytes:
        return min(most, 2.0)
    ranks = max(1, rank.local_world_size or 1)
    return min(most, MEMORY_RATIO * rank.memory_total_bytes / ranks / rank.memory_peak_bytes)


def _rare_ns(rank: RankAnalysis) -> tuple[float, float]:
    """Mean ns per step of forwards without gradients, and of time between the phases, that a usual step is without.

    A rollout that is played between updates, a plot, a pass that fills a buffer: it comes once in so many samples, and
    no larger batch makes it cheaper. What counts as validation is not in it.
    """
    validation_ns = rank.breakdown.mean_ns("validation")
    columns = [rank.columns[name] for name in GAP_FIELDS if rank.columns.get(name)]
    gaps_ns = [sum(values) for values in zip(*columns, strict=True)]
    forward_ns = _beyond_median_ns(rank.columns.get("nograd_ns", ()))
    other_ns = _beyond_median_ns(gaps_ns)
    in_forward_ns = min(forward_ns, validation_ns)
    forward_ns -= in_forward_ns
    other_ns -= min(other_ns, validation_ns - in_forward_ns)
    return min(forward_ns, rank.breakdown.mean_ns("forward")), min(other_ns, rank.breakdown.mean_ns("other"))


def _beyond_median_ns(column: Sequence[int]) -> float:
    known = [value for value in column if value >= 0]
    return max(0.0, statistics.fmean(known) - statistics.median(known)) if known else 0.0


def _batch_size(training: Training) -> int | None:
    """Samples of one backward; None when they differ, or when many forwards lead to one backward (an episode of
    reinforcement learning, a recurrent cell called by hand), whose inputs are no batches."""
    rank = training.lead.rank
    if not rank.samples_per_step or training.lead.units.samples_vary:
        return None
    backwards = max(1.0, rank.mean["micro_batches"], rank.mean["backwards"])
    if rank.mean["forwards"] > MOST_FORWARDS_PER_BACKWARD * backwards:
        return None
    samples = rank.samples_per_step / backwards
    return round(samples) if abs(samples - round(samples)) <= 0.02 * samples else None
