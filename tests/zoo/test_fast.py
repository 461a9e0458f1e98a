"""A few of the zoo's trainings in every test run: faults that a busy machine does not hide, and a healthy one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from harness import Bench, choose_scenarios, describe_machine, run_under_hotloop


def report_of(scenario_id: str, level: int, folder: Path) -> tuple[str, dict[str, Any]]:
    """The planted rule and the report of one run."""

    (scenario,) = (s for s in choose_scenarios("tuned", scenario_id) if s.id == scenario_id)
    command = (str(Path(sys.executable).with_name("hotloop")),)
    bench = Bench(hotloop=command, out=folder, commit="test", machine=describe_machine(), try_others=False)
    report = run_under_hotloop(bench, scenario, level, ("--no-probe",))
    return (scenario.rules or ("",))[0], report


@pytest.mark.parametrize(
    ("scenario_id", "level"),
    [("input-storage", 3), ("ddp-shards", 3)],
)
def test_a_planted_fault_is_the_first_fault_that_is_named(scenario_id: str, level: int, tmp_path: Path) -> None:
    planted, report = report_of(scenario_id, level, tmp_path)
    faults = [f for f in report["findings"] if f["kind"] == "fault"]
    assert faults
    assert faults[0]["rule"] == planted
    # A saving is not sure where others held the cores, and the report says that they did.
    is_crowded = any("other programs used" in one["message"] for one in report["health"])
    assert faults[0]["severity"] in ("medium", "high") or is_crowded
    assert faults[0]["where"]


def test_a_healthy_training_has_no_loud_fault(tmp_path: Path) -> None:
    planted, report = report_of("ok-vae", 0, tmp_path)
    assert planted == ""
    assert [f["rule"] for f in report["findings"] if f["kind"] == "fault" and f["severity"] in ("medium", "high")] == []
