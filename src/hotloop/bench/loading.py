"""The time of a loader's batches -> what they would cost a recorded step; and the numbers of workers to try."""

from __future__ import annotations

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
