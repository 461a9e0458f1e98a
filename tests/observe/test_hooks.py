"""Calls of torch -> events, whatever the calls do: the training gets its results and errors, and no time is lost."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from hotloop.agent.observe import hooks
from hotloop.agent.observe.agent import (
    FEWEST_STEPS,
    FULL_EVENTS,
    FULL_FORWARDS,
    FULL_STEPS,
    MOST_RESTED,
    WEIGHED_EVENTS,
)
from hotloop.agent.observe.guard import GUARD
from hotloop.agent.observe.hooks import FETCH_GAP, WATCHED_FETCHES
from hotloop.agent.observe.inputs import Copier
from hotloop.core.recording import CLOSED_BY_SCALER_SKIP, FIELD, TIME_FIELDS
from tests.planted import failing
from tests.replay.hooked import Hooked, no_failures


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    with no_failures():
        yield


class Training(Hooked):
    def __init__(self, **options: Any) -> None:
        super().__init__(nn.Linear(2, 1), **options)
        self.batches = self.take(DataLoader(TensorDataset(torch.ones(8_000, 2)), batch_size=4))
        self.step()

    def step(self) -> None:
        (x,) = next(self.batches)
        self.train_on(x)


@pytest.fixture
def training() -> Training:
    return Training()


def conserves_time(rows: list[list[int]]) -> bool:
    return all(
        sum(row[FIELD[name]] for name in TIME_FIELDS) == row[FIELD["end_ns"]] - row[FIELD["start_ns"]] for row in rows
    ) and all(a[FIELD["end_ns"]] == b[FIELD["start_ns"]] for a, b in pairwise(rows))


def test_every_row_counts_its_calls(training: Training) -> None:
    for _ in range(90):
        training.step()
    assert training.column("index") == list(range(2, 92))
    for name in ("batches", "forwards", "backwards", "micro_batches"):
        assert set(training.column(name)) == {1}, name
    assert set(training.column("samples")) == {4}
    assert conserves_time(training.rows)


def test_what_a_call_raises_is_the_trainings_and_its_time_is_kept(training: Training) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    class Failing(nn.Module):
        forward = fail

    agent = training.agent
    broken_backward = hooks.wrap_run_backward(agent)(fail)
    broken_next = hooks.wrap_loader_next(agent)(fail)
    for _ in range(4):
        for call in (
            lambda: training.call(Failing()),
            lambda: broken_backward(torch.zeros(())),
            lambda: training.optimize(closure=fail),
            lambda: broken_next(object()),
        ):
            with pytest.raises(ZeroDivisionError):
                call()
        training.step()
    assert (agent.inside, agent.backward, agent.loading, agent.phase) == (False,) * 4
    assert conserves_time(training.rows)
    assert training.column("forwards") == training.column("backwards") == training.column("batches") == [1] * 4


def test_another_threads_calls_are_not_noted(training: Training) -> None:
    other = nn.Linear(2, 1)

    def work() -> None:
        for _ in range(20):
            training.run_backward(training.call(other, torch.zeros(1, 2)).sum())

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(5):
        training.step()
    thread.join()
    assert training.column("forwards") == [1] * 5


def test_the_first_thread_that_trains_is_the_one_that_is_observed() -> None:
    hooked = Hooked(nn.Linear(2, 1))
    with torch.no_grad():
        hooked.call(hooked.model, torch.ones(4, 2))  # the main thread tries it out

    def work() -> None:
        for _ in range(5):
            hooked.train_on(torch.ones(4, 2))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert hooked.agent.owner == thread.ident
    assert hooked.column("forwards") == hooked.column("backwards") == [1] * 4
    assert {row[FIELD["nograd_forwards"]] for row in hooked.kept} == {0}  # what the other thread did is forgotten


def test_the_loss_is_not_taken_for_the_model() -> None:
    hooked, criterion = Hooked(nn.Linear(2, 1)), nn.MSELoss()
    for _ in range(3):
        out = hooked.call(hooked.model, torch.ones(4, 2))
        hooked.run_backward(hooked.call(criterion, out, torch.ones(4, 1)))
        hooked.optimize()
    assert [(fact["class"], fact["parameters"]) for fact in hooked.facts("model")] == [("Linear", 3)]
    assert [fact["class"] for fact in hooked.facts("optimizer")] == ["SGD"]


def test_a_failure_of_the_agents_own_is_counted_told_once_and_harms_nothing(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Copier, "look", failing(ValueError("planted")))
    for _ in range(6):
        training.step()
    assert training.column("forwards") == [1] * 6
    assert GUARD.failures == {"a batch: ValueError: planted": 6}
    assert [fact["level"] for fact in training.facts("health")] == ["warning"]
    GUARD.failures.clear()


def test_batches_that_are_read_here_are_timed_less_often_after_the_first(training: Training) -> None:
    collated: list[int] = []

    def collate(samples: list[int]) -> int:
        collated.append(len(samples))
        time.sleep(0.0001)
        return len(samples)

    fetcher = _MapDatasetFetcher([1, 2, 3], True, collate, False)
    fetch = hooks.wrap_fetch(training.agent)(_MapDatasetFetcher.fetch)
    advance = hooks.wrap_loader_next(training.agent)(lambda iterator: fetch(fetcher, [1, 2]))
    rounds = WATCHED_FETCHES + 10 * FETCH_GAP
    for _ in range(rounds):
        assert advance(object()) == 2
    assert collated == [2] * rounds
    assert training.rows is not None
    totals = training.engine.fetches
    assert totals.batches == rounds  # those that were timed stand for the others
    assert totals.collate_ns > 90_000 * rounds
    assert totals.fetch_ns < totals.collate_ns
    with pytest.raises(TypeError):
        fetch(fetcher, 1)
    assert hooks.wrap_fetch(training.agent)(collate) is collate  # as a torch that reads in another way


def test_a_fetch_that_is_timed_is_torchs_to_whoever_looks(training: Training) -> None:
    seen: list[list[tuple[str, str, str]]] = []

    def look(samples: object) -> object:
        frames = traceback.extract_stack()[-4:-1]
        seen.append([(Path(frame.filename).name, frame.name, frame.line or "") for frame in frames])
        return samples

    class Rows(list[int]):
        def __getitem__(self, index: Any) -> Any:
            look(index)
            return super().__getitem__(index)

    fetcher = _MapDatasetFetcher(Rows([1, 2]), True, look, False)
    stream = _IterableDatasetFetcher([1, 1], True, look, False)
    for one in (fetcher, stream):
        fetch: Callable[..., Any] = type(one).fetch
        assert hooks.wrap_fetch(training.agent)(fetch)(one, [0]) == fetch(one, [0])
    names = [[frame[:2] for frame in frames] for frames in seen]
    assert (names[0], names[1], names[4]) == (names[2], names[3], names[5])
    assert seen[1][-1] == seen[3][-1] == ("fetch.py", "fetch", "return self.collate_fn(data)")


@pytest.mark.parametrize("draws", [True, False])
def test_a_data_set_that_draws_is_told(draws: bool) -> None:
    hooked = Hooked(nn.Linear(2, 1))
    fetch = hooks.wrap_fetch(hooked.agent)(_MapDatasetFetcher.fetch)
    fetcher = _MapDatasetFetcher([0], True, lambda _: [torch.rand(4, 2) if draws else torch.ones(4, 2)], False)
    hooked.advance = hooks.wrap_loader_next(hooked.agent)(lambda iterator: fetch(fetcher, [0]))
    batches = hooked.take(DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4))
    for _ in range(3):
        hooked.train_on(next(batches)[0])
    assert hooked.rows
    assert [state["draws"] for state in hooked.engine.totals({}) if state["kind"] == "loader_stats"] == [draws]


def test_a_scaler_that_skips_a_step_has_taken_one() -> None:
    hooked = Hooked(nn.Linear(2, 1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    step = hooks.wrap_scaler_step(hooked.agent)(torch.amp.GradScaler.step)
    update = hooks.wrap_scaler_work(hooked.agent)(torch.amp.GradScaler.update)
    for scale in (1.0, 1.0, float("inf"), 1.0):
        hooked.run_backward(scaler.scale(hooked.call(hooked.model, torch.ones(4, 2)).sum() * scale))
        handles = (
            hooked.optimizer.register_step_pre_hook(hooked.before_step),
            hooked.optimizer.register_step_post_hook(hooked.after_step),
        )
        step(scaler, hooked.optimizer)
        for handle in handles:
            handle.remove()
        update(scaler)
        hooked.optimizer.zero_grad()
    assert [closed == CLOSED_BY_SCALER_SKIP for closed in hooked.column("closed_by")] == [False, True, False]
    assert all(ns > 0 for ns in hooked.column("scaler_ns"))
    assert not hooked.agent.may_rest


def test_a_backward_that_keeps_its_graph_is_counted(training: Training) -> None:
    kept = hooks.wrap_run_backward(training.agent)(lambda outputs, *rest: outputs[0].backward())
    kept((training.call(training.model, torch.ones(4, 2)).sum(),), None, True, False)
    training.optimize()
    assert training.column("retained_backwards") == [1]


def test_a_backward_that_a_compiler_traces_is_none_of_the_trainings(training: Training) -> None:
    training.agent.compiling = True
    training.run_backward(training.call(training.model, torch.ones(4, 2)).sum())
    training.agent.compiling = False
    training.optimize()
    assert training.column("backwards") == [0]


def test_what_checkpointing_computes_again_is_backward_time_told_apart(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Module, "__call__", training.call)
    out = checkpoint(training.model, torch.ones(4, 2, requires_grad=True), use_reentrant=False)
    training.run_backward(out.sum())
    training.optimize()
    (row,) = training.rows
    assert 0 < row[FIELD["recompute_ns"]] < row[FIELD["backward_ns"]]
    assert row[FIELD["forwards"]] == 1


def test_a_phase_inside_itself_counts_once(training: Training) -> None:
    wrap = hooks.wrap_phase(training.agent, FIELD["communication_ns"])
    inner = wrap(lambda: 7)
    assert wrap(lambda: inner())() == 7
    training.optimize()
    (row,) = training.rows
    assert row[FIELD["collectives"]] == 1
    assert row[FIELD["communication_ns"]] > 0


def test_hooks_that_would_cost_more_than_their_budget_rest(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotloop.agent.observe.agent.BUDGET_RATIO", 1e-4)  # above it on a busy machine too
    steps = FULL_STEPS + 400
    for _ in range(steps):
        training.step()
    training.agent.wake()
    rows = training.rows
    assert 0 < training.engine.rested_steps < 400
    assert sum(training.column("rows_merged")) == steps
    assert set(training.column("rows_merged")[: FULL_STEPS - 64]) == {1}
    assert max(training.column("rows_merged")) <= 2 * MOST_RESTED
    assert conserves_time(rows)


def test_forwards_without_gradients_that_every_step_has_wake_nothing(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotloop.agent.observe.agent.BUDGET_RATIO", 1e-4)  # above it on a busy machine too

    def evaluate(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                training.call(training.model, torch.ones(4, 2))

    steps = FULL_STEPS + 400
    for _ in range(steps):
        evaluate(2)
        training.step()
    training.agent.wake()
    assert sum(training.column("rows_merged")) == steps
    assert 0 < training.engine.rested_steps < 400
    assert sum(training.column("nograd_forwards")) == 2 * steps
    training.agent.resting, training.agent.rest_left, training.agent.skips = True, 5, 2
    evaluate(3)
    assert not training.agent.resting, "a forward more than usual was rested over"


@pytest.mark.parametrize("hinders", ["scaler", "two optimizers", "local session"])
def test_hooks_do_not_rest_where_steps_differ(training: Training, hinders: str) -> None:
    agent = training.agent
    agent.may_rest = hinders != "scaler"
    agent.session = object() if hinders == "local session" else None
    if hinders == "two optimizers":
        agent.optimizers[1] = 0
    agent.steps = 10 * FULL_STEPS
    agent.weigh(1, 1_000)
    agent.weigh(2, 2_000)
    assert (agent.rests_for, agent.resting) == (0, False)


def test_a_budget_that_is_kept_needs_no_rest(training: Training) -> None:
    agent = training.agent
    agent.steps = 10 * FULL_STEPS
    agent.weigh(0, 0)
    agent.weigh(1_000_000_000, 2_000)  # 9 ms of a second: 0.9 %
    assert agent.rests_for == 0
    agent.weigh(2_000_000_000, 20_000)
    assert agent.rests_for == 8  # 8.1 times the budget


def test_steps_of_many_forwards_are_weighed_by_their_events(training: Training) -> None:
    agent = training.agent
    agent.steps, agent.weighed_at = FEWEST_STEPS + 1, (0, 0)
    agent.weigh(10_000_000, FULL_EVENTS)  # 36 ms of hooks in 10 ms
    assert agent.rests_for == MOST_RESTED
    assert agent.weigh_from == FULL_EVENTS + WEIGHED_EVENTS
    agent.rests_for, agent.resting, agent.steps, agent.weigh_from = 0, False, FEWEST_STEPS - 1, 0
    agent.weigh(20_000_000, 2 * FULL_EVENTS)
    assert agent.rests_for == 0, "too few steps to take the others to be like them"


def test_of_many_forwards_without_gradients_some_are_only_counted(training: Training) -> None:
    count = FULL_FORWARDS + 500
    with torch.no_grad():
        for _ in range(count):
            training.call(training.model, torch.ones(4, 2))
    training.step()
    (row,) = training.rows
    assert abs(row[FIELD["nograd_forwards"]] - count) <= 16
    assert row[FIELD["forwards"]] == 1
    assert row[FIELD["nograd_ns"]] > 0
    assert conserves_time(training.rows)


def test_a_forked_child_begins_with_a_memory_of_its_own(training: Training) -> None:
    before = training.memory.newest()
    training.agent.reset_after_fork()
    training.agent.ring.emit(200)
    assert training.memory.newest() == before
    assert not training.agent.started


def test_rows_of_tables_are_counted_in_the_first_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(100, 4)
            self.head = nn.Linear(4, 1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(ids).mean(1))

    hooked = Hooked(Towers())
    monkeypatch.setattr(nn.Module, "__call__", hooked.call)
    for _ in range(6):
        out = hooked.call(hooked.model, torch.zeros(8, 5, dtype=torch.long))
        hooked.run_backward(out.sum())
        hooked.optimize()
    facts = hooked.facts("table_rows")
    assert [fact["per_backward"] for fact in facts] == [40]


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_generator_that_runs_twice_for_the_same_noise_repeats_itself(is_shared: bool) -> None:
    """The critic's optimizer steps in between, and leaves the generator's weights as they are."""
    generator, critic = nn.Linear(3, 2), nn.Linear(2, 1)
    hooked = Hooked(generator)
    for_critic = torch.optim.SGD(critic.parameters(), 0.1)
    hooked.agent.optimizer_built(for_critic)
    for _ in range(8):
        noise = torch.randn(4, 3)
        fakes = hooked.call(generator, noise)
        for_critic.zero_grad()
        hooked.run_backward(hooked.call(critic, fakes.detach()).sum())
        hooked.optimize(for_critic)
        again = fakes if is_shared else hooked.call(generator, noise)
        hooked.run_backward(hooked.call(critic, again).sum())
        hooked.optimize()
    repeated = sum(hooked.column("repeated_forwards"))
    assert repeated == (0 if is_shared else 7)  # once both optimizers have been seen


def test_anomaly_detection_in_every_step_is_told_once(training: Training) -> None:
    for _ in range(3):
        with torch.autograd.set_detect_anomaly(True):
            training.agent.anomaly_set(None)
    assert len(training.facts("setting_place")) == 1


def test_a_compilation_without_an_end_hides_no_later_step(training: Training) -> None:
    training.agent.compiling = True
    training.optimize()
    training.step()
    assert sum(training.column("backwards")) == 1
