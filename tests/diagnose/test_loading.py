import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.worker_model import LoadingWork, best_overlap, simulate_workers
from hotloop.judge.diagnose.loading import (
    loading_work,
    restart_ns,
    restart_slowdown_ns,
)

from .build_analysis import make_analysis, make_loader

TIMES = st.floats(min_value=1e4, max_value=1e10)


def test_a_step_that_does_little_but_sleep_for_its_batch_says_nothing_of_the_cores_it_got() -> None:
    rank = make_analysis(input_wait=0.98, optimizer=0.0, other=0.0, fields={"cpu_ns": 1.4e6}).lead
    work = loading_work(rank, make_loader(fetch_ns=19.6e6, fetch_cpu_ns=1.2e6), 19.6e6)
    assert work is not None
    assert work.cpu_ns < 2e6


@given(
    TIMES,
    TIMES,
    st.floats(min_value=0, max_value=1),
    st.integers(1, 64),
    st.floats(1, 64),
    st.integers(min_value=1, max_value=16),
)
def test_the_three_forecasts_are_in_order_and_never_beat_the_computation(
    compute_ns: float, wall_ns: float, cpu_ratio: float, cores: int, busy: float, workers: int
) -> None:
    work = LoadingWork(wall_ns=wall_ns, cpu_ns=cpu_ratio * wall_ns)
    step = simulate_workers(
        compute_ns=compute_ns, work=work, batches=1, cores=cores, busy=min(busy, cores), workers=workers
    )
    assert compute_ns <= step.best_ns <= step.mid_ns <= step.worst_ns


def test_waiting_for_storage_hides_behind_the_computation_even_without_a_free_core() -> None:
    work = LoadingWork(wall_ns=20e6, cpu_ns=0.5e6)
    step = best_overlap(compute_ns=20e6, work=work, batches=1, cores=2, busy=2)
    assert step.mid_ns < 22e6


def test_computing_samples_gains_little_when_every_core_is_busy() -> None:
    work = LoadingWork(wall_ns=20e6, cpu_ns=20e6)
    full = best_overlap(compute_ns=20e6, work=work, batches=1, cores=2, busy=2)
    free = best_overlap(compute_ns=20e6, work=work, batches=1, cores=4, busy=2)
    assert full.mid_ns > 34e6
    assert free.mid_ns < 24e6


def test_more_latency_takes_more_workers_than_cores() -> None:
    work = LoadingWork(wall_ns=80e6, cpu_ns=1e6)
    assert best_overlap(compute_ns=10e6, work=work, batches=1, cores=2, busy=1).workers > 4


def test_loading_in_the_main_process_is_the_wait_itself() -> None:
    rank = make_analysis(input_wait=0.5).lead
    work = loading_work(rank, make_loader(fetch_ns=4e6, fetch_cpu_ns=1e6, collate_ns=1e6), 10e6)
    assert work is not None
    assert work.wall_ns == pytest.approx(10e6)
    assert work.cpu_ns == pytest.approx(4e6)


def test_workers_that_make_wait_were_always_busy_when_nothing_else_is_known() -> None:
    rank = make_analysis(input_wait=0.5).lead
    work = loading_work(rank, make_loader(num_workers=3, fetch_ns=None), 10e6)
    assert work is not None
    assert work.wall_ns == pytest.approx(3 * 20e6)


def restarts(**loader: object) -> float:
    starts = [1 if i % 20 == 0 else 0 for i in range(100)]
    rank = make_analysis(
        columns={
            "iterators": starts,
            "iterator_ns": [30_000_000 * s for s in starts],
            "input_wait_ns": [1_000_000 + 9_000_000 * s for s in starts],
        },
        loaders=(make_loader(**({"num_workers": 2} | loader)),),
    ).lead
    return restart_ns(rank)


def test_restarts_cost_the_creation_and_the_longer_first_wait() -> None:
    assert restarts() == pytest.approx((30e6 + 9e6) / 20)


def test_the_step_after_a_fork_computes_slower_by_the_pages_it_copies() -> None:
    starts = [1 if i % 20 == 0 else 0 for i in range(100)]
    rank = make_analysis(
        columns={
            "iterators": starts,
            "iterator_ns": [30_000_000 * s for s in starts],
            "forward_ns": [2_000_000 + 4_000_000 * s for s in starts],
            "optimizer_ns": [500_000 + 5_000_000 * s for s in starts],
        },
        loaders=(make_loader(num_workers=2),),
    ).lead
    assert restart_slowdown_ns(rank) == pytest.approx(9e6 / 20)
    assert restart_ns(rank) == pytest.approx(30e6 / 20)


def test_every_step_that_a_restart_slows_down_counts_and_none_that_only_varies() -> None:
    slower = {0: 20_000_000, 1: 4_000_000}
    starts = [1 if i % 20 == 0 else 0 for i in range(100)]
    rank = make_analysis(
        columns={
            "iterators": starts,
            "iterator_ns": [30_000_000 * s for s in starts],
            "forward_ns": [2_000_000 + slower.get(i % 20, 0) + 300_000 * (i % 3) for i in range(100)],
        },
        loaders=(make_loader(num_workers=2),),
    ).lead
    assert restart_slowdown_ns(rank) == pytest.approx(24e6 / 20, rel=0.05)


def test_persistent_workers_do_not_restart() -> None:
    assert restarts(persistent_workers=True) == 0.0
    assert restarts(num_workers=0) == 0.0
