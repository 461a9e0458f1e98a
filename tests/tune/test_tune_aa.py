"""The trainer of benchmarks/tune_aa.py: a real step, of which one micro-batch is a known part."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "tune_aa.py"


@pytest.fixture
def tune_aa(monkeypatch: pytest.MonkeyPatch) -> Any:
    """It is a program; its modules import each other as siblings."""
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    spec = importlib.util.spec_from_file_location("tune_aa", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tune_aa", module)
    spec.loader.exec_module(module)
    return module


def test_a_process_tells_its_step_its_neighbours_and_what_a_micro_batch_is_of_it(tune_aa: Any) -> None:
    found = tune_aa.run_process(4)
    assert found.time_s > 0
    assert 0 <= found.others_ratio <= 1
    assert found.pace_ns > 0
    # Four equal parts and an optimizer's step.
    assert 0.1 < found.micro_batch_ratio < 0.25


def test_the_known_difference_is_what_the_processes_measured(tune_aa: Any) -> None:
    row = {"sides": [[[0.01, 0.0, 1e5, 1 / 21]] * 4, [[0.0095, 0.0, 1e5, 1 / 20]] * 4]}
    assert tune_aa._words_of_known([row]).startswith("5.0% (a micro-batch takes 4.8%")
    assert tune_aa._words_of_known([{"baseline_s": [1.0], "candidate_s": [1.0]}]) == "5 % (calibrated by a sleep)"
