"""The fixed piece of work between a trial's steps: when it is timed, what it leaves alone, and whose time it is not."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.agent.observe import pace as module
from hotloop.agent.observe.guard import GUARD
from hotloop.agent.observe.pace import FIRST_READINGS, Pace
from hotloop.agent.replay.recorder import FORWARD, OPTIMIZER, Recorder
from hotloop.core.recording import FIELD, TIME_FIELDS
from tests.planted import failing


class Bench:
    """A recorder whose clock only moves when told, and the pace watch on its rows."""

    def __init__(self) -> None:
        self.now_ns = 1_000
        self.recorder = Recorder(lambda: self.now_ns)
        self.pace = Pace()
        self.rows: list[list[int]] = []
        self.recorder.emit = lambda row: self.rows.append(list(row))
        self.recorder.on_row = lambda row: self.pace(self, row)

    def step(self, duration_ns: int) -> None:
        self.recorder.enter(FORWARD)
        self.now_ns += duration_ns
        self.recorder.leave()
        if self.rows:  # a backward before the first step would close a row of its own
            self.recorder.backward_ended(False)
        self.recorder.optimizer_began()
        self.recorder.optimizer_ended(1, 0)


def test_its_time_belongs_to_no_step(monkeypatch) -> None:
    bench = Bench()

    def work(one: torch.Tensor, out: torch.Tensor) -> int:
        bench.now_ns += 300
        return 300

    monkeypatch.setattr(module, "time_work", work)
    for _ in range(4):
        bench.step(10_000)
    assert bench.pace.readings == [(1, 300), (2, 300), (3, 300)]
    for row in bench.rows:
        assert row[FIELD["end_ns"]] - row[FIELD["start_ns"]] == sum(row[FIELD[name]] for name in TIME_FIELDS) == 10_000
    starts = [row[FIELD["start_ns"]] for row in bench.rows]
    assert [b - a for a, b in pairwise(starts)] == [10_300] * 3
    assert bench.rows[0][FIELD["optimizer_ns"]] == 0
    assert OPTIMIZER not in bench.recorder.stack


def test_beside_short_steps_it_is_done_after_some_of_them_only(monkeypatch) -> None:
    bench = Bench()
    monkeypatch.setattr(module, "time_work", lambda one, out: 300)
    for _ in range(200):
        bench.step(1_000)  # 5 % of 1,000 ns are 50: after every sixth
    readings = bench.pace.readings
    assert len(readings) == FIRST_READINGS + sum((row + 1) % 6 == 0 for row in range(readings[4][0] + 1, 200))
    assert all((row + 1) % 6 == 0 for row, _ in readings[FIRST_READINGS:])


def test_the_real_work_changes_nothing_that_training_reads() -> None:
    bench = Bench()
    before = torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            bench.step(10_000_000)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.is_grad_enabled()
    assert len(bench.pace.readings) == 2
    assert all(ns > 0 for _, ns in bench.pace.readings)


def test_a_mode_of_the_script_sees_nothing_of_it() -> None:
    seen: list[object] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    bench = Bench()
    with Mode():
        for _ in range(5):
            bench.step(10_000_000)
    assert seen == []
    assert bench.pace.readings == []
    assert len(bench.rows) == 5


def test_what_fails_is_recorded_and_not_tried_again(monkeypatch) -> None:
    bench = Bench()
    before = dict(GUARD.failures)

    monkeypatch.setattr(module, "make_tensors", failing(RuntimeError("no memory")))
    try:
        for _ in range(3):
            bench.step(10_000)
        new = {key: count for key, count in GUARD.failures.items() if before.get(key) != count}
        assert len(bench.rows) == 3
        assert len(new) == 1
        assert next(iter(new.values())) == 1
    finally:
        GUARD.failures.clear()
        GUARD.failures.update(before)
