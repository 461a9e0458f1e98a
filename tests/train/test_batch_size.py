"""find_batch_size: trials in their own processes, memory told from other errors, the fastest size is the answer."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.train import batch_size
from hotloop.train.batch_size import (
    BatchSizeError,
    SizeTrial,
    _how_it_ended,
    agree_on,
    find_batch_size,
    memory_that_lacked,
)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The steps, under a name by which the trials' processes can import them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("trial_steps")


def fits(size: int, step_ns: int) -> SizeTrial:
    return SizeTrial(size=size, outcome="fits", step_ns=step_ns, peak_bytes=1)


def test_a_size_that_does_not_fit_ends_the_search(steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def try_size(build: Any, batch_of: Any, size: int, steps: int, timeout_s: float) -> SizeTrial:
        return fits(size, 100) if size <= 8 else SizeTrial(size=size, outcome="out-of-memory", detail="device: full")

    monkeypatch.setattr(batch_size, "_try_size", try_size)
    found = find_batch_size(steps.build_constant, steps.batch_of, least=4, most=64, steps=2)
    assert [(one.size, one.outcome) for one in found.trials] == [
        (4, "fits"),
        (8, "fits"),
        (12, "out-of-memory"),
        (16, "out-of-memory"),
    ]
    assert (found.size, found.largest) == (8, 8)
    assert "device: full" in str(found)


def test_the_fastest_size_is_the_answer_and_not_the_largest(steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "_try_size", lambda b, of, size, steps, s: fits(size, size * 10 + (size > 4) * 99))
    found = find_batch_size(steps.build_constant, steps.batch_of, most=64)
    assert (found.size, found.largest, len(found.trials)) == (1, 16, 5)


def test_a_trial_is_timed_in_its_own_process(steps: Any) -> None:
    found = find_batch_size(steps.build_constant, steps.batch_of, least=8, most=8, steps=2)
    (trial,) = found.trials
    assert trial.step_ns is not None
    assert trial.step_ns >= 2_000_000
    assert trial.peak_bytes is not None


def test_an_allocation_that_the_host_refuses_does_not_fit(steps: Any) -> None:
    with pytest.raises(BatchSizeError, match=r"does not fit: out-of-memory \(host: "):
        find_batch_size(steps.build_constant, steps.batch_of, least=16)


def test_a_killed_trial_does_not_fit(steps: Any) -> None:
    with pytest.raises(BatchSizeError, match=r"does not fit: out-of-memory \(killed by SIGKILL"):
        find_batch_size(steps.build_killed, steps.batch_of, least=2)


def test_another_error_is_raised_with_its_text(steps: Any) -> None:
    with pytest.raises(BatchSizeError, match=r"(?s)batch size 1 failed.*the labels are wrong"):
        find_batch_size(steps.build_wrong, steps.batch_of)


def test_functions_that_do_not_pickle_are_an_error(steps: Any) -> None:
    with pytest.raises(BatchSizeError, match="pickle"):
        find_batch_size(lambda: steps.build_constant(), steps.batch_of)


def test_functions_that_the_trial_cannot_import_are_an_error(steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(Path(__file__).parent)  # other test files put it there as well
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != here])
    with pytest.raises(BatchSizeError, match="No module named 'trial_steps'"):
        find_batch_size(steps.build_constant, steps.batch_of)


@pytest.mark.parametrize(("least", "most", "count"), [(0, 4, 1), (8, 4, 1), (1, 4, 0)])
def test_impossible_arguments_are_refused(steps: Any, least: int, most: int, count: int) -> None:
    with pytest.raises(BatchSizeError, match=r"least=|steps="):
        find_batch_size(steps.build_constant, steps.batch_of, least=least, most=most, steps=count)


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "device"),
        (MemoryError(), "host"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "host"),
        (OSError(12, "Cannot allocate memory"), "host"),
        (RuntimeError("shape mismatch"), None),
        (ValueError("out of memory of my own"), None),
    ],
)
def test_memory_errors_are_told_from_others(error: Exception, where: str | None) -> None:
    assert memory_that_lacked(error) == where


def test_a_crash_is_not_called_memory() -> None:
    assert _how_it_ended(4, -11).outcome == "crashed"
    assert "exited with code 3 without a result" in _how_it_ended(4, 3).detail


def test_ranks_agree_on_the_worst() -> None:
    assert agree_on([fits(4, 10), fits(4, 30)]).step_ns == 30
    worst = agree_on([fits(4, 10), SizeTrial(size=4, outcome="out-of-memory", detail="device: full")])
    assert (worst.outcome, worst.detail) == ("out-of-memory", "rank 1: device: full")
