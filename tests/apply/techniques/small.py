"""Small models and loops for the tests of techniques."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hotloop.change.apply import TECHNIQUES
from hotloop.change.apply.api import AppliedStrategy, apply_strategy
from hotloop.change.apply.applier import Applier, make_context
from hotloop.core.strategy import Choice, Strategy


class Block(torch.nn.Module):
    def __init__(self, width: int = 16, dropout: float = 0.3) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        result: torch.Tensor = x + scale * self.dropout(self.down(torch.tanh(self.up(self.norm(x)))))
        return result


class Net(torch.nn.Module):
    def __init__(self, block: Callable[[], torch.nn.Module] = Block, depth: int = 4, width: int = 16) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(block() for _ in range(depth))
        self.out = torch.nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.out(x)
        return result


def make_net(**options: Any) -> Net:
    torch.manual_seed(0)
    return Net(**options)


def strategy_of(technique: str, **settings: Any) -> Strategy:
    return Strategy(choices=(Choice(technique=technique, settings=settings),))


def apply_one(technique: str, settings: dict[str, Any] | None = None, **objects: Any) -> AppliedStrategy:
    return apply_strategy(strategy_of(technique, **(settings or {})), **objects)


def statuses(applied: AppliedStrategy) -> list[str]:
    return [record.status for record in applied.records]


def said(applied: AppliedStrategy) -> list[tuple[str, str]]:
    """Status and detail of all records, those of later steps among them."""
    return [(record.status, record.detail) for record in applied.applier.records]


def outside(technique: str, **settings: Any) -> Applier:
    """The technique as on an unmodified script."""
    strategy = strategy_of(technique, **settings)
    return Applier(strategy, TECHNIQUES, make_context(strategy, from_outside=True))


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: Any, optimizer: Any, steps: int = 10, width: int = 16) -> list[Any]:
    """Loss of every step, then the gradients and the weights after the last."""
    torch.manual_seed(1)
    seen: list[Any] = []
    for _ in range(steps):
        x = torch.randn(8, width)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        seen.append(loss.detach().clone())
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
    return seen + [p.detach().clone() for p in model.parameters()]


def is_equal(one: list[Any], other: list[Any]) -> bool:
    """Whether all bits are the same."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def is_close(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(one, other, strict=True)
    )
