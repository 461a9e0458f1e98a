"""The control of workers on made-up machines: it ends where an exhaustive trial would, and leaves what does not pay."""

from collections.abc import Callable

import pytest

from hotloop.core.worker_model import BatchCost, forecast_batch_ns
from hotloop.train.fetch_pool import MakeCost
from hotloop.train.worker_control import WorkerControl


class Machine:
    """A loop on a made-up machine; ``wait_s`` gives what the loop waits for a batch by number of workers."""

    def __init__(self, compute_s: float, wall_s: float, cpu_s: float, wait_s: Callable[[int], float]) -> None:
        self.now_s = 0.0
        self.compute_s = compute_s
        self.wait_s = wait_s
        self.cost = MakeCost(fetch_ns=round(wall_s * 1e9), collate_ns=0, cpu_ns=round(cpu_s * 1e9), delay_ns=0)

    def clock(self) -> float:
        return self.now_s

    def run(self, control: WorkerControl, duration_s: float, workers: int = 0) -> tuple[int, float]:
        """The last number of workers, and the mean seconds of a batch."""
        begin_s, batches = self.now_s, 0
        while self.now_s - begin_s < duration_s:
            wait_s = self.wait_s(workers)
            self.now_s += wait_s + self.compute_s
            batches += 1
            control.note(wait_s=wait_s, compute_s=self.compute_s, compute_cpu_s=self.compute_s, cost=self.cost)
            workers = control.choose(workers)
        return workers, (self.now_s - begin_s) / batches


def overlapped(wall_s: float, compute_s: float, cores: float, cpu_s: float) -> Callable[[int], float]:
    cost = BatchCost(fetch_ns=wall_s * 1e9, fetch_cpu_ns=cpu_s * 1e9, collate_ns=0.0)

    def wait_s(workers: int) -> float:
        period_s = forecast_batch_ns(cost, workers, cores) / 1e9
        return period_s if workers == 0 else max(0.0, period_s - compute_s)

    return wait_s


def make_machine(wall_s: float, cpu_s: float, compute_s: float, cores: float) -> Machine:
    return Machine(compute_s, wall_s, cpu_s, overlapped(wall_s, compute_s, cores, cpu_s))


def test_waiting_for_storage_takes_as_many_as_hide_it() -> None:
    machine = make_machine(wall_s=0.08, cpu_s=0.001, compute_s=0.01, cores=2)
    control = WorkerControl(most=16, cores=2, clock=machine.clock)
    workers, _ = machine.run(control, 120)
    assert 8 <= workers <= 10
    assert machine.run(control, 60, workers)[1] == pytest.approx(0.01, rel=0.1)


def test_computing_samples_takes_the_cores_and_no_more() -> None:
    machine = make_machine(wall_s=0.04, cpu_s=0.04, compute_s=0.002, cores=4)
    control = WorkerControl(most=16, cores=4, clock=machine.clock)
    workers, _ = machine.run(control, 60)
    assert workers == 4
    assert max(change.after for change in control.changes) <= 4


def test_it_goes_back_to_none_where_workers_only_hurt() -> None:
    machine = Machine(0.02, 0.002, 0.002, lambda workers: 0.002 if workers == 0 else 0.006 * workers)
    control = WorkerControl(most=16, cores=2, clock=machine.clock)
    workers, mean_s = machine.run(control, 250)
    assert workers == 0
    assert mean_s < 0.022 * 1.05  # trying included


def test_too_many_collapse_and_are_left() -> None:
    """Throughput falls beyond four workers, as it does where they crowd each other out."""
    machine = Machine(0.0, 0.05, 0.005, lambda workers: 0.05 / max(1, workers) * (1 + 0.5 * max(0, workers - 4)))
    control = WorkerControl(most=16, cores=2, clock=machine.clock)
    workers, _ = machine.run(control, 120)
    assert workers == 4
    tried = [one.why for one in control.changes if one.after < one.before and "waited" in one.why]
    assert tried
    assert all("fewer may" in why for why in tried)


def test_fewer_workers_do_where_the_loop_does_not_wait() -> None:
    machine = make_machine(wall_s=0.03, cpu_s=0.001, compute_s=0.04, cores=2)
    control = WorkerControl(most=16, cores=2, clock=machine.clock)
    workers, mean_s = machine.run(control, 120)
    assert workers == 1
    assert mean_s < 0.042


def test_it_searches_again_when_the_training_changes() -> None:
    machine = make_machine(wall_s=0.08, cpu_s=0.001, compute_s=0.08, cores=2)
    control = WorkerControl(most=16, cores=2, clock=machine.clock)
    workers, _ = machine.run(control, 60)
    assert workers <= 2
    machine.compute_s = 0.01
    machine.wait_s = overlapped(0.08, 0.01, 2, 0.001)
    workers, _ = machine.run(control, 60, workers)
    assert workers >= 8


def test_memory_takes_workers_away() -> None:
    machine = make_machine(wall_s=0.08, cpu_s=0.001, compute_s=0.01, cores=2)
    control = WorkerControl(most=16, cores=2, clock=machine.clock)
    workers, _ = machine.run(control, 60)
    for _ in range(200):
        control.note(wait_s=0.0, compute_s=0.05, compute_cpu_s=0.05, cost=machine.cost)
        machine.now_s += 0.05
        workers = control.choose(workers, most=2)
    assert workers <= 2
    assert any(change.why == "memory is short" for change in control.changes)


def test_at_most_none_is_none() -> None:
    machine = make_machine(wall_s=0.08, cpu_s=0.08, compute_s=0.01, cores=2)
    assert machine.run(WorkerControl(most=0, cores=2, clock=machine.clock), 30)[0] == 0


def test_other_programs_keep_the_cores_that_they_use() -> None:
    """A thread that was ready got half of a core: of four, two are left for loading."""
    machine = make_machine(wall_s=0.04, cpu_s=0.04, compute_s=0.002, cores=4)
    machine.cost = MakeCost(fetch_ns=80_000_000, collate_ns=0, cpu_ns=40_000_000, delay_ns=40_000_000)
    control = WorkerControl(most=16, cores=4, clock=machine.clock)
    workers, _ = machine.run(control, 60)
    assert workers == 2
