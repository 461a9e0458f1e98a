import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from hotloop.observe.ops import MOST_SIGNATURES, collect_ops


def profile_steps(count: int) -> dict[str, object]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(6, 8)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        for _ in range(count):
            optimizer.zero_grad()
            model(data).sum().backward()
            optimizer.step()
    return collect_ops(prof)


@pytest.fixture(scope="module")
def recorded() -> dict[str, object]:
    return profile_steps(3)


def named(recorded: dict[str, object], name: str) -> list[dict[str, object]]:
    return [op for op in recorded["ops"] if op["name"] == name]  # type: ignore[attr-defined]


def test_counts_are_per_step(recorded: dict[str, object]) -> None:
    assert recorded["steps"] == 3
    assert [op["count"] for op in named(recorded, "aten::linear")] == [1, 1]


def test_an_operator_inside_another_is_not_counted_again(recorded: dict[str, object]) -> None:
    assert named(recorded, "aten::addmm") == []


def test_shapes_and_concrete_inputs_are_kept(recorded: dict[str, object]) -> None:
    shapes = [op["shapes"] for op in named(recorded, "aten::linear")]
    assert sorted(shapes) == [[[6, 8], [16, 8], [16]], [[6, 16], [4, 16], [4]]]


def test_backward_operators_are_marked(recorded: dict[str, object]) -> None:
    assert {op["backward"] for op in named(recorded, "aten::mm")} == {True}
    assert {op["backward"] for op in named(recorded, "aten::linear")} == {False}


def test_the_optimizer_is_left_out(recorded: dict[str, object]) -> None:
    assert named(recorded, "aten::addcdiv_") == []
    assert named(recorded, "aten::sqrt") == []


def test_totals_are_the_sum_of_the_operators(recorded: dict[str, object]) -> None:
    ops = recorded["ops"]
    assert isinstance(ops, list)
    assert len(ops) <= MOST_SIGNATURES
    assert recorded["total_ns"] == sum(op["cpu_ns"] for op in ops)


def test_the_record_is_plain_json(recorded: dict[str, object]) -> None:
    assert json.loads(json.dumps(recorded, allow_nan=False)) == recorded
