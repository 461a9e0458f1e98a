"""compile-model and dynamic-shapes: in place, never twice, no trace in what is kept."""

import copy
import importlib
import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from hotloop.change.apply import TECHNIQUES
from hotloop.change.apply.api import apply_strategy
from hotloop.change.apply.applier import Applier, make_context
from hotloop.core.strategy import Choice, Strategy

from .small import Net, apply_one, is_close, make_net, outside, sgd, statuses, train

EAGER = {"backend": "aot_eager"}
pytestmark = [  # what torch itself warns of while it loads and traces
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch._dynamo.reset()
    counters.clear()
    before = torch._dynamo.config.suppress_errors
    yield
    torch._dynamo.config.suppress_errors = before
    torch._dynamo.reset()


def without_dropout(model: Any) -> Any:
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model


@pytest.mark.parametrize("settings", [{}, {"regional": True}, {"regional": True, "block": "Linear"}, {"dynamic": True}])
def test_compiled_models_train_the_same_without_breaks(settings: dict[str, Any]) -> None:
    plain, model = without_dropout(make_net()), without_dropout(make_net())
    applied = apply_one("compile-model", {**EAGER, **settings}, model=model)
    assert statuses(applied) == ["applied"]
    assert is_close(train(model, sgd(model), steps=3), train(plain, sgd(plain), steps=3))
    assert counters["stats"]["unique_graphs"] >= 1
    assert not counters["graph_break"]


@pytest.mark.parametrize(("rate", "classes"), [(0.0, ["reordered"]), (0.5, ["reordered", "resampled"])])
def test_a_compiled_forward_that_draws_random_numbers_is_resampled(rate: float, classes: list[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(rate), torch.nn.Linear(8, 1))
    applied = apply_one("compile-model", model=model)
    before = vars(model)["_compiled_call_impl"]
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()
    assert [one.numerics for one in applied.applier.records] == classes
    assert vars(model)["_compiled_call_impl"] is not before


def test_blocks_of_one_class_are_compiled_once() -> None:
    model = without_dropout(make_net(depth=6))
    applied = apply_one("compile-model", {**EAGER, "regional": True}, model=model)
    assert applied.records[0].values["blocks"] == 6
    train(model, sgd(model), steps=2)
    # The first block's input needs no gradient, those of the others do: two graphs, however many blocks.
    assert 1 <= counters["stats"]["unique_graphs"] <= 2


def test_a_model_of_torchs_own_classes_is_compiled_too() -> None:
    def build() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    plain, model = build(), build()
    apply_one("compile-model", EAGER, model=model)
    assert is_close(train(model, sgd(model), steps=2), train(plain, sgd(plain), steps=2))
    assert counters["stats"]["unique_graphs"] == 1


def test_what_is_kept_is_as_before() -> None:
    model = make_net()
    keys = list(model.state_dict())
    applied = apply_one("compile-model", EAGER, model=model)
    assert applied.model is model
    train(model, sgd(model), steps=1)
    assert list(model.state_dict()) == keys
    file = io.BytesIO()
    torch.save(model, file)
    assert b"hotloop" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert list(copy.deepcopy(model).state_dict()) == list(loaded.state_dict()) == keys
    applied.undo()
    assert "_compiled_call_impl" not in vars(model)


def by_torch_compile(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def by_module_compile(model: Any) -> Any:
    model.blocks[1].compile(backend="eager")
    return model


def by_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward, backend="eager")
    return model


@pytest.mark.parametrize("compile_it", [by_torch_compile, by_module_compile, by_forward])
def test_a_model_that_the_script_compiles_is_left_alone(compile_it: Any) -> None:
    model = compile_it(make_net())
    applied = apply_one("compile-model", EAGER, model=model)
    assert statuses(applied) == ["not applicable"]
    assert "the script compiles" in applied.records[0].detail


def test_a_model_called_inside_a_compiled_function_is_left_alone() -> None:
    model = make_net()
    applier = outside("compile-model", **EAGER)

    @torch._dynamo.disable
    def meet() -> None:
        applier.model_met(model)

    @torch.compile(backend="eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        meet()
        return x + 1

    step(torch.ones(1))
    assert applier.records[0].detail == "the script calls the model inside a function that it compiles"


@pytest.mark.parametrize(
    ("model", "settings", "why"),
    [
        (Net(depth=1), {"regional": True}, "no repeated class of modules"),
        (Net(), {"backend": "inductive"}, "no backend 'inductive'"),
    ],
)
def test_models_that_cannot_be_compiled_are_refused(model: Any, settings: dict[str, Any], why: str) -> None:
    applied = apply_one("compile-model", settings, model=model)
    assert statuses(applied) == ["not applicable"]
    assert why in applied.records[0].detail


def test_a_failing_compiler_leaves_a_training_that_runs() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.inner(x)
            return result

    def broken(*_: Any) -> Any:
        raise RuntimeError("no compiler here")

    torch._dynamo.register_backend(broken, name="broken_for_a_test")
    model = Odd()
    apply_one("compile-model", {"backend": "broken_for_a_test"}, model=model)
    assert len(train(model, sgd(model), steps=2)) > 2


def test_a_compiler_budget_is_set_for_a_compiled_model_and_taken_back() -> None:
    import torch._functorch.config as config

    choices = (
        Choice(technique="compile-model", settings={"backend": "aot_eager"}),
        Choice(technique="activation-checkpointing", settings={"budget": 0.4}),
    )
    applied = apply_strategy(Strategy(choices=choices), model=make_net())
    try:
        assert config.activation_memory_budget == 0.4
        assert {record.status for record in applied.records} == {"applied"}
    finally:
        applied.undo()
    assert config.activation_memory_budget == 1.0


def test_under_ddp_the_module_inside_is_compiled(tmp_path: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        plain = without_dropout(make_net())
        ddp = torch.nn.parallel.DistributedDataParallel(without_dropout(make_net()))
        applied = apply_one("compile-model", EAGER, model=ddp)
        assert "compiled Net" in applied.records[0].detail
        assert is_close(train(ddp, sgd(ddp), steps=3), train(plain, sgd(plain), steps=3))
        assert not counters["graph_break"]
        assert counters["stats"]["unique_graphs"] >= 1
    finally:
        dist.destroy_process_group()


def test_under_fsdp2_the_blocks_are_compiled_inside_their_hooks(tmp_path: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        plain, model = without_dropout(make_net()), without_dropout(make_net())
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        applied = apply_one("compile-model", EAGER, model=model)
        assert applied.records[0].values["blocks"] == 4
        torch.manual_seed(1)
        for one in (plain, model):
            torch.manual_seed(1)
            optimizer = sgd(one)
            for _ in range(3):
                optimizer.zero_grad()
                loss = one(torch.randn(8, 16)).pow(2).mean()
                loss.backward()
                optimizer.step()
            one.last = loss.detach()
        assert torch.allclose(plain.last, model.last, rtol=1e-5)
        assert not counters["graph_break"]
        assert counters["stats"]["unique_graphs"] >= 1
    finally:
        dist.destroy_process_group()


def call_compile(override: bool, **options: Any) -> tuple[Any, list[Any]]:
    from hotloop.agent.attach.applying import _change_calls

    strategy = Strategy(choices=(Choice(technique="dynamic-shapes", override=override),))
    applier = Applier(strategy, TECHNIQUES, make_context(strategy, from_outside=True))
    seen: dict[str, Any] = {}
    _change_calls(applier, "torch:compile")(lambda *_, **kwargs: seen.update(kwargs))(None, **options)
    return seen.get("dynamic"), applier.records


@pytest.mark.parametrize(
    ("options", "dynamic", "status"),
    [
        ({}, True, "applied"),
        ({"dynamic": False}, False, "not applicable"),
        ({"dynamic": True}, True, "not applicable"),
        ({"mode": "reduce-overhead"}, None, "not applicable"),
    ],
)
def test_the_scripts_compile_gets_dynamic_shapes(options: dict[str, Any], dynamic: Any, status: str) -> None:
    seen, records = call_compile(False, **options)
    assert seen is dynamic
    assert [record.status for record in records] == [status]


def test_a_graph_may_be_kept_after_backward() -> None:
    plain, model = without_dropout(make_net()), without_dropout(make_net())
    before = torch._functorch.config.donated_buffer  # type: ignore[attr-defined]
    applied = apply_one("compile-model", EAGER, model=model)
    for one in (plain, model):
        one(torch.ones(2, 16)).sum().backward()  # what is compiled for this one serves the others, too
        loss = one(torch.ones(2, 16)).pow(2).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert is_close([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
    applied.undo()
    assert torch._functorch.config.donated_buffer is before  # type: ignore[attr-defined]


def test_models_of_scripts_that_differentiate_gradients_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "second_derivative_of_a_script.py").write_text(
        "def f(loss, x):\n    loss.backward(create_graph=True)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("second_derivative_of_a_script")
    try:
        applied = apply_one("compile-model", EAGER, model=make_net())
    finally:
        sys.modules.pop("second_derivative_of_a_script")
    assert statuses(applied) == ["not applicable"]
