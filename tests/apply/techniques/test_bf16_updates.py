"""Weights in bfloat16 whose updates are not lost: what is kept, what is saved, what is refused."""

import copy
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from hotloop.change.apply.api import AppliedStrategy, apply_strategy
from hotloop.change.apply.narrow_updates import REST, join_float32, round_at_random, split_float32
from hotloop.core.strategy import Choice, Strategy

X = torch.linspace(-1, 1, 64).view(8, 8)


def apply(model: nn.Module, optimizer: Any, state: str = "bfloat16") -> AppliedStrategy:
    choice = Choice(technique="bf16-parameters", settings={"state": state})
    return apply_strategy(Strategy(choices=(choice,)), model=model, optimizer=optimizer)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8, bias=False))


def train(model: nn.Module, optimizer: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), X.flip(0))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights_of(model: nn.Module, optimizer: Any) -> list[torch.Tensor]:
    """In float32, with what is kept beside them."""
    return [
        join_float32(p.detach(), optimizer.state[p].get(REST)) if p.dtype == torch.bfloat16 else p.detach().clone()
        for p in model.parameters()
    ]


def equal(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def test_a_float32_is_split_and_joined_without_a_loss() -> None:
    bits = torch.randint(-(2**31), 2**31 - 1, (200_000,), generator=torch.Generator().manual_seed(1)).to(torch.int32)
    edges = torch.tensor([0, 0x8000, 0x18000, 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F7F8000, 0x7F800000, 1, -1 << 31])
    value = torch.cat([bits, edges.to(torch.int32)]).view(torch.float32)
    value = value[~value.isnan()]
    near, rest = split_float32(value)
    assert torch.equal(join_float32(near, rest).view(torch.int32), value.view(torch.int32))
    away = (near.double() - value.double()).abs()[value.isfinite() & near.isfinite()]
    usual = (value.bfloat16().double() - value.double()).abs()[value.isfinite() & near.isfinite()]
    assert torch.equal(away, usual)
    for nan in (0x7FFFFFFF, 0x7FC00000, 0x7F800001, -1):
        near, rest = split_float32(torch.tensor([nan], dtype=torch.int32).view(torch.float32))
        assert bool(near.isnan())
        assert bool(join_float32(near, rest).isnan())


@pytest.mark.parametrize("value", [1.0, 1.001, -0.3337, 1e-30, 123456.7])
def test_random_rounding_is_right_on_average_over_all_bits(value: float) -> None:
    exact = torch.full((65536,), value)
    rounded = round_at_random(exact, torch.arange(65536, dtype=torch.int32))
    assert float(rounded.double().mean()) == float(exact[0])
    assert len(rounded.unique()) <= 2


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad", "RMSprop"])
def test_compensated_weights_with_float32_state_go_the_way_of_float32(kind: str, fused: bool) -> None:
    if fused and kind == "RMSprop":
        fused = False
    options: dict[str, Any] = {"lr": 1e-3} | ({"momentum": 0.9} if kind == "SGD" else {})
    if kind != "RMSprop":
        options["fused"] = fused
    torch.manual_seed(0)
    cast, plain = nn.Linear(8, 64, bias=False), nn.Linear(8, 64, bias=False)
    plain.load_state_dict(cast.state_dict())
    mine, theirs = (getattr(torch.optim, kind)(one.parameters(), **options) for one in (cast, plain))
    apply(cast, mine, "float32")
    for _ in range(20):
        gradient = torch.randn(64, 8).bfloat16()
        cast.weight.grad, plain.weight.grad = gradient, gradient.float()
        mine.step()
        theirs.step()
        assert cast.weight.grad is gradient
    assert cast.weight.dtype == torch.bfloat16
    (kept,) = weights_of(cast, mine)
    assert torch.equal(kept, plain.weight)


def test_small_updates_add_up() -> None:
    model = nn.Linear(64, 64, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    apply(model, optimizer, "float32")
    for _ in range(100):
        model.weight.grad = torch.ones(64, 64, dtype=torch.bfloat16)
        optimizer.step()
    assert float(weights_of(model, optimizer)[0].double().mean()) == pytest.approx(0.9, abs=1e-5)


@pytest.mark.parametrize("state", ["float32", "bfloat16"])
def test_a_training_goes_on_from_its_checkpoint_with_the_same_bits(state: str) -> None:
    whole = small_model()
    optimizer = torch.optim.AdamW(whole.parameters(), 1e-2)
    apply(whole, optimizer, state)
    train(whole, optimizer, 5)
    saved = copy.deepcopy((whole.state_dict(), optimizer.state_dict()))
    losses = train(whole, optimizer, 5)
    # Resumed as a Trainer does: the technique first, then the checkpoint. And as a script does: the other way round.
    for technique_first in (True, False):
        again = small_model()
        resumed = torch.optim.AdamW(again.parameters(), 1e-2)
        if technique_first:
            apply(again, resumed, state)
        again.load_state_dict(saved[0])
        resumed.load_state_dict(copy.deepcopy(saved[1]))
        if not technique_first:
            apply(again, resumed, state)
        assert train(again, resumed, 5) == losses
        assert equal(weights_of(again, resumed), weights_of(whole, optimizer))


def test_a_closure_is_called_once_and_a_scheduler_sees_the_step() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    apply(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    calls = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), X.flip(0))
        loss.backward()
        calls.append(loss.item())
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answers = []
        for _ in range(3):
            answers.append(optimizer.step(closure).item())
            scheduler.step()
    assert answers == calls
    assert calls[2] < calls[0]


def test_undo_gives_back_the_float32_weights_that_there_would_be() -> None:
    model = small_model()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    applied = apply(model, optimizer)
    applied.undo()
    assert equal(model.parameters(), before)
    applied = apply(model, optimizer)
    train(model, optimizer, 3)
    want = weights_of(model, optimizer)
    applied.undo()
    assert equal(model.parameters(), want)
    assert not any(REST in state for state in optimizer.state.values())
    train(model, optimizer, 1)


class Own(torch.optim.SGD):
    """Of the script: nobody knows what its step looks at."""


def test_an_unknown_optimizer_that_comes_later_takes_the_cast_back() -> None:
    model = small_model()
    before = [p.detach().clone() for p in model.parameters()]
    applied = apply(model, None)
    assert model[0].weight.dtype == torch.bfloat16
    applied.applier.change_optimizer(Own(model.parameters(), 0.1))
    assert equal(model.parameters(), before)
    assert "forward" not in vars(model)
