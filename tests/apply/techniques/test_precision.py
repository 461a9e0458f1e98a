"""Autocast, matrix precision and bfloat16 weights: what acts, what is refused, and what leaves no trace."""

import copy
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from .small import apply_one as apply
from .small import said


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))


X = torch.linspace(-1, 1, 16).view(2, 8)


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(x)


@dataclass(frozen=True)
class Output:
    logits: torch.Tensor
    name: str


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        assert y.dtype == torch.bfloat16
        return {"a": [y, (y, 3)], "b": Output(y, "n")}


class Indexed(nn.Module):
    """Fails under autocast: the two sides of the assignment have different dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop, self.norm = nn.Linear(8, 8), nn.Dropout(), nn.BatchNorm1d(8)

    def forward(self, x: Any) -> Any:
        out = torch.zeros(3, 8)
        out[torch.tensor([0, 1])] = self.inner(self.drop(self.norm(x)))
        return out


def test_outputs_are_float32_whatever_they_are_nested_in() -> None:
    model = Nested()
    assert said(apply("bf16-autocast", model=model))[0][0] == "applied"
    out = model(X)
    assert {out["a"][0].dtype, out["a"][1][0].dtype, out["b"].logits.dtype} == {torch.float32}
    assert (out["a"][1][1], out["b"].name) == (3, "n")


def test_copies_pickles_and_state_carry_nothing_and_undo_takes_it_back() -> None:
    model = small_model()
    plain = model(X)
    keys = list(model.state_dict())
    applied = apply("bf16-autocast", model=model)
    assert not torch.equal(model(X), plain)
    assert torch.equal(copy.deepcopy(model)(X), plain)
    assert torch.equal(pickle.loads(pickle.dumps(model))(X), plain)
    assert b"hotloop" not in pickle.dumps(model)
    assert list(model.state_dict()) == keys
    applied.undo()
    assert torch.equal(model(X), plain)


def test_evaluation_may_stay_in_float32() -> None:
    model = small_model()
    plain = model(X)
    apply("bf16-autocast", {"evaluation": False}, model=model)
    with torch.no_grad():
        assert torch.equal(model(X), plain)
    assert not torch.equal(model(X), plain)


def test_a_compiled_model_runs_under_autocast_outside_of_its_graph() -> None:
    model = small_model()
    plain = model(X)
    for compiled in (torch.compile(copy.deepcopy(model), backend="eager"), copy.deepcopy(model)):
        compiled.compile(backend="eager") if not hasattr(compiled, "_orig_mod") else None
        apply("bf16-autocast", model=compiled)
        assert compiled(X).dtype == torch.float32
        assert not torch.equal(compiled(X), plain)


@pytest.mark.parametrize(
    ("make", "settings", "why"),
    [
        (lambda: small_model().double(), {}, "parameters of torch.float64"),
        (Regions, {}, "Regions already uses autocast in its forward"),
        (small_model, {"device_type": "cuda"}, "the model is on cpu"),
    ],
)
def test_what_the_script_chose_stays(make: Any, settings: Any, why: str) -> None:
    status, detail = said(apply("bf16-autocast", settings, model=make()))[0]
    assert status == "not applicable"
    assert why in detail


@pytest.mark.parametrize("enabled", [True, False])
def test_autocast_around_the_model_is_the_scripts_choice_also_when_it_is_off(enabled: bool) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        assert said(apply("bf16-autocast", model=small_model()))[0][0] == "not applicable"


@pytest.mark.parametrize("technique", ["bf16-autocast", "bf16-parameters"])
def test_a_forward_that_fails_is_repeated_as_it_was_with_the_same_random_numbers(technique: str) -> None:
    torch.manual_seed(0)
    model = Indexed()
    twin = copy.deepcopy(model)
    torch.manual_seed(1)
    want = [twin(X), twin(X)]
    applied = apply(technique, model=model)
    torch.manual_seed(1)
    assert [torch.equal(model(X), one) for one in want] == [True, True]
    assert torch.equal(model.norm.running_mean, twin.norm.running_mean)
    assert [status for status, _ in said(applied)] == ["applied", "not applicable"]
    assert "destination dtypes match" in said(applied)[1][1]
    assert "forward" not in vars(model)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient


class ProductAsInForward(Product):
    forward = staticmethod(torch.amp.custom_fwd(Product.forward, device_type="cpu"))
    backward = staticmethod(torch.amp.custom_bwd(Product.backward, device_type="cpu"))


class OwnBackward(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.inner, self.weight, self.function = nn.Linear(8, 8), nn.Parameter(torch.eye(8)), function

    def forward(self, x: Any) -> Any:
        return self.inner(self.function(self.inner(x), self.weight))


@pytest.mark.parametrize("technique", ["bf16-autocast", "bf16-parameters"])
@pytest.mark.parametrize("function", [Product, ProductAsInForward])
def test_a_backward_of_the_scripts_own_that_would_meet_two_dtypes_is_found_in_the_first_forward(
    function: Any, technique: str
) -> None:
    torch.manual_seed(0)
    model = OwnBackward(function.apply)
    twin = copy.deepcopy(model)
    applied = apply(technique, {} if technique == "bf16-autocast" else {"least_elements": 1}, model=model)
    model(X).sum().backward()
    is_taken_back = function is Product and technique == "bf16-autocast"
    if is_taken_back:
        twin(X).sum().backward()
        assert torch.equal(model.weight.grad, twin.weight.grad)
    assert [status for status, _ in said(applied)] == ["applied", *(["not applicable"] if is_taken_back else [])]


class Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh())

    def forward(self, x: Any) -> Any:
        return self.decode(self.encoder(x))

    def decode(self, z: Any) -> Any:
        return self.decoder(z)


def test_parts_of_a_bf16_model_can_be_called_by_themselves() -> None:
    torch.manual_seed(0)
    model = Coder()
    want = model.decode(X[:, :4])
    applied = apply("bf16-parameters", {"least_elements": 1}, model=model)
    got = model.decode(X[:, :4])
    assert got.dtype == torch.float32
    assert torch.allclose(got, want, atol=0.02)
    got.sum().backward()
    assert model.decoder[0].weight.grad.dtype == torch.bfloat16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is deprecated, and still used
        traced = torch.jit.trace(model.decoder, (X[:, :4],))
    assert traced(X[:, :4]).dtype == torch.float32
    assert model(X).dtype == torch.float32
    applied.undo()
    assert torch.allclose(model.decode(X[:, :4]), want)
    assert all("forward" not in vars(part) for part in model.modules())


def test_bf16_weights_are_refused_where_an_average_in_float32_follows_them() -> None:
    model = Coder()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    status, detail = said(apply("bf16-parameters", model=model))[0]
    assert (status, detail.partition(" ")[0]) == ("not applicable", "AveragedModel")
    averaged.update_parameters(model)


@pytest.fixture
def _full_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("_full_precision")
def test_matrix_precision_follows_the_device_and_the_script() -> None:
    applied = apply("matmul-precision", model=small_model())
    assert torch.get_float32_matmul_precision() == "medium"
    assert [status for status, _ in said(applied)] == ["applied", "applied"]
    applied.undo()
    assert torch.get_float32_matmul_precision() == "highest"
    torch.set_float32_matmul_precision("high")
