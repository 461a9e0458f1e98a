"""A loop over a loader of its own that goes nowhere backward is a validation, with gradients or without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.replay.hooked import Hooked, no_failures


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    with no_failures():
        yield


def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.arange(80.0).reshape(40, 2)), batch_size=4)


@pytest.mark.parametrize("grad", [False, True])
def test_a_test_loop_is_a_validation_with_gradients_too(grad: bool) -> None:
    training, tests = Hooked(nn.Linear(2, 1)), loader()
    for _ in range(3):
        for (x,) in training.take(loader()):
            training.run_backward(training.call(training.model, x).sum())
            training.optimize()
        with torch.set_grad_enabled(grad):
            for (x,) in training.take(tests):
                training.call(training.model, x)
    assert sum(training.column("bursts_other_loader")) == 2  # the last one follows the last step
    assert sum(training.column("nograd_forwards")) == 20
    assert set(training.column("forwards")) == {1}


def test_a_second_loader_that_is_trained_on_is_none() -> None:
    training = Hooked(nn.Linear(2, 1))
    for _ in range(2):
        for (x,) in training.take(loader()):
            training.run_backward(training.call(training.model, x).sum())
            training.optimize()
    assert sum(training.column("bursts_other_loader")) == 0


@pytest.mark.parametrize("has_criterion", [False, True])
def test_a_full_batch_that_is_tested_with_a_criterion_is_one_validation(has_criterion: bool) -> None:
    training, criterion = Hooked(nn.Linear(2, 1)), nn.MSELoss()
    held_out, x = torch.randn(30, 2), torch.randn(40, 2)
    for _ in range(20):
        training.model.train()
        training.run_backward(training.call(criterion, training.call(training.model, x), x[:, :1]))
        training.optimize()
        training.model.eval()
        with torch.no_grad():
            out = training.call(training.model, held_out)
            if has_criterion:
                training.call(criterion, out, held_out[:, :1])
    assert sum(training.column("bursts_other_loader")[3:]) >= 15


def test_forwards_of_an_optimizers_closure_repeat_nothing() -> None:
    training = Hooked(nn.Linear(2, 1))
    x = torch.randn(40, 2)

    def closure() -> torch.Tensor:
        loss = training.call(training.model, x).square().mean()
        training.run_backward(loss)
        return loss

    optimizer = torch.optim.LBFGS(training.model.parameters(), lr=0.1, max_iter=5)
    for _ in range(5):
        training.optimize(optimizer, closure)
    assert sum(training.column("repeated_forwards")) == 0
