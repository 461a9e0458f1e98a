"""A wrapped forward: torch.jit, exports, copies and pickles see the forward that the script wrote."""

import copy
import io
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hotloop.change.apply.forward import wrap_forward

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


def halved(self: Any, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = self.inner(x) / 2
    return result


class Halving(Doubling):
    """torch.jit compiles one forward for all objects of a class."""


def with_forward_of_its_own() -> nn.Module:
    model = Halving()
    model.forward = types.MethodType(halved, model)  # type: ignore[method-assign]
    return model


def wrap_all(model: nn.Module) -> list[Any]:
    """Every part twice, adding 1 each time."""

    def around(call: Any, args: Any, kwargs: Any) -> Any:
        return call(*args, **kwargs) + 1

    return [wrap_forward(part, around) for part in (*model.modules(), model)]


X = torch.linspace(-1, 1, 8).view(2, 4)
MAKES = [Doubling, with_forward_of_its_own]


def test_undoing_reaches_a_wrapper_below_another_one() -> None:
    model = Doubling()
    want = model(X)
    undos = wrap_all(model)
    undos[0]()
    assert torch.equal(model(X), want + 3)  # 1 by the outer wrapper, 2 by that of the inner layer
    for undo in undos[1:]:
        undo()
    assert torch.equal(model(X), want)


@pytest.mark.parametrize("make", MAKES)
def test_scripting_compiles_the_scripts_own_forward(make: Callable[[], nn.Module]) -> None:
    model = make()
    want = model(X)
    wrap_all(model)
    changed = model(X)
    assert not torch.equal(changed, want)
    assert torch.equal(torch.jit.script(model)(X), want)
    assert torch.equal(model(X), changed)


def test_tracing_and_exporting_record_what_runs() -> None:
    model = Doubling()
    wrap_all(model)
    changed = model(X)
    assert torch.equal(torch.jit.trace(model, (X,))(X), changed)
    assert torch.equal(torch.export.export(model, (X,)).module()(X), changed)
    assert torch.equal(model(X), changed)


@pytest.mark.parametrize("make", MAKES)
def test_copies_and_pickles_run_the_scripts_own_forward_with_their_own_weights(make: Callable[[], nn.Module]) -> None:
    model = make()
    want = model(X)
    wrap_all(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copied = copy.deepcopy(model)
    assert torch.equal(copied(X), want)
    if make is Doubling:  # without the wrapper too, a pickle holds a method of the object by its name
        assert torch.equal(torch.load(file, weights_only=False)(X), want)
    with torch.no_grad():
        for p in copied.parameters():
            p.zero_()
    assert not copied(X).any()
    assert torch.equal(torch.jit.script(copy.deepcopy(model))(X), want)
