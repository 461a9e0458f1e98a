from typing import Any

import pytest
import torch

from hotloop.measure.probe.operators import Operator, find_overload, scale_batch
from hotloop.measure.probe.opportunities import ProbeRequest, RecordedOptimizer, measure
from hotloop.measure.probe.parts.optimizer import time_optimizer
from hotloop.measure.probe.parts.replay import needs_no_input_gradient, replay_op
from hotloop.measure.probe.parts.whole_steps import WholePass, order_calls, time_passes


def op(name: str, shapes: list[Any], dtypes: list[str], inputs: list[Any], **more: Any) -> dict[str, Any]:
    recorded = {"name": name, "shapes": shapes, "dtypes": dtypes, "inputs": inputs}
    return recorded | {"count": 1, "cpu_ns": 1000, "backward": False} | more


LINEAR = op("aten::linear", [[4, 8], [16, 8], [16]], ["float"] * 3, ["", "", ""])
RELU_IN_PLACE = op("aten::relu_", [[4, 16]], ["float"], [""])
LOSS = op(
    "aten::cross_entropy_loss",
    [[4, 16], [4], [], [], [], []],
    ["float", "long int", "", "Scalar", "Scalar", "Scalar"],
    ["", "", "", 1, -100, 0.0],
)
NORM = op(
    "aten::batch_norm",
    [[4, 3, 5, 5], [3], [3], [3], [3], [], [], [], []],
    ["float"] * 5 + ["Scalar"] * 4,
    ["", "", "", "", "", True, 0.1, 1e-5, True],
)
CAT = op("aten::cat", [[[4, 2], [4, 3]], []], ["TensorList", "Scalar"], ["", 1])
BACKWARD = op("aten::mm", [[16, 4], [4, 8]], ["float", "float"], ["", ""], backward=True)


def read(recorded: dict[str, Any]) -> Operator:
    return Operator.from_dict(recorded)


def request(*ops: dict[str, Any], **more: Any) -> dict[str, Any]:
    base = {"ops": {"ops": list(ops)}, "arms": ["base", "double", "bf16"], "batch_size": 4, "threads": 1, "cores": 2}
    return base | {"budget_s": 0.5, "memory_bytes": 1 << 28} | more


@pytest.fixture(autouse=True)
def same_threads() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("recorded", [LINEAR, RELU_IN_PLACE, LOSS, NORM, CAT], ids=lambda one: str(one["name"]))
def test_recorded_operators_run_with_their_backward(recorded: dict[str, Any]) -> None:
    times = replay_op(read(recorded), ("base",), None, True, 0.01)
    assert times["base"] > 0
    assert times["rounds"] >= 2


def make_op(name: str, shapes: list[list[int]], backward: bool = False) -> Operator:
    return Operator(name=name, shapes=shapes, dtypes=(), inputs=(), backward=backward)


def test_a_first_layer_is_known_by_the_gradient_that_nobody_made() -> None:
    first = make_op("aten::mm", [[2708, 1433], [1433, 16]])
    second = make_op("aten::linear", [[4, 677, 16], [7, 16], [7]])
    recorded = [
        first,
        second,
        make_op("aten::mm", [[1433, 2708], [2708, 16]], backward=True),  # the first weight
        make_op("aten::mm", [[7, 2708], [2708, 16]], backward=True),  # the second weight, transposed
        make_op("aten::mm", [[2708, 7], [7, 16]], backward=True),  # the second layer's input
    ]
    assert needs_no_input_gradient(first, recorded)
    assert not needs_no_input_gradient(second, recorded)
    assert not needs_no_input_gradient(first, [first])  # no backward was recorded: it cannot be told
    assert not needs_no_input_gradient(make_op("aten::relu", [[4, 4]]), recorded)


def test_a_concrete_scalar_chooses_the_overload() -> None:
    scaled = op("aten::mul", [[4, 4], []], ["float", "Scalar"], ["", 2])
    product = op("aten::mul", [[4, 4], [4, 4]], ["float", "float"], ["", ""])
    assert find_overload(read(scaled))._schema.overload_name == "Scalar"
    assert find_overload(read(product))._schema.overload_name == "Tensor"


POSITION = op("aten::add", [[4, 6, 8], [1, 6, 8], []], ["float", "float", "Scalar"], ["", "", 1])


@pytest.mark.parametrize(
    ("recorded", "batch", "shapes"),
    [
        (LINEAR, 4, [[8, 8], [16, 8], [16]]),  # weights stay
        (POSITION, 4, [[8, 6, 8], [1, 6, 8], []]),  # so do operands that are broadcast
        (LOSS, 4, [[8, 16], [8], [], [], [], []]),  # the targets of a loss grow
        (LINEAR, 3, None),  # the first dimension holds no batch
    ],
)
def test_doubling_the_batch(recorded: dict[str, Any], batch: int, shapes: list[Any] | None) -> None:
    assert scale_batch(read(recorded), batch) == shapes


@pytest.mark.parametrize("name", ["aten::nll_loss_forward", "aten::nll_loss2d_forward"])
def test_a_loss_by_the_name_that_the_profiler_sees_grows_with_its_targets(name: str) -> None:
    """Else a pass of twice the batch lacks its loss, and no larger batch is timed for any classifier."""
    shapes = [[4, 2], [4], [], [], []] if name.endswith("loss_forward") else [[4, 2, 5, 5], [4, 5, 5], [], [], []]
    dtypes = ["float", "long int", "", "Scalar", "Scalar"]
    loss = {"name": name, "shapes": shapes, "dtypes": dtypes, "inputs": ["", "", "", 1, -100], "count": 1}
    grown = WholePass([read(loss)], 4, 2)
    assert grown.calls_count == 1


def test_a_replay_times_every_arm_and_names_what_it_left_out() -> None:
    view = op("aten::view", [[4, 8], []], ["float", "ScalarList"], ["", [8, 4]])
    strange = op("aten::no_such_thing", [[1]], ["float"], [""])
    result = measure(request(LINEAR, view, strange, BACKWARD))
    [linear] = result["replay"]["ops"]
    assert {"base", "bf16_cast", "bf16_flow", "double"} <= set(linear)
    assert [one["index"] for one in result["replay"]["skipped"]] == [1, 2]
    assert result["failed"] == {}


def test_threads_are_compared_for_the_optimizer_too() -> None:
    adam = {"class": "Adam", "numels": [[128, 1], [16, 1]], "settings": {}}
    asked = request(LINEAR, BACKWARD, threads=2, cores=1, arms=["base", "threads"], optimizer=adam)
    found = measure(asked)["threads"]
    assert found["optimizer_present_ns"] > 0
    assert found["optimizer_cores_ns"] > 0


def test_larger_batches_are_timed_as_far_as_memory_reaches() -> None:
    found = measure(request(LINEAR, BACKWARD))["passes"]["larger"]
    assert [factor for factor, _ in found] == [4, 8, 16, 32, 64]
    assert all(ns > 0 for _, ns in found)
    # LINEAR reads 4 x 8 and 16 x 8 and 16 floats: a pass of 8 times the batch is larger than what is allowed here.
    short = request(LINEAR, BACKWARD, memory_bytes=read(LINEAR).size_bytes * LINEAR["count"] * 3 * 7)
    assert [factor for factor, _ in measure(short)["passes"]["larger"]] == [4]


def test_the_optimizer_is_rebuilt_in_the_recorded_sizes() -> None:
    facts = RecordedOptimizer(class_name="AdamW", groups=2, numels=[[64, 3], [16, 2]], settings={})
    times = time_optimizer(facts, 1 << 24, 0.05)
    assert times["tensors"] == 5
    assert times["share_ratio"] == 1.0
    assert min(times[f"{arm}_ns"] for arm in ("present", "fused", "foreach", "clip_by_hand", "clip_foreach")) > 0


def test_a_huge_optimizer_is_scaled_down() -> None:
    facts = RecordedOptimizer(class_name="AdamW", numels=[[1000, 100]], settings={})
    parameters, share = facts.make_parameters(20_000 * 4 * 8)
    assert sum(p.numel() for p in parameters) <= 40_000
    assert share < 0.5


def test_a_foreign_optimizer_fails_alone() -> None:
    result = measure(request(LINEAR, BACKWARD, optimizer={"class": "Lion", "numels": [[4, 1]]}))
    assert "Lion" in result["failed"]["optimizer"]
    assert result["replay"]["ops"]


def test_a_pass_hands_on_what_its_calls_make_and_differentiates_it() -> None:
    square = op("aten::linear", [[4, 8], [8, 8], [8]], ["float"] * 3, ["", "", ""], count=3)
    step = WholePass(order_calls([read(square)]), 4)
    seen: list[int] = []
    weights = [leaf for leaf in step.leaves if leaf.dim() == 2 and leaf.shape[0] == 8]
    for weight in weights:
        weight.register_hook(lambda _, weight=weight: seen.append(id(weight)))
    step.run()
    # One backward through all three layers: each has weights of its own, and each gets its gradient.
    assert sorted(seen) == sorted(id(weight) for weight in weights)
    assert len(weights) == 3


@pytest.mark.parametrize(
    "changes", [{"batch_size": None}, {"memory_bytes": 1000}, {"ops": {"ops": [LINEAR | {"count": 10_000}, BACKWARD]}}]
)
def test_passes_that_cannot_stand_for_the_step_are_not_timed(changes: dict[str, Any]) -> None:
    assert time_passes(ProbeRequest.from_dict(request(LINEAR, BACKWARD) | changes), 60.0) is None
