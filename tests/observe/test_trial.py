"""A trial's process ends after its steps or its time, and not while torch.compile still settles."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hotloop.agent.observe import trial
from hotloop.agent.observe.trial import TrialWatch
from hotloop.core.recording import FIELD, STEP_FIELDS

STEP_S = 0.5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now_ns=1)
    clock.monotonic_ns = lambda: clock.now_ns
    monkeypatch.setattr(trial, "time", clock)
    return clock


def steps_until_it_stops(
    clock: SimpleNamespace, folder: Path, compiling: range, monkeypatch: pytest.MonkeyPatch, **limits: float
) -> int:
    """How many steps of STEP_S are trained, of which those in ``compiling`` compile."""
    stopped: list[int] = []
    watch = TrialWatch({"folder": str(folder), **limits}, end_session=lambda: None)
    monkeypatch.setattr(watch, "_stop", lambda: stopped.append(1))
    monkeypatch.setattr(watch, "pace", lambda session, row: None)
    row = [0] * len(STEP_FIELDS)
    for number in range(1, 1000):
        row[FIELD["compile_ns"]] = int(number in compiling)
        watch(None, row)
        clock.now_ns += int(STEP_S * 1e9)
        if stopped:
            return number
    raise AssertionError("it never stopped")


def test_a_process_ends_with_its_time(clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first step is the price of compiling, and says nothing of what follows.
    assert steps_until_it_stops(clock, tmp_path, range(1, 2), monkeypatch, seconds=5.0, least_steps=3) == 12


def test_it_goes_on_until_compilation_has_settled(
    clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = 8
    assert steps_until_it_stops(clock, tmp_path, range(1, last + 1), monkeypatch, seconds=5.0, least_steps=3) == 18


def test_it_does_not_wait_for_ever_for_compilation(
    clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps_until_it_stops(clock, tmp_path, range(1000), monkeypatch, seconds=5.0, least_steps=3) == 32


def test_a_process_of_so_many_steps_ends_with_them(
    clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps_until_it_stops(clock, tmp_path, range(1000), monkeypatch, steps=7) == 7
