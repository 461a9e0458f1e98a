"""activation-checkpointing's budget: what is kept at any time of a step, against what was asked for."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hotloop.apply.activation_plan import Footprint, KeptStorage, UnitCall, peak_bytes, plan_budget, total_bytes

from .techniques.small import apply_one, is_equal

ForwardBytes = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "forward_bytes.py"))["ForwardBytes"]
BUDGETS = (0.25, 0.5, 0.75)


class Layer(nn.Module):
    """A transformer's layer, whose wide part is a module of its own."""

    def __init__(self, width: int = 32, times: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, times * width), nn.GELU(), nn.Linear(times * width, width), nn.Dropout()
        )

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + scale * self.wide(self.second(x))  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, channels, 3, stride, 1), nn.GroupNorm(4, channels), nn.ReLU(), nn.Dropout(0.1)
        )
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1), nn.GroupNorm(4, channels))
        self.stride = stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x[:, :, :: self.stride, :: self.stride] + self.second(self.first(x)))


class Transformer(nn.Module):
    def __init__(self, layers: list[nn.Module], width: int = 32) -> None:
        super().__init__()
        self.tokens, self.layers = nn.Embedding(64, width), nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)

    def forward(self, codes: torch.Tensor) -> Any:
        x = self.tokens(codes)
        for index, layer in enumerate(self.layers):
            x = layer(x, scale=1.0 / (index + 1))
        return self.norm(x)


class TwoTowers(nn.Module):
    """Two lists of layers of different classes and widths."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(64, 32)
        self.near = nn.ModuleList(Layer(32) for _ in range(4))
        self.up = nn.Linear(32, 48)
        self.far = nn.ModuleList(Layer(48, times=2) for _ in range(5))

    def forward(self, codes: torch.Tensor) -> Any:
        x = self.tokens(codes)
        for layer in self.near:
            x = layer(x)
        x = self.up(x)
        for layer in self.far:
            x = layer(x)
        return x


class Shared(Transformer):
    """One layer's weights used several times."""

    def __init__(self) -> None:
        one, other = Layer(), Layer(times=2)
        super().__init__([one, other, one, other, one, other])


def codes() -> torch.Tensor:
    return torch.randint(64, (8, 24))


def pictures() -> torch.Tensor:
    return torch.randn(4, 16, 24, 24)


SHAPES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "four equal layers": (lambda: Transformer([Layer() for _ in range(4)]), codes),
    "twelve equal layers": (lambda: Transformer([Layer() for _ in range(12)]), codes),
    "layers that grow": (lambda: Transformer([Layer(times=times) for times in (1, 1, 2, 2, 3, 4, 6)]), codes),
    "two towers": (TwoTowers, codes),
    "convolutions": (
        lambda: nn.Sequential(*(Residual(16, 2 if i in (3, 6) else 1) for i in range(9))),
        pictures,
    ),
    "deep and narrow": (
        lambda: nn.Sequential(
            nn.Linear(16, 32),
            *(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.GELU()) for _ in range(24)),
        ),
        lambda: torch.randn(64, 16),
    ),
}


def measured_bytes(model: nn.Module, x: torch.Tensor) -> int:
    with ForwardBytes() as live:
        loss = model(x).sum()
        live.note()
        loss.backward()
    return int(live.most_bytes)


def budgeted(build: Callable[[], nn.Module], budget: float) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = build()
    return model, apply_one("activation-checkpointing", {"budget": budget}, model=model)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_peak_of_a_step_keeps_to_its_budget(shape: str, budget: float) -> None:
    build, draw = SHAPES[shape]
    torch.manual_seed(0)
    x = draw()
    whole = measured_bytes(build(), x)
    model, applied = budgeted(build, budget)
    measured_bytes(model, x)
    ratio = measured_bytes(model, x) / whole
    plan, said = applied.applier.records[-1], applied.applier.records[-1].detail
    assert plan.status == "applied"
    if (shape, budget) == ("deep and narrow", 0.25):  # the inputs of its blocks are a third of all
        assert "a budget of 0.25 cannot be reached" in said
        assert f"at most {ratio:.0%} of" in said
    else:
        assert ratio == pytest.approx(budget, abs=0.05)
        assert "out of reach" not in said


@pytest.mark.parametrize("shape", ["two towers", "convolutions"])
def test_a_budget_gives_equal_bits_from_the_first_step_on(shape: str) -> None:
    build, draw = SHAPES[shape]
    torch.manual_seed(0)
    x = draw()
    seen = []
    for model in (budgeted(build, 0.3)[0], budgeted(build, 0.6)[0], build_plain(build)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (model(x).square().mean() + model(x).mean()).backward()
            optimizer.step()
        seen.append([*model.parameters()])
    assert is_equal(seen[0], seen[2])
    assert is_equal(seen[1], seen[2])


def test_the_first_step_keeps_one_layer_of_each_shape_whole() -> None:
    build, draw = SHAPES["twelve equal layers"]
    torch.manual_seed(0)
    x = draw()
    whole = measured_bytes(build(), x)
    model, _ = budgeted(build, 0.75)
    assert measured_bytes(model, x) < 0.25 * whole


def test_layers_with_shared_weights_are_planned_together() -> None:
    torch.manual_seed(0)
    x = codes()
    whole = measured_bytes(Shared(), x)
    model, applied = budgeted(Shared, 0.5)
    measured_bytes(model, x)
    assert "of 2 blocks" in applied.applier.records[-1].detail
    assert measured_bytes(model, x) / whole == pytest.approx(0.5, abs=0.05)


def test_evaluation_and_undo_leave_the_plan_alone() -> None:
    build, draw = SHAPES["four equal layers"]
    model, applied = budgeted(build, 0.5)
    x = draw()
    with torch.no_grad():
        model(x)
    model.eval()(x).sum().backward()
    assert len(applied.applier.records) == 1  # nothing was measured yet
    model.train()(x).sum().backward()
    assert len(applied.applier.records) == 2
    applied.undo()
    assert all("forward" not in vars(part) for part in model.modules())


class Counts(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return super().forward(x, scale)


def test_a_layer_that_would_count_twice_is_left_as_it_is() -> None:
    model, applied = budgeted(lambda: Transformer([Counts() for _ in range(4)]), 0.5)
    model(codes()).sum().backward()
    assert [one.calls for one in model.layers] == [1, 1, 1, 1]  # type: ignore[union-attr]
    assert "its attribute calls" in applied.applier.records[-1].detail
    assert all("forward" not in vars(part) for part in model.modules())


def a_chain(sizes: list[int], inputs: int) -> Footprint:
    kept, calls = [], []
    for index, size in enumerate(sizes):
        calls.append(UnitCall((index,), index + 1, ((1000 + index, inputs),)))
        kept.append(KeptStorage(1000 + index, inputs, (index,), index + 1))
        kept.append(KeptStorage(index, size, (index,), index + 1))
    return Footprint(tuple(kept), tuple(calls))


def test_what_comes_back_early_in_forward_adds_nothing_to_the_peak() -> None:
    chain = a_chain([90, 90, 90, 90], inputs=10)
    assert total_bytes(chain) == 400
    assert peak_bytes(chain, frozenset({0, 1})) == 220
    assert peak_bytes(chain, frozenset({2, 3})) == 310  # backward meets the last one first, all others still there
    assert plan_budget(chain, 0.5).again == frozenset({0, 1})


def test_an_impossible_budget_gives_the_least_peak() -> None:
    plan = plan_budget(a_chain([90, 90, 90, 90], inputs=10), 0.1)
    assert plan.peak_bytes == 130
    assert plan.again >= {0, 1, 2}


def build_plain(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build()
