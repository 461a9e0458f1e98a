"""benchmark_training: what it measures, and that everything is as before."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotloop import benchmark_training


def make() -> tuple[nn.Module, DataLoader[Any]]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))
    data = TensorDataset(torch.randn(48, 8), torch.randint(0, 4, (48,)))
    return model, DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(5))


def everything(model: nn.Module, optimizer: Any, loader: Any) -> list[Any]:
    """All that training changes, as bytes and plain values."""
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    for p in model.parameters():
        tensors += [v for _, v in sorted(optimizer.state.get(p, {}).items())]
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    told = [None if t is None else (id(t), t.detach().numpy().tobytes()) for t in tensors]
    random_states = [torch.random.get_rng_state().tolist(), random.getstate(), loader.generator.get_state().tolist()]
    counters = {k: v for k, v in vars(optimizer).items() if isinstance(v, int)}
    return [told, groups, random_states, [m.training for m in model.modules()], counters]


@pytest.mark.parametrize(
    ("kind", "trained_before"), [(torch.optim.AdamW, True), (torch.optim.SGD, False), (torch.optim.SGD, True)]
)
def test_everything_is_put_back_bit_for_bit(kind: Any, trained_before: bool) -> None:
    model, loader = make()
    optimizer = kind(model.parameters(), lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    if trained_before:
        x, y = next(iter(loader))
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        model[2].eval()
    before = everything(model, optimizer, loader)
    found = benchmark_training(model, loader, optimizer=optimizer, loss=nn.functional.cross_entropy, budget_s=0.1)
    assert everything(model, optimizer, loader) == before
    parts = [p.part for p in found.parts]
    assert parts == ["data", "forward", "backward", "optimizer", "compute", "whole step"]
    assert all(p.n >= p.blocks >= 3 and 0 < p.min_ns <= p.median_ns for p in found.parts)
    assert found.batch_size == 16


def test_a_head_that_only_the_optimizer_knows_is_put_back() -> None:
    model, loader = make()
    head = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=0.1)
    nn.functional.cross_entropy(head(model(next(iter(loader))[0])), torch.zeros(16, dtype=torch.long)).backward()
    before = [(id(t), t.detach().clone()) for p in head.parameters() for t in (p, p.grad) if t is not None]
    benchmark_training(
        model, loader, optimizer=optimizer, loss=lambda output, y: nn.functional.cross_entropy(head(output), y),
        budget_s=0.05,
    )  # fmt: skip
    after = [(id(t), t.detach()) for p in head.parameters() for t in (p, p.grad) if t is not None]
    assert [one for one, _ in after] == [one for one, _ in before]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(after, before, strict=True))


def test_everything_is_put_back_after_an_error() -> None:
    model, loader = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = everything(model, optimizer, loader)
    calls = []

    def loss(output: Any, target: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("enough")
        return output.sum()

    with pytest.raises(RuntimeError, match="enough"):
        benchmark_training(model, loader, optimizer=optimizer, loss=loss)
    assert everything(model, optimizer, loader) == before


def test_memory_counts_weights_gradients_state_and_what_backward_needs() -> None:
    model, loader = make()
    numbers = sum(p.numel() for p in model.parameters())
    found = benchmark_training(model, loader, budget_s=0.1)
    memory = found.memory
    assert memory.parameters_bytes == memory.gradients_bytes == 4 * numbers
    assert memory.optimizer_state_bytes == 2 * 4 * numbers + 4 * len(list(model.parameters()))
    assert memory.saved_bytes >= 16 * 8 * 4
    assert memory.peak_bytes is None
    assert any("AdamW" in note for note in found.notes)


def test_batches_of_other_forms() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x: Any) -> Any:
            return {"loss": self.linear(x).mean()}

    rows = [{"x": torch.randn(3)} for _ in range(6)]
    found = benchmark_training(Named(), DataLoader(rows, batch_size=2), budget_s=0.05)  # type: ignore[arg-type]
    assert found.batch_size == 2


@pytest.mark.parametrize(
    ("model", "rows", "said"),
    [(nn.ReLU(), [1.0], "no trainable parameter"), (nn.Linear(1, 1), [], "loader is empty")],
)
def test_what_cannot_be_measured(model: nn.Module, rows: list[Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        benchmark_training(model, DataLoader(rows))  # type: ignore[arg-type]
