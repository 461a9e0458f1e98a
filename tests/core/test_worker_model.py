"""The model of loader workers: what it must not promise, whatever was measured."""

from hotloop.core.worker_model import (
    LoadingWork,
    best_overlap,
    most_workers,
)


def test_memory_bounds_the_workers() -> None:
    work = LoadingWork(wall_ns=9e6, cpu_ns=1e6)
    assert most_workers(work, 2.0) == 16
    assert most_workers(work, 2.0, free_bytes=4e9, worker_bytes=1e9) == 4
    assert most_workers(work, 2.0, free_bytes=1e8, worker_bytes=1e9) == 1
    assert best_overlap(compute_ns=1e6, work=work, batches=1, cores=2, busy=1, most=3).workers == 3
