"""zero-grad-to-none and foreach-clipping: equal results, and what they must not touch."""

from typing import Any

import pytest
import torch

from hotloop.agent.attach.applying import _change_calls
from hotloop.change.apply import TECHNIQUES
from hotloop.change.apply.applier import Applier, make_context

from .small import is_equal, make_net, strategy_of, train


class TwoHeads(torch.nn.Module):
    """The second head is used in every other step."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = torch.nn.Linear(16, 8)
        self.often, self.seldom = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
        self.steps = 0
        self.late = 5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        h = torch.tanh(self.trunk(x))
        uses_both = self.steps % 2 == 0 or self.steps < self.late
        return self.often(h) + self.seldom(h) if uses_both else self.often(h)


def applier_of(technique: str) -> Applier:
    strategy = strategy_of(technique)
    return Applier(strategy, TECHNIQUES, make_context(strategy, from_outside=True))


def set_up(treated: bool, late: int) -> tuple[TwoHeads, torch.optim.Optimizer, Any, Any]:
    """A model, its optimizer, the zero_grad to call and the applier that may have changed it."""
    torch.manual_seed(0)
    model = TwoHeads()
    model.late = late
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    applier = applier_of("zero-grad-to-none")
    applier.optimizer_built(optimizer)
    zero: Any = torch.optim.Optimizer.zero_grad
    if treated:
        zero = _change_calls(applier, "torch.optim.optimizer:Optimizer.zero_grad")(zero)
    return model, optimizer, zero, applier


def train_with_zeros(treated: bool, late: int) -> tuple[list[Any], list[Any], Any]:
    model, optimizer, zero, applier = set_up(treated, late)
    seen = []
    for _ in range(12):
        zero(optimizer, set_to_none=False)
        loss = model(torch.randn(4, 16)).pow(2).mean()
        loss.backward()
        optimizer.step()
        seen += [loss.detach(), *(p.detach().clone() for p in model.parameters())]
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    zero(optimizer, set_to_none=False)
    return seen, applier.records, model


@pytest.mark.parametrize(("late", "always"), [(0, 4), (8, 6)])
def test_gradients_are_released_and_a_missing_one_counts_as_zero(late: int, always: int) -> None:
    expected, _, _ = train_with_zeros(False, late)
    seen, records, model = train_with_zeros(True, late)
    assert is_equal(seen, expected)
    assert [record.detail for record in records] == [f"set_to_none=True for {always} of 6 parameters"]
    assert all(p.grad is None for p in model.parameters())


def test_a_closure_gets_its_zeros_after_its_backward() -> None:
    def run(treated: bool) -> list[Any]:
        model, optimizer, zero, applier = set_up(treated, late=8)
        for step in range(12):
            x = torch.randn(4, 16)

            def closure(x: Any = x) -> Any:
                zero(optimizer, set_to_none=False)
                loss = model(x).pow(2).mean()
                loss.backward()
                return loss

            optimizer.step(closure) if step % 2 else optimizer.step(closure=closure)
        assert [record.status for record in applier.records] == (["applied"] if treated else [])
        return [p.detach() for p in model.parameters()]

    assert is_equal(run(True), run(False))


def test_gradients_in_a_larger_buffer_stay_there() -> None:
    applier = applier_of("zero-grad-to-none")
    p = torch.nn.Parameter(torch.ones(4))
    buffer = torch.zeros(8)
    p.grad = buffer[:4]
    optimizer = torch.optim.SGD([p], lr=0.1)
    zero: Any = _change_calls(applier, "torch.optim.optimizer:Optimizer.zero_grad")(torch.optim.Optimizer.zero_grad)
    for _ in range(6):
        zero(optimizer, False)
        p.sum().backward()
    assert p.grad is not None
    assert p.grad.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
    assert buffer[0] == 1.0


@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_"])
def test_clipping_over_lists_gives_equal_bits(name: str) -> None:
    original = getattr(torch.nn.utils, name)
    applier = applier_of("foreach-clipping")
    changed = _change_calls(applier, f"torch.nn.utils.clip_grad:{name}")(original)
    results = []
    for clip in (original, changed):
        model = make_net()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
        clip(model.parameters(), 1e-3, foreach=False)
        results.append([p.grad for p in model.parameters()])
    assert is_equal(*results)
    assert [record.status for record in applier.records] == ["applied"]
