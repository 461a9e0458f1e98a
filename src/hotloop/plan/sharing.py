"""Jobs that share one device by turns: how many have room, and how many have time, each beside the others."""

from __future__ import annotations

from hotloop.core.errors import UsageError
from hotloop.core.hardware import Price
from hotloop.core.prediction import SharingPrediction


def predict_sharing(
    memory_bytes: float, capacity_bytes: float, utilization_ratio: float | None, price: Price | None = None
) -> SharingPrediction:
    """Of equal jobs that each hold ``memory_bytes`` and keep the device busy for ``utilization_ratio`` of their time.

    Where their shares of time add up to no more than 1 the device has time for all. Beyond, each takes as many times as
    long as they add up to. What switching between processes costs is in neither. Raises UsageError.

    >>> found = predict_sharing(15e9, 80e9, 0.3)
    >>> found.jobs, found.unslowed_jobs, found.slowdown_ratio
    (5, 3, 1.5)
    >>> predict_sharing(15e9, 80e9, None).slowdown_ratio is None
    True
    """
    if not 0 < memory_bytes < float("inf"):
        raise UsageError(f"sharing.memory_bytes = {memory_bytes:g}: give the bytes that one job holds, above 0")
    if utilization_ratio is not None and not 0 < utilization_ratio <= 1:
        raise UsageError(f"sharing.utilization_ratio = {utilization_ratio:g}: give a share above 0 and up to 1")
    jobs = int(capacity_bytes // memory_bytes)
    unslowed = None if utilization_ratio is None else min(jobs, int(1 / utilization_ratio + 1e-9))
    return SharingPrediction(
        jobs=jobs,
        unslowed_jobs=unslowed,
        slowdown_ratio=None if utilization_ratio is None or not jobs else max(1.0, jobs * utilization_ratio),
        memory_bytes=round(memory_bytes),
        utilization_ratio=utilization_ratio,
        usd_per_job_hour=None if price is None or not jobs else price.usd_per_hour / (unslowed or jobs),
    )
