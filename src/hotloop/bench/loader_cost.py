"""The time of a loader's batches -> what they would cost a recorded step; and the numbers of workers to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.core.worker_model import BatchCost, forecast_batch_ns

PARTS = ("fetch_ns", "fetch_cpu_ns", "collate_ns", "send_ns", "receive_ns", "start_ns", "crowding_ratio")
WORKERS = (0, 1, 2, 4, 8, 16, 32)


def choose_workers(cores_count: int) -> list[int]:
    """Those of WORKERS for which there are cores."""
    return [count for count in WORKERS if count <= cores_count]


def wait_share(batch_ns: float | None, compute_ns: float, *, workers: int) -> float | None:
    """Share of a step that waits when a batch takes ``batch_ns`` to come and everything else ``compute_ns``.

    Workers load while the step computes; without them the step loads by itself.
    """
    if batch_ns is None:
        return None
    if workers == 0:
        return batch_ns / (batch_ns + compute_ns)
    return max(0.0, batch_ns - compute_ns) / max(batch_ns, compute_ns)


def cost_of(measured: Mapping[str, Any]) -> BatchCost:
    """The parts as the probe measured them; a part that it could not measure counts nothing."""
    return BatchCost(**{name: measured[name] for name in PARTS if measured[name] is not None})


def add_forecasts(rows: Sequence[dict[str, Any]], cost: BatchCost, cores: float) -> None:
    """Write beside each measured row what the model forecasts from the parts alone, and by how much it is off."""
    for row in rows:
        forecast_ns = forecast_batch_ns(cost, row["workers"], cores)
        row["forecast_batches_per_s"] = 1e9 / forecast_ns if forecast_ns > 0 else None
        known = row["batches_per_s"] is not None and forecast_ns > 0
        row["forecast_off_ratio"] = 1e9 / forecast_ns / row["batches_per_s"] - 1.0 if known else None
