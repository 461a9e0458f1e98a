"""Failures of the agent's own are counted; a person's are not ours to swallow."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from hotloop.agent.observe import guard as module
from hotloop.agent.observe.guard import MOST_FAILURES, Guard, guarded
from hotloop.agent.observe.stack_access import current_thread_state, describe_access
from tests.planted import failing


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Guard:
    made = Guard()
    monkeypatch.setattr(module, "GUARD", made)
    return made


def test_a_failure_is_counted_and_told_once(guard: Guard) -> None:
    told: list[str] = []
    guard.tell = told.append
    fail = guarded(failing(ValueError("planted")))
    assert [fail() for _ in range(3)] == [None] * 3
    assert guard.failures == {"fail: ValueError: planted": 3}
    assert told == ["fail: ValueError: planted"]


def test_failures_that_differ_are_bounded(guard: Guard) -> None:
    for number in range(10 * MOST_FAILURES):
        guard.record(f"place {number}", ValueError("x" * 1_000))
    assert len(guard.failures) == MOST_FAILURES
    assert max(map(len, guard.failures)) == 300


def test_what_a_persons_handler_raised_meanwhile_is_raised_again(guard: Guard) -> None:
    def their_handler() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        guarded(their_handler)()
    assert guard.failures == {}


def test_an_end_of_the_program_passes(guard: Guard) -> None:
    for error in (KeyboardInterrupt(), SystemExit(3)):
        with pytest.raises(type(error)):
            guarded(failing(error))()  # type: ignore[arg-type]


def test_what_is_asked_of_tensors_reaches_no_mode_of_the_scripts() -> None:
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    @guarded
    def look(tensor: torch.Tensor) -> tuple[int, torch.dtype]:
        return tensor.numel(), tensor.dtype

    with Mode():
        assert look(torch.ones(3)) == (3, torch.float32)
    assert len(seen) == 1  # torch.ones
    assert look(torch.ones(2)) == (2, torch.float32)


def test_reading_where_the_stack_lies_keeps_no_variable_of_the_callers() -> None:
    class Held:
        pass

    def call() -> weakref.ref[Held]:
        held = Held()
        reference = weakref.ref(held)
        assert describe_access(current_thread_state()) is not None
        return reference

    gc.collect()
    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()


def test_a_guarded_function_lies_one_frame_below_its_caller() -> None:
    """Places of the user's lines are found by counting frames."""

    @guarded
    def names() -> list[str]:
        return [sys._getframe(1).f_code.co_name, sys._getframe(2).f_code.co_name]

    assert names() == ["run", "test_a_guarded_function_lies_one_frame_below_its_caller"]
