"""activation-checkpointing and keep-activations: equal bits, less or more memory, and refusals."""

import copy
import io
import random
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from hotloop.change.apply import TECHNIQUES
from hotloop.change.apply.applier import make_context

from .small import Block, Net, apply_one, is_equal, make_net, outside, sgd, statuses, strategy_of, train


def saved_bytes(model: Any) -> int:
    """Bytes that a forward keeps for backward, parameters left out."""
    seen: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.randn(64, 16)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x).sum()
    loss.backward()
    return sum(seen.values())


def test_full_selective_and_budgeted_recomputing_keep_less() -> None:
    kept = {}
    budgets: dict[str, Any] = {f"{share:g}": {"budget": share} for share in (0.25, 0.5, 0.75)}
    for name, settings in {"all": {}, "matmuls": {"policy": "matmuls"}, **budgets, "none": None}.items():
        model = make_net()
        if settings is not None:
            apply_one("activation-checkpointing", settings, model=model)
            model(torch.randn(2, 16)).sum().backward()  # the first call is watched, not recomputed
        kept[name] = saved_bytes(model)
    assert kept["all"] < kept["0.25"] < kept["0.5"] < kept["0.75"] < kept["none"]
    assert kept["all"] < 0.4 * kept["none"]


def test_evaluation_and_undo_leave_no_trace() -> None:
    model = make_net()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    applied = apply_one("activation-checkpointing", model=model)
    assert model.state_dict().keys() == state.keys()
    file = io.BytesIO()
    torch.save(model, file)
    assert b"hotloop" not in file.getvalue()
    assert is_equal(list(copy.deepcopy(model).state_dict().values()), list(state.values()))
    model.eval()
    assert torch.equal(model(torch.ones(1, 16)), copy.deepcopy(model)(torch.ones(1, 16)))
    applied.undo()
    assert all("forward" not in vars(part) for part in model.modules())


class Counting(Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return super().forward(x, scale)


class Counter(Block):
    count = 0

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.count += 1
        return super().forward(x, scale)


@pytest.mark.parametrize(
    ("block", "what"),
    [(Counting, "its buffer calls"), (Counter, "its attribute count")],
)
def test_a_block_that_would_act_twice_is_found_in_its_first_call(block: Any, what: str) -> None:
    random.seed(0)
    plain = make_net(block=block)
    expected = train(plain, sgd(plain))
    random.seed(0)
    model = make_net(block=block)
    applier = outside("activation-checkpointing")
    applier.model_met(model)
    assert is_equal(train(model, sgd(model)), expected)
    assert [record.status for record in applier.records] == ["applied", "not applicable"]
    assert what in applier.records[1].detail


class Normed(Block):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(16)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("model", "settings", "why"),
    [
        (Net(block=Normed), {}, "BatchNorm1d"),
        (Net(depth=1), {}, "no class of modules that it repeats"),
        (Net(), {"block": "Layer"}, "no module of class Layer"),
        (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)), {}, "no class of modules"),
    ],
)
def test_models_that_cannot_be_recomputed_are_refused(model: Any, settings: dict[str, Any], why: str) -> None:
    applied = apply_one("activation-checkpointing", settings, model=model)
    assert statuses(applied) == ["not applicable"]
    assert why in applied.records[0].detail


def test_recomputing_adds_no_graph_break_under_compile() -> None:
    plain, model = make_net(), make_net()
    apply_one("activation-checkpointing", model=model)
    for block in [*plain.blocks, *model.blocks]:
        block.dropout.p = 0.0
    torch._dynamo.reset()
    model.compile(backend="aot_eager", fullgraph=True)
    assert is_equal(train(model, sgd(model), steps=3), train(plain, sgd(plain), steps=3))


def test_checkpoints_that_a_transformers_switch_makes_are_not_the_script_s() -> None:
    class Switched(Net):
        supports_gradient_checkpointing = True
        is_gradient_checkpointing = False
        config = SimpleNamespace(use_cache=False)

        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any) -> None:
            self.is_gradient_checkpointing = True

    technique, context = (
        TECHNIQUES["activation-checkpointing"],
        make_context(strategy_of("activation-checkpointing"), from_outside=True),
    )
    settings = {"policy": "all", "budget": 0.0, "block": None}
    assert technique.change_model(Switched(), settings, context).__class__.__name__ == "Applied"
    assert technique.change_call(SimpleNamespace(), settings, context) is None


class Checkpointed(Net):
    options: ClassVar[dict[str, Any]] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.call(block, x, **self.options)
        result: torch.Tensor = self.out(x)
        return result

    call: Any = staticmethod(checkpoint)


def keep_activations(**options: Any) -> tuple[Any, list[Any]]:
    """A model whose checkpoint() is what a script under the technique calls, and the effects."""
    from hotloop.agent.attach.applying import _change_calls

    torch.manual_seed(0)
    model = Checkpointed()
    model.options = options
    applier = outside("keep-activations")
    model.call = _change_calls(applier, "torch.utils.checkpoint:checkpoint")(checkpoint)
    return model, applier.records


@pytest.mark.parametrize("options", [{"use_reentrant": False}, {"use_reentrant": False, "scale": 0.5}])
def test_plain_calls_give_equal_bits(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    plain = Checkpointed()
    plain.options = options
    model, records = keep_activations(**options)
    assert is_equal(train(model, sgd(model)), train(plain, sgd(plain)))
    assert [(record.status, record.numerics) for record in records] == [("applied", "exact")]
    assert saved_bytes(model) > 2 * saved_bytes(plain)


def test_a_reentrant_call_that_trains_nothing_stays_untrained() -> None:
    torch.manual_seed(0)
    plain = Checkpointed(depth=1)
    model, records = keep_activations(use_reentrant=True)
    model.blocks = model.blocks[:1]
    x = torch.ones(1, 16)
    for one in (plain, model):
        one.options = {"use_reentrant": True}
        with pytest.warns(UserWarning, match="None of the inputs"):
            one(x).sum().backward()
    assert model.blocks[0].up.weight.grad is None
    assert plain.blocks[0].up.weight.grad is None
    assert "trains no parameters" in records[0].detail


class Layered:
    """A cache as that of a transformers model: objects in a list, which get their tensors in the first call."""

    def __init__(self) -> None:
        self.layers = [SimpleNamespace(keys=None)]


class Caching(Block):
    def forward(self, x: torch.Tensor, cache: Any = None) -> torch.Tensor:  # type: ignore[override]
        if cache is not None:
            cache.layers[0].keys = x if cache.layers[0].keys is None else torch.cat([cache.layers[0].keys, x])
            x = x + cache.layers[0].keys.mean(0)
        return super().forward(x)


class Decoder(Net):
    def __init__(self, use_cache: bool, **options: Any) -> None:
        super().__init__(**options)
        self.config = SimpleNamespace(use_cache=use_cache)
        self.always = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache = Layered() if self.config.use_cache or self.always else None
        for block in self.blocks:
            x = block(x, cache=cache)
        result: torch.Tensor = self.out(x)
        return result


PARTLY = [{"policy": "matmuls"}, {"budget": 0.5}, {"block": "Caching"}]


@pytest.mark.parametrize("settings", PARTLY)
def test_caches_for_generating_are_off_while_blocks_are_recomputed(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Decoder(True, block=Caching)
    applied = apply_one("activation-checkpointing", settings, model=model)
    assert applied.records[0].detail.endswith(", use_cache=False")
    train(model, sgd(model), steps=3)
    assert "not applicable" not in statuses(applied)
    applied.undo()
    assert model.config.use_cache is True


@pytest.mark.parametrize("settings", PARTLY)
def test_a_block_that_changes_its_arguments_is_left_alone(settings: dict[str, Any]) -> None:
    def made() -> Decoder:
        torch.manual_seed(0)
        model = Decoder(True, block=Caching)
        model.always = True
        return model

    plain, model = made(), made()
    expected = train(plain, sgd(plain), steps=3)
    applied = apply_one("activation-checkpointing", settings, model=model)
    assert is_equal(train(model, sgd(model), steps=3), expected)
    told = applied.applier.records[1]
    assert told.status == "not applicable"
    assert model.config.use_cache is True


@pytest.mark.parametrize(
    ("technique", "settings"),
    [("activation-checkpointing", {"budget": 0.5}), ("activation-checkpointing", {}), ("bf16-autocast", {})],
)
def test_copies_of_data_parallel_on_several_gpus_are_left_alone(technique: str, settings: dict[str, Any]) -> None:
    model = torch.nn.DataParallel(make_net())
    model.device_ids = [0, 1]
    applied = apply_one(technique, settings, model=model)
    assert statuses(applied) == ["not applicable"]
