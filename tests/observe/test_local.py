"""Rows inside the training, for who asked for them: as in hotloop's own process, and what they mark is marked there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotloop.agent.observe.guard import GUARD
from hotloop.agent.observe.local import Session
from hotloop.core.recording import FIELD, FLAG_DEEP, TIME_FIELDS
from tests.planted import failing
from tests.replay.hooked import Hooked, no_failures


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    with no_failures():
        yield


class Training(Hooked):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 1))
        self.session = Session(self.agent)
        self.seen: list[list[int]] = []
        self.session.subscribe(lambda session, row: self.seen.append(list(row)))
        self.batches = self.take(DataLoader(TensorDataset(torch.ones(400, 2)), batch_size=4))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.train_on(next(self.batches)[0])

    def replayed(self) -> list[list[int]]:
        return [self.kept[0], self.kept[1], *self.rows] if self.rows else self.kept


@pytest.fixture
def training() -> Training:
    return Training()


COUNTS = [at for name, at in FIELD.items() if not name.endswith("_ns")]


def test_subscribers_see_the_rows_that_hotloops_process_writes(training: Training) -> None:
    training.steps(6)
    counted = [[row[at] for at in COUNTS] for row in training.seen]
    assert counted == [[row[at] for at in COUNTS] for row in training.replayed()]
    assert len(counted) == 7
    for row in training.seen:
        assert sum(row[FIELD[name]] for name in TIME_FIELDS) == row[FIELD["end_ns"]] - row[FIELD["start_ns"]]


def test_a_flag_that_a_subscriber_sets_is_in_both(training: Training) -> None:
    training.steps(2)
    training.session.recorder.in_deep_window = True
    training.steps(1)
    training.session.recorder.in_deep_window = False
    training.steps(1)
    for rows in (training.seen, training.replayed()):
        assert [bool(row[FIELD["flags"]] & FLAG_DEEP) for row in rows] == [False, False, False, True, False]


def test_the_time_of_a_subscriber_that_says_so_is_no_steps(training: Training) -> None:
    def spend(session: Session, row: Any) -> None:
        time.sleep(0.4)
        session.recorder.leave_out()

    training.session.subscribe(spend)
    training.steps(4)
    for rows in (training.seen, training.replayed()):
        assert all(row[FIELD["end_ns"]] - row[FIELD["start_ns"]] < 350_000_000 for row in rows[2:])
        assert all(
            sum(row[FIELD[n]] for n in TIME_FIELDS) == row[FIELD["end_ns"]] - row[FIELD["start_ns"]] for row in rows
        )


def test_what_a_subscriber_does_is_no_step_of_the_training(training: Training) -> None:
    training.steps(2)
    training.session.subscribe(lambda session, row: training.call(training.model, torch.ones(4, 2)))
    training.steps(3)
    assert [row[FIELD["forwards"]] for row in training.seen[3:]] == [1] * 3


def test_a_subscriber_that_fails_costs_the_training_nothing(training: Training) -> None:
    training.session.subscribe(failing(ValueError("planted")))
    training.steps(3)
    assert GUARD.failures == {"replaying an event: ValueError: planted": 4}
    GUARD.failures.clear()
    assert len(training.replayed()) == 4


def test_at_the_end_the_tail_is_seen_too(training: Training) -> None:
    ended: list[int] = []
    training.session.before_end = lambda: ended.append(len(training.seen))
    training.steps(2)
    training.session.finish()
    assert ended == [3]
    assert len(training.seen) == 4


def test_a_forked_child_has_no_subscribers(training: Training) -> None:
    training.steps(2)
    training.session.reset_after_fork()
    assert training.session.subscribers == []


def test_a_session_knows_models_and_optimizers(training: Training) -> None:
    met: list[Any] = []
    training.session.meets_model = met.append
    training.steps(2)
    assert met == [training.model]
    assert training.session.steps_per_optimizer() == [1]
    assert not training.session.sharded()
