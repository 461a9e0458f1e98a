"""An optimizer beside top-k: its momentum inside steps on late gradients, and what its state shows."""

from typing import Any

import pytest
import torch

from hotloop.change.apply.compression import TopKHook, WarmUpHook
from hotloop.change.apply.compression.momentum import lower_momentum
from hotloop.core.techniques import Applied


def train(optimizer: torch.optim.Optimizer, weight: torch.Tensor, then: Any = lambda step: None) -> list[float]:
    for step in range(6):
        then(step)
        weight.grad = torch.tensor([1.0, -2.0, 0.5]) / (step + 1)
        optimizer.step()
    return weight.tolist()


def make(cls: Any, **options: Any) -> tuple[Any, torch.Tensor]:
    weight = torch.ones(3, requires_grad=True)
    return cls([weight], lr=0.1, **options), weight


def hook_for(weight: torch.Tensor, hook: Any) -> Any:
    hook.names = {id(weight): "weight"}
    return hook


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam])
def test_adam_steps_without_its_first_moment_and_shows_its_own(cls: Any) -> None:
    optimizer, weight = make(cls)
    found = lower_momentum(optimizer, [hook_for(weight, TopKHook())], 0.0)
    assert isinstance(found, Applied)
    wanted = train(*make(cls, betas=(0.0, 0.999)))
    assert train(optimizer, weight) == wanted
    assert optimizer.state_dict()["param_groups"][0]["betas"] == (0.9, 0.999)


def test_a_warm_up_keeps_the_momentum_until_top_k_begins() -> None:
    """By hand: three steps as the optimizer is, three with beta1 0."""
    optimizer, weight = make(torch.optim.AdamW)
    hook = hook_for(weight, WarmUpHook(TopKHook(), 3))
    lower_momentum(optimizer, [hook], 0.0)

    def begin(step: int) -> None:
        hook._active = hook.later if step >= 3 else hook._first

    def switch(step: int) -> None:
        other.param_groups[0]["betas"] = (0.0 if step >= 3 else 0.9, 0.999)

    other, wanted = make(torch.optim.AdamW)
    assert train(optimizer, weight, begin) == train(other, wanted, switch)


def test_the_momentum_of_sgd_moves_before_the_selection() -> None:
    optimizer, weight = make(torch.optim.SGD, momentum=0.9, nesterov=True)
    hook = hook_for(weight, WarmUpHook(TopKHook(), 0))
    hook._active = hook.later
    found = lower_momentum(optimizer, [hook], 0.0)
    assert isinstance(found, Applied)
    assert hook.later.momentum == 0.9
    assert train(optimizer, weight) == train(*make(torch.optim.SGD))
    assert optimizer.param_groups[0]["momentum"] == 0.9
