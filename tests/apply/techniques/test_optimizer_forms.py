"""fused-optimizer and foreach-optimizer: what they switch, what they leave alone, and checkpoints that show neither."""

import copy
import io
from typing import Any

import pytest
import torch

from hotloop.change.apply.api import apply_strategy
from hotloop.core.strategy import Choice, Strategy

from .small import apply_one, is_close, make_net, statuses, train


def fresh(kind: Any = torch.optim.AdamW, **options: Any) -> tuple[Any, Any]:
    model = make_net()
    return model, kind(model.parameters(), **({"lr": 1e-2} | options))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adagrad, {}),
        (torch.optim.AdamW, {"foreach": False}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"lr": torch.tensor(1e-2)}),
    ],
)
def test_the_fused_form_trains_the_same(kind: Any, options: dict[str, Any]) -> None:
    expected = train(*fresh(kind, **options))
    model, optimizer = fresh(kind, **options)
    applied = override("fused-optimizer", optimizer)
    assert statuses(applied) == ["applied"]
    assert optimizer.param_groups[0]["fused"] is True
    assert is_close(train(model, optimizer), expected)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop])
def test_the_foreach_form_trains_the_same(kind: Any) -> None:
    expected = train(*fresh(kind, foreach=False))
    model, optimizer = fresh(kind, foreach=False)
    assert statuses(override("foreach-optimizer", optimizer)) == ["applied"]
    assert optimizer.param_groups[0]["foreach"] is True
    assert is_close(train(model, optimizer), expected)


def override(technique: str, optimizer: Any) -> Any:
    return apply_strategy(Strategy(choices=(Choice(technique=technique, override=True),)), optimizer=optimizer)


class OwnStep(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.parametrize(
    ("technique", "kind", "options", "why"),
    [
        ("fused-optimizer", torch.optim.NAdam, {}, "NAdam has no fused form"),
        ("fused-optimizer", torch.optim.AdamW, {"fused": False}, "the script sets fused=False"),
        ("fused-optimizer", torch.optim.AdamW, {"fused": True}, "the script sets fused=True"),
        ("fused-optimizer", torch.optim.AdamW, {"capturable": True}, "the script sets capturable=True"),
        ("fused-optimizer", torch.optim.AdamW, {"differentiable": True}, "the script sets differentiable=True"),
        ("fused-optimizer", OwnStep, {}, "OwnStep overrides step"),
        ("fused-optimizer", torch.optim.AdamW, {"foreach": True}, "the script sets foreach=True"),
        ("foreach-optimizer", torch.optim.AdamW, {"fused": True}, "the script sets fused=True"),
        ("foreach-optimizer", torch.optim.AdamW, {"lr": torch.tensor(0.1)}, "the learning rate is a tensor"),
        ("foreach-optimizer", torch.optim.LBFGS, {}, "LBFGS has no foreach form"),
    ],
)
def test_what_the_script_chose_stays(technique: str, kind: Any, options: dict[str, Any], why: str) -> None:
    _, optimizer = fresh(kind, **options)
    before = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    applied = apply_one(technique, optimizer=optimizer)
    assert statuses(applied) == ["not applicable"]
    assert why in applied.records[0].detail
    assert [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups] == before


@pytest.mark.parametrize("form", ["fused", "foreach"])
@pytest.mark.parametrize("chosen", ["fused", "foreach"])
def test_a_form_that_was_switched_off_by_name_is_replaced_with_override_alone(form: str, chosen: str) -> None:
    _, optimizer = fresh(torch.optim.AdamW, **{chosen: False})
    kept = apply_one(f"{form}-optimizer", optimizer=optimizer).records[0]
    assert (kept.status, kept.explicit) == ("not applicable", f"{chosen}=False")
    assert optimizer.param_groups[0][chosen] is False
    assert not optimizer.param_groups[0][form]
    told = override(f"{form}-optimizer", optimizer).records[0]
    assert (told.status, told.explicit, optimizer.param_groups[0][form]) == ("applied", f"{chosen}=False", True)
    assert optimizer.state_dict()["param_groups"][0][chosen] is False


def test_a_parameter_without_a_fused_kernel_leaves_all_groups_alone() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))]
    optimizer = torch.optim.AdamW([{"params": parameters[:1]}, {"params": parameters[1:]}])
    applied = apply_one("fused-optimizer", optimizer=optimizer)
    assert "torch.complex64" in applied.records[0].detail
    assert [group["fused"] for group in optimizer.param_groups] == [None, None]


def test_a_checkpoint_looks_as_without_hotloop_and_loading_one_keeps_the_form() -> None:
    model, optimizer = fresh(foreach=False)
    override("fused-optimizer", optimizer)
    train(model, optimizer, steps=2)
    saved = optimizer.state_dict()
    assert (saved["param_groups"][0]["fused"], saved["param_groups"][0]["foreach"]) == (None, False)
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    assert (optimizer.param_groups[0]["fused"], optimizer.param_groups[0]["foreach"]) == (True, False)
    train(model, optimizer, steps=1)
    plain_model, plain = fresh(foreach=False)
    plain.load_state_dict(saved)
    train(plain_model, plain, steps=1)
    assert plain.param_groups[0]["fused"] is None


def test_fused_steps_keep_to_the_order_of_weights_that_the_script_laid_out() -> None:
    def trained(layout: torch.memory_format, saved: Any = None, fuses: bool = False) -> tuple[Any, Any]:
        torch.manual_seed(0)
        model: Any = torch.nn.Conv2d(3, 8, 3).to(memory_format=layout)  # type: ignore[call-overload]
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        if fuses:
            apply_one("fused-optimizer", optimizer=optimizer)
        if saved is not None:
            optimizer.load_state_dict(copy.deepcopy(saved))
        model(torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))).pow(2).sum().backward()
        optimizer.step()
        return [p.detach() for p in model.parameters()], optimizer.state_dict()

    saved = trained(torch.contiguous_format)[1]
    assert is_close(trained(torch.channels_last, saved, True)[0], trained(torch.channels_last, saved)[0])


def test_a_gradient_scaler_unscales_and_skips_by_itself() -> None:
    """What libraries clip and count is what the script's own form lets them see."""

    def run(fused: bool) -> tuple[list[Any], list[bool]]:
        model, optimizer = fresh(torch.optim.SGD, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        if fused:
            apply_one("fused-optimizer", optimizer=optimizer)
        assert not getattr(optimizer, "_step_supports_amp_scaling", False)
        called: list[bool] = []
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 16)).sum() * (float("inf") if step == 0 else 1.0)).backward()
            stepped: list[bool] = []
            handle = optimizer.register_step_pre_hook(lambda *_, stepped=stepped: stepped.append(True))
            scaler.step(optimizer)
            handle.remove()
            scaler.update()
            called.append(bool(stepped))
        return [p.detach() for p in model.parameters()], called

    torch.manual_seed(5)
    expected, called = run(False)
    torch.manual_seed(5)
    weights, fused_called = run(True)
    assert fused_called == called == [False, True, True, True]
    assert is_close(weights, expected)


def unfreeze_later(fused: bool, *, closure: bool = False, **options: Any) -> tuple[list[Any], Any]:
    model, optimizer = fresh(torch.optim.SGD, **{"momentum": 0.9, "weight_decay": 0.01} | options)
    applied = apply_one("fused-optimizer", optimizer=optimizer) if fused else None
    torch.manual_seed(1)
    for step in range(6):
        model.out.requires_grad_(step >= 3)
        x = torch.randn(8, 16)

        def loss(x: Any = x) -> Any:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()

        if closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()
    return [p.detach() for p in model.parameters()], applied


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"maximize": True}, {"momentum": 0.0}])
def test_the_fused_sgd_takes_parameters_whose_gradients_come_late(closure: bool, options: dict[str, Any]) -> None:
    weights, applied = unfreeze_later(True, closure=closure, **options)
    assert statuses(applied) == ["applied"]
    assert is_close(weights, unfreeze_later(False, closure=closure, **options)[0])


def test_a_late_gradient_with_dampening_takes_the_fused_form_back() -> None:
    weights, applied = unfreeze_later(True, dampening=0.5)
    assert is_close(weights, unfreeze_later(False, dampening=0.5)[0])
    assert [(one.status, "dampening" in one.detail) for one in applied.applier.records] == [
        ("applied", False),
        ("not applicable", True),
    ]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(("kind", "options"), [(torch.optim.SGD, {"momentum": 0.5}), (torch.optim.Adagrad, {})])
def test_sparse_gradients_that_only_show_in_training_take_the_fused_form_back(kind: Any, options: Any) -> None:
    def run(fused: bool) -> tuple[list[Any], Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 1))
        optimizer = kind(model.parameters(), lr=0.1, **options)
        applied = apply_one("fused-optimizer", optimizer=optimizer) if fused else None
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([step, step + 1])).sum().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()], applied

    weights, applied = run(True)
    assert is_close(weights, run(False)[0])
    assert [record.status for record in applied.applier.records] == ["applied", "not applicable"]
