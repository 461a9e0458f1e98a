"""A recorded launch -> what it says of the speed of its ranks; and what a loader's batches would cost its step."""

from __future__ import annotations

from hotloop.core.analysis import RankAnalysis
from hotloop.core.benchmarks import ScalingRun
from hotloop.core.errors import HotloopError
from hotloop.core.link_fit import usual_latency_ns

from .run_changes import count_units, join_training
from .trainings import Training


def measure_ranks(training: Training, ranks_count: int, *, is_synced: bool) -> ScalingRun:
    """Time, work and exposed communication of a step. Raises HotloopError when another number of ranks trained."""
    ranks, unit = training.analysis.ranks, training.analysis.unit
    if len(ranks) != ranks_count:
        raise HotloopError(
            f"{len(ranks)} processes trained, but {ranks_count} were started; check that the script uses "
            "torchrun's environment"
        )
    joined = join_training(training)
    exposed = [
        rank.ddp.exposed_comm_ns * max(1.0, rank.mean["backwards"])
        for rank in ranks
        if rank.ddp is not None and rank.ddp.exposed_comm_ns is not None
    ]
    return ScalingRun(
        ranks=ranks_count,
        step_ns=int(joined.parts_ns.sum()) / (joined.steps_count * joined.ranks_count),
        unit=unit,
        units_per_step=count_units(training, unit) if unit != "step" else None,
        exposed_ns=sum(exposed) / len(exposed) if len(exposed) == ranks_count else None,
        threads=training.lead.rank.torch_threads,
        latency_ns=_latency_ns(training.lead.rank) if ranks_count > 1 else 0.0,
        is_synced=is_synced,
        has_ddp=all(rank.ddp is not None for rank in ranks),
    )


def _latency_ns(rank: RankAnalysis) -> float | None:
    if rank.ddp is None or not rank.ddp.bucket_sizes:
        return None
    return usual_latency_ns(rank.ddp.backend) * len(rank.ddp.bucket_sizes) * max(1.0, rank.mean["backwards"])


def measure_compute_ns(training: Training) -> float:
    """ns per batch that the lead process's step takes beside waiting for it."""
    return measure_step_ns(training) / max(1.0, training.lead.rank.mean["batches"])


def measure_step_ns(training: Training) -> float:
    """Mean step of the lead process without its wait for batches."""
    rank = training.lead.rank
    return rank.step_mean_ns - rank.breakdown.mean_ns("input_wait")
