"""Failures of the agent's own are counted; a person's are not ours to swallow."""

from __future__ import annotations

import pytest

from hotloop.observe import guard as module
from hotloop.observe.guard import MOST_FAILURES, Guard, guarded
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
