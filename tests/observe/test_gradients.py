"""Gradient norms of a trial: the right steps, the right value, no step disturbed, no failure raised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hotloop.agent.observe.gradients import MOST_NORMS, GradientWatch, is_noted
from hotloop.agent.observe.guard import GUARD
from hotloop.agent.observe.losses import read_values


def wrap_step(watch: Any, step: Any) -> Any:
    """As torch's global hooks of optimizers are called."""

    def run(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        watch.before_step(optimizer, args, kwargs)
        result = step(optimizer, *args, **kwargs)
        watch.after_step(optimizer, args, kwargs)
        return result

    return run


@pytest.fixture(autouse=True)
def _forget_failures() -> Iterator[None]:
    before = dict(GUARD.failures)
    yield
    GUARD.failures.clear()
    GUARD.failures.update(before)


class Rows:
    """The number of the open row."""

    number = 0

    def __call__(self) -> int:
        return self.number


class Stepping:
    """Parameters with gradients of 3 and 4, and a step that the watch is around."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.rows = Rows()
        self.watch = GradientWatch(self.rows)
        values = [torch.nn.Parameter(torch.zeros(2, dtype=dtype)) for _ in range(3)]
        for value, size in zip(values, (3.0, 4.0, None), strict=True):
            value.grad = None if size is None else torch.tensor([size, 0.0], dtype=dtype)
        self.param_groups = [{"params": values[:1]}, {"params": values[1:]}]
        self.stepped = 0

    def do_step(self) -> str:
        self.stepped += 1
        return "done"

    def run(self, optimizer: Any = None) -> None:
        assert wrap_step(self.watch, lambda one: self.do_step())(optimizer or self) == "done"

    def read(self) -> list[tuple[int, float | None]]:
        return self.watch.read(read_values)


def test_the_norm_is_that_of_all_gradients_at_the_steps_that_are_noted() -> None:
    one = Stepping()
    for one.rows.number in range(40):
        one.run()
    assert one.read() == [(row, 5.0) for row in (*range(8), 16, 32)]
    assert one.stepped == 40


def test_a_gradient_counts_once_a_row_and_parts_add_up() -> None:
    """An optimizer that hands its parameters to others; and one optimizer per parameter."""
    one = Stepping()
    first, second = Stepping(), Stepping()
    first.param_groups, second.param_groups = one.param_groups[:1], one.param_groups[1:]
    one.run(first)
    one.run(second)
    one.run(one)
    assert one.read() == [(0, 5.0)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_every_number_format(dtype: torch.dtype) -> None:
    one = Stepping(dtype)
    one.run()
    assert one.read() == [(0, pytest.approx(5.0))]


def test_float16_does_not_overflow() -> None:
    one = Stepping(torch.float16)
    one.param_groups[0]["params"][0].grad = torch.full((2,), 60000.0, dtype=torch.float16)
    one.run()
    ((_, norm),) = one.read()
    assert norm == pytest.approx(60000 * math.sqrt(2), rel=1e-3)


def test_the_scalers_factor_is_divided_out_and_a_skipped_step_has_no_norm() -> None:
    one = Stepping()
    one.grad_scale = torch.tensor([2.0])  # type: ignore[attr-defined]
    for one.rows.number, found in enumerate((0.0, 1.0)):
        one.found_inf = torch.tensor([found])  # type: ignore[attr-defined]
        one.run()
    assert one.read() == [(0, 2.5), (1, None)]


def test_not_finite_is_told_as_it_is() -> None:
    one = Stepping()
    one.param_groups[0]["params"][0].grad[0] = math.nan
    one.run()
    ((_, norm),) = one.read()
    assert norm is not None
    assert math.isnan(norm)


def test_parts_that_a_step_hands_to_another_optimizer_count_once() -> None:
    """As a sharded optimizer does: the inner one steps on views of what the outer one holds."""
    watch = GradientWatch(lambda: 0)
    whole = torch.nn.Parameter(torch.zeros(4))
    whole.grad = torch.tensor([3.0, 0.0, 4.0, 0.0])
    part = whole.detach()[2:]
    part.grad = whole.grad[2:]
    other = torch.nn.Parameter(torch.zeros(1))
    other.grad = torch.tensor([12.0])

    class Held:
        def __init__(self, *held: Any) -> None:
            self.param_groups = [{"params": list(held)}]

    inner = wrap_step(watch, lambda optimizer: "done")
    outer = wrap_step(watch, lambda optimizer: inner(Held(part, other)))
    outer(Held(whole))
    assert watch.read(read_values) == [(0, pytest.approx(13.0))]


def test_what_cannot_be_a_norm_is_unseen() -> None:
    sparse = Stepping()
    sparse.param_groups[0]["params"][0].grad = torch.eye(2)[0].to_sparse()
    sparse.run()
    assert (sparse.read(), sparse.watch.unseen) == ([], "some gradients are sparse")


def test_a_failure_is_recorded_and_the_step_goes_on() -> None:
    one = Stepping()
    one.run(object())
    assert one.stepped == 1
    assert "AttributeError" in one.watch.unseen
    assert any(key.startswith("noting a gradient norm: AttributeError") for key in GUARD.failures)


def test_memory_is_bounded_and_the_gradients_are_not_kept() -> None:
    one = Stepping()
    one.param_groups = one.param_groups[:1]
    for one.rows.number in range(0, 16 * (MOST_NORMS + 20), 16):
        one.run()
    assert len(one.read()) == MOST_NORMS
    assert [is_noted(row) for row in (7, 8, 16)] == [True, False, True]


def test_nothing_is_noted_while_a_step_is_compiled() -> None:
    one = Stepping()
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wrapped = wrap_step(one.watch, lambda optimizer: optimizer.param_groups[0]["lr"])
    assert torch.compile(wrapped, backend="eager")(optimizer) == 0.1
    assert one.read() == []
