"""Loss and gradients of a training: first, last and not finite, without ever changing the training."""

from __future__ import annotations

import math
from typing import Any

import torch

from hotloop.agent.observe import numbers
from hotloop.agent.observe.numbers import LateValues, NumbersWatch, Trend
from hotloop.core.recording import CLOSED_BY_OPTIMIZER, STEP_FIELDS
from tests.planted import failing


def wrap_step(watch: Any, step: Any) -> Any:
    """As torch's global hooks of optimizers are called."""

    def run(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        watch.before_step(optimizer, args, kwargs)
        result = step(optimizer, *args, **kwargs)
        watch.after_step(optimizer, args, kwargs)
        return result

    return run


def test_a_trend_keeps_what_is_finite_apart() -> None:
    trend = Trend()
    for step, value in enumerate((4.0, 2.0, math.nan, 3.0, math.inf), 1):
        trend.add(step, value)
    assert (trend.first, trend.last, trend.least, trend.most) == ((1, 4.0), (4, 3.0), 2.0, 4.0)
    assert (trend.count, trend.bad_count, trend.first_bad) == (5, 2, 3)


CLOSED = [CLOSED_BY_OPTIMIZER if name == "closed_by" else 0 for name in STEP_FIELDS]


class Waiting:
    """Stands in for an event of the device: it has not happened until it is told to."""

    def __init__(self) -> None:
        self.is_over = False

    def query(self) -> bool:
        return self.is_over

    def synchronize(self) -> None:
        self.is_over = True


def test_values_of_a_device_are_not_waited_for() -> None:
    seen: list[tuple[int, float]] = []
    late = LateValues(lambda step, value: seen.append((step, value)))
    first, second = Waiting(), Waiting()
    late._travelling.extend([([1, 2], torch.tensor([5.0, 4.0]), first), ([3], torch.tensor([3.0]), second)])
    late._take(wait=False)
    assert seen == []
    first.is_over = True
    late._take(wait=False)
    assert seen == [(1, 5.0), (2, 4.0)]
    late.finish()
    assert seen[-1] == (3, 3.0)


def train(watch: NumbersWatch, steps: int, bad: set[int]) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    backward = watch.losses.wrap_backward(lambda roots: torch.autograd.backward(roots))
    step_of = wrap_step(watch.gradients, type(optimizer).step)
    for number in range(1, steps + 1):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        backward((loss * (math.nan if number in bad else 1.0),))
        step_of(optimizer)
        if number in bad:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(0.1)
        watch(None, CLOSED)


def test_what_is_not_finite_is_told_while_it_happens() -> None:
    told: list[dict] = []
    watch = NumbersWatch(told.append)
    train(watch, 20, bad={3, 5})
    health = [one for one in told if one["kind"] == "health"]
    bad_loss = [one["message"] for one in health if one["id"] == "bad-loss"]
    assert bad_loss == [
        "the loss was not finite in optimizer step 3",
        "the loss was not finite in at least 2 steps, first in optimizer step 3",
    ]
    assert any("norm of the gradients was not finite in optimizer step 3" in one["message"] for one in health)
    watch.finish()
    watch.finish()
    (last,) = [one for one in told if one.get("id") == "numbers"]
    assert "not finite in 2 of 20 steps" in last["message"]


def test_a_healthy_training_has_one_line(monkeypatch) -> None:
    told: list[dict] = []
    watch = NumbersWatch(told.append)
    train(watch, 12, bad=set())
    watch.finish()
    first, newest, line = told
    assert (first["name"], first["step"], newest["step"]) == ("loss", 1, 12)  # within a second: the first, the last
    assert newest == {"kind": "metric", "name": "loss", "value": watch.loss.last[1], "step": 12, "watched": True}
    assert line["level"] == "info"
    assert "finite in all of 12 steps" in line["message"]
    assert "8 steps checked" in line["message"]


def test_a_failure_of_its_own_ends_only_the_watch(monkeypatch) -> None:
    monkeypatch.setattr(numbers.LateValues, "add", failing(RuntimeError("planted")))
    watch = NumbersWatch([].append)
    train(watch, 3, bad=set())
    assert watch.loss.count == 0
    assert any("planted" in failure for failure in numbers.GUARD.failures)
    numbers.GUARD.failures.clear()


def test_a_device_that_failed_costs_only_the_last_values(monkeypatch) -> None:
    told: list[dict] = []
    watch = NumbersWatch(told.append)
    train(watch, 4, bad=set())

    monkeypatch.setattr(numbers.LateValues, "finish", failing(RuntimeError("device-side assert")))
    watch.finish()
    line = told[-1]
    assert "finite in all of 4 steps" in line["message"]
    assert any("device-side assert" in failure for failure in numbers.GUARD.failures)
    numbers.GUARD.failures.clear()
