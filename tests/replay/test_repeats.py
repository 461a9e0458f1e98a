"""Forwards that compute again what was computed, by what the hooks say of real tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotloop.core.recording import FIELD
from tests.replay.hooked import Hooked, no_failures


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    with no_failures():
        yield


class Training(Hooked):
    """Batches of four from a loader, a model and a criterion."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 1))
        self.criterion = nn.MSELoss()
        self.batches = self.take(DataLoader(TensorDataset(torch.arange(1600.0).reshape(800, 2)), batch_size=4))
        self.step()

    def next(self) -> torch.Tensor:
        return next(self.batches)[0]

    def learn(self, out: torch.Tensor, x: torch.Tensor) -> None:
        self.run_backward(self.call(self.criterion, out, x[:, :1]))

    def step(self) -> torch.Tensor:
        x = self.next()
        self.learn(self.call(self.model, x), x)
        self.optimize()
        return x


@pytest.fixture
def training() -> Training:
    return Training()


@pytest.mark.parametrize("grad", [False, True])
def test_metrics_after_the_step_are_repeats(training: Training, grad: bool) -> None:
    for _ in range(4):
        x = training.step()
        with torch.set_grad_enabled(grad):
            training.call(training.model, x)
    for _ in range(3):
        training.step()
    assert training.column("repeated_forwards") == [0, 1, 1, 1, 1, 0, 0]
    assert training.column("repeated_nograd_forwards") == ([0] * 7 if grad else [0, 1, 1, 1, 1, 0, 0])
    spans, forwards = training.column("repeated_forward_ns"), training.column("forward_ns")
    assert not grad or all(0 < span <= whole for span, whole in zip(spans[1:5], forwards[1:5], strict=True))


def test_several_steps_on_one_batch_are_no_metrics(training: Training) -> None:
    for i in range(12):
        if i % 4 == 0:
            x = training.next()
        training.learn(training.call(training.model, x), x)
        training.optimize()
    assert training.column("repeated_forwards") == [0] * 12


@pytest.mark.parametrize(("rate", "both_go_back", "repeats"), [(0.5, True, 0), (0.5, False, 0), (0.0, True, 1)])
def test_what_draws_random_numbers_repeats_nothing(
    training: Training, rate: float, both_go_back: bool, repeats: int
) -> None:
    model = nn.Sequential(training.model, nn.Dropout(rate))
    for _ in range(4):
        x = training.next()
        first, second = training.call(model, x), training.call(model, x)
        training.run_backward((first * second if both_go_back else first).sum())
        training.optimize()
    assert training.column("repeated_forwards") == [repeats] * 4


def test_a_repeat_that_goes_backward_too_is_told_from_one_for_metrics(training: Training) -> None:
    for _ in range(2):
        x = training.next()
        for _ in range(2):
            training.learn(training.call(training.model, x), x)
        training.optimize()
    x = training.next()
    training.call(training.model, x)
    training.learn(training.call(training.model, x), x)
    training.optimize()
    assert training.column("repeated_forwards") == [1, 1, 1]
    assert training.column("repeated_backwards") == [1, 1, 0]


def test_other_weights_inputs_or_mode_repeat_nothing(training: Training) -> None:
    model = training.model
    for change in ("weights", "inputs", "mode"):
        x = training.next()
        training.learn(training.call(model, x), x)
        if change == "weights":
            training.optimize()
        elif change == "inputs":
            x.mul_(0.5)
        else:
            model.eval()
        training.learn(training.call(model, x), x)
        training.optimize()
    assert training.column("repeated_forwards") == [0] * 4


def test_a_second_input_that_is_another_one_repeats_nothing(training: Training) -> None:
    cell, state = nn.Bilinear(2, 1, 1), torch.zeros(4, 1)
    x = training.next()
    for hidden in (state, state + 1.0):
        training.run_backward(training.call(cell, x, hidden).sum())
    training.optimize()
    assert training.column("repeated_forwards") == [0]


def test_after_the_step_of_another_optimizer_weights_are_looked_at(training: Training) -> None:
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    for _ in range(4):
        x = training.next()
        for optimizer in (other, training.optimizer):
            training.learn(training.call(training.model, x), x)
            training.optimize(optimizer)
    assert training.column("repeated_forwards") == [0, 0, 0, 1, 0, 1, 0, 1]  # once both optimizers have been seen


def test_a_teacher_that_answers_each_batch_once_is_no_repeat(training: Training) -> None:
    teacher = nn.Linear(2, 1).eval()
    for answers in (1, 1, 2):
        x = training.next()
        with torch.no_grad():
            for _ in range(answers):
                target = training.call(teacher, x)
        training.learn(training.call(training.model, x) + target, x)
        training.optimize()
    assert training.column("repeated_nograd_forwards") == [0, 0, 1]


def test_a_second_loader_that_is_read_beside_the_first_is_not_validated_on(training: Training) -> None:
    beside = training.take(DataLoader(TensorDataset(torch.ones(40, 2)), batch_size=4))
    rarely = training.take(DataLoader(TensorDataset(torch.ones(40, 2)), batch_size=4))
    teacher = nn.Linear(2, 1)
    for i in range(6):
        next(beside)
        x = training.next()
        with torch.no_grad():
            target = training.call(teacher, x)
        training.learn(training.call(training.model, x) + target, x)
        training.optimize()
        if i % 3 == 2:
            with torch.no_grad():
                training.call(teacher, next(rarely)[0])
    training.step()
    assert training.column("bursts_other_loader") == [0, 0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("stays", [True, False])
def test_a_tensor_that_every_step_trains_on_is_told(stays: bool) -> None:
    hooked = Hooked(nn.Linear(2, 1))
    x = torch.ones(4, 2)
    for i in range(4):
        hooked.train_on(x if stays else torch.full((4, 2), float(i)))
    assert hooked.rows
    told = [fact for fact in hooked.engine.totals({}) if fact["kind"] == "direct_input"]
    assert told == ([{"kind": "direct_input", "stays": True}] if stays else [])


class Spectrum(nn.Module):
    """Features without weights, from a module inside a module."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Tanh()

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x)  # type: ignore[no-any-return]


class Hidden(nn.Module):
    """A teacher whose weights are kept from registering."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [nn.Linear(2, 2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kept[0](x)  # type: ignore[no-any-return]


class Unregistered(nn.Module):
    """A model whose weights are plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(2, 2, requires_grad=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def last_step_with(training: Training, module: Any, *, grad: bool) -> dict[str, int]:
    """The second of two steps in which the module gets the batch ahead of the model."""
    for _ in range(2):
        x = training.next()
        with torch.set_grad_enabled(grad):
            given = training.call(module, x)
        training.learn(training.call(training.model, given), x)
        training.optimize()
    return {name: training.rows[-1][at] for name, at in FIELD.items()}


@pytest.mark.parametrize(
    ("module", "grad", "forwards", "nograd_forwards"),
    [(Spectrum, True, 2, 0), (Spectrum, False, 2, 0), (Hidden, False, 2, 1), (Unregistered, True, 3, 0)],
)
def test_a_module_without_weights_ahead_of_the_model_belongs_to_the_loop(
    training: Training, module: Any, grad: bool, forwards: int, nograd_forwards: int
) -> None:
    row = last_step_with(training, module(), grad=grad)
    assert (row["forwards"], row["nograd_forwards"]) == (forwards, nograd_forwards)
    assert row["after_input_ns"] > 0 or module is not Spectrum


def test_a_graph_that_every_epoch_trains_and_tests_on_stays_one(training: Training) -> None:
    x = training.next()
    for _ in range(200):
        training.model.train()
        training.learn(training.call(training.model, x), x)
        training.optimize()
        training.model.eval()
        with torch.no_grad():
            training.call(training.model, x)
    assert sum(training.column("repeated_forwards")[3:]) == 0
