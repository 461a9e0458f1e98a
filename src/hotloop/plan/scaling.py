"""Step time over GPU counts: the same global batch on more devices (strong), or the same work for each (weak)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware
from hotloop.core.prediction import StepPrediction
from hotloop.core.workload import Workload
from hotloop.plan.efficiency import Efficiency
from hotloop.plan.time import predict_step


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """One GPU count of a curve."""

    gpus: int
    global_batch: int
    step: StepPrediction
    tokens_per_s: float
    """Of all devices."""
    efficiency_ratio: float
    """Tokens a second a device, over those at the curve's first count."""


def scaling_curve(
    workload: Workload,
    hardware: Hardware,
    counts: Sequence[int],
    *,
    weak: bool = True,
    efficiency: Efficiency | None = None,
) -> list[ScalingPoint]:
    """The curve over the counts that the run's tensor, pipeline and context ranks divide, ascending.

    Strong scaling leaves out counts at which the global batch has no whole micro-batch for each rank. Raises UsageError
    where no count is left.
    """
    points: list[ScalingPoint] = []
    run = workload.run
    for gpus in sorted(set(counts)):
        if gpus < 1 or gpus % run.model_ranks:
            continue
        per_step = gpus // run.model_ranks * run.micro_batch
        batch = per_step * workload.micro_batches if weak else run.global_batch
        if batch % per_step:
            continue
        try:
            grown = replace(workload, gpus=gpus, run=replace(run, global_batch=batch))
        except UsageError:
            # Expert parallelism needs ranks that this count does not have.
            continue
        step = predict_step(grown, hardware, efficiency)
        first = points[0].step.tokens_per_s_per_gpu if points else step.tokens_per_s_per_gpu
        points.append(
            ScalingPoint(
                gpus=gpus,
                global_batch=batch,
                step=step,
                tokens_per_s=step.tokens_per_s_per_gpu * gpus,
                efficiency_ratio=step.tokens_per_s_per_gpu / first,
            )
        )
    if not points:
        raise UsageError(
            f"no GPU count of {', '.join(map(str, counts))} fits tp x pp x cp = {run.model_ranks} and "
            f"run.global_batch = {run.global_batch}: choose multiples of {run.model_ranks}"
        )
    return points
