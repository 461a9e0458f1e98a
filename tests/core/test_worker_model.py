"""The model of loader workers: what it must not promise, whatever was measured."""

from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.worker_model import (
    BatchCost,
    LoadingWork,
    best_overlap,
    forecast_batch_ns,
    most_workers,
)

TIMES = st.floats(min_value=0, max_value=1e10)


@given(TIMES, TIMES, TIMES, TIMES, st.floats(1, 3), st.integers(1, 64), st.integers(0, 64))
def test_more_workers_never_beat_the_cores_or_the_main_process(
    fetch_ns: float, cpu_ns: float, send_ns: float, receive_ns: float, crowding: float, cores: int, workers: int
) -> None:
    cost = BatchCost(
        fetch_ns=fetch_ns,
        fetch_cpu_ns=min(cpu_ns, fetch_ns),
        collate_ns=0.0,
        send_ns=send_ns,
        receive_ns=receive_ns,
        crowding_ratio=crowding,
    )
    batch_ns = forecast_batch_ns(cost, workers, cores)
    assert batch_ns >= cost.work.cpu_ns / cores * 0.999
    if workers:
        assert batch_ns >= receive_ns
        assert batch_ns >= cost.work.wall_ns / workers * 0.999
    else:
        assert batch_ns == cost.work.wall_ns


def test_computing_scales_to_the_cores_and_waiting_beyond_them() -> None:
    computing = BatchCost(fetch_ns=40e6, fetch_cpu_ns=40e6, collate_ns=0.0)
    waiting = BatchCost(fetch_ns=40e6, fetch_cpu_ns=0.0, collate_ns=0.0)
    assert [forecast_batch_ns(computing, count, 2) / 1e6 for count in (0, 1, 2, 4)] == [40, 40, 20, 20]
    assert [forecast_batch_ns(waiting, count, 2) / 1e6 for count in (0, 1, 2, 4)] == [40, 40, 20, 10]


def test_memory_bounds_the_workers() -> None:
    work = LoadingWork(wall_ns=9e6, cpu_ns=1e6)
    assert most_workers(work, 2.0) == 16
    assert most_workers(work, 2.0, free_bytes=4e9, worker_bytes=1e9) == 4
    assert most_workers(work, 2.0, free_bytes=1e8, worker_bytes=1e9) == 1
    assert best_overlap(compute_ns=1e6, work=work, batches=1, cores=2, busy=1, most=3).workers == 3
