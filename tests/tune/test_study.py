"""What ends a tuning early, and the command that goes on."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.change.tune import study
from hotloop.change.tune.attempt import stop_early
from hotloop.change.tune.outcome import reveal_next
from hotloop.change.tune.study import CodeChanged, Progress, Request, TuneError, drop_outputs
from hotloop.change.tune.trials import Bench, TrialLimits
from hotloop.change.tune.tuner import Arm, BaselineFailed
from hotloop.change.tune.workspace import SMALL_BYTES, plan_workspace
from hotloop.core.report import Report
from hotloop.core.strategy import Strategy
from tests.tune.records import Machine, candidate, measurement, ok


def test_linked_code_that_changed_ends_the_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = tmp_path / "source" / "large.py"
    large.parent.mkdir()
    large.write_bytes(b"#" * (SMALL_BYTES + 1))
    bench = Bench(
        command=("python", "train.py"),
        plan=plan_workspace(large.parent),
        folder=tmp_path,
        environment=lambda strategy, run_folder, options: nullcontext({}),
        measure=lambda run_folder: None,
    )
    limits = TrialLimits(steps=40, seconds=None, timeout_s=30.0, start_s=30.0, stall_s=30.0)
    tuning = study.Study(bench=bench, limits=limits)
    monkeypatch.setattr(study, "run_trial", lambda *arguments: ok(measurement()))
    assert tuning.run_strategy(Strategy(), 0) == ok(measurement())
    large.write_bytes(b"\n" * (SMALL_BYTES + 1))
    with pytest.raises(CodeChanged, match=r"large\.py changed during tuning"):
        tuning.run_strategy(Strategy(), 1)


def request(folder: Path, *command: str, variables: dict[str, str] | None = None, **changes: Any) -> Request:
    settings: dict[str, Any] = {
        "command": command or ("python", "train.py"),
        "variables": variables or {},
        "cwd": folder,
        "folder": folder / "out",
        "budget_s": 60.0,
        "goal": "speed",
    }
    return Request(**{**settings, **changes})


def progress_of(arm: Arm) -> Progress:
    campaign = Machine().campaign()
    campaign.baseline, campaign.arms = [measurement()], [arm]
    return Progress(campaign=campaign)


def test_a_baseline_that_fails_late_is_a_warning_beside_what_was_compared(tmp_path: Path) -> None:
    nothing = progress_of(Arm(candidate=candidate("a")))
    with pytest.raises(TuneError, match="crash: why; see the outputs in"):
        stop_early(request(tmp_path), nothing, BaselineFailed("crash: why"))
    compared = progress_of(Arm(candidate=candidate("a"), baseline=[measurement()], own=[measurement()]))
    stop_early(request(tmp_path), compared, BaselineFailed("crash: why"))
    assert compared.campaign is not None
    assert compared.campaign.why_ended == "crash: why"
    assert compared.campaign.arms[0].left_out == "dropped: crash: why"


def test_results_that_the_command_writes_are_no_code_but_its_modules_are(tmp_path: Path) -> None:
    for name in ("results.json", "large.py"):
        (tmp_path / name).write_bytes(b" " * (SMALL_BYTES + 1))
    plan = plan_workspace(tmp_path)
    for name in ("results.json", "large.py"):
        (tmp_path / name).write_bytes(b"\n" * (SMALL_BYTES + 1))
    assert [one.path.name for one in drop_outputs(plan).watched] == ["large.py"]


def test_the_command_that_goes_on_is_the_one_that_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    typed = ("python", "train.py", "--api-key", "abc123", "--lr", "0.1")
    asked = request(tmp_path, *typed, typed=typed, options=("--goal", "memory"))
    words = asked.next_command
    assert words == ("hotloop", "tune", "--budget", "3m", "--goal", "memory", "--", *typed)
    assert request(tmp_path, "python", "x.py").next_command[-2:] == ("python", "x.py")


def test_a_secret_of_the_command_is_for_the_terminal_alone(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {one.name: None for one in fields(Report) if one.default is MISSING}
    report = Report(**nothing)
    command = ("python", "train.py", "--api-key", "abc123")
    asked = request(tmp_path, *command)
    hidden = "hotloop tune --budget 3m -- python train.py --api-key '***'"
    assert reveal_next(asked, replace(report, next_command=hidden)).endswith("--api-key abc123")
    assert reveal_next(asked, replace(report, next_command="hotloop rule straggler")) == ""
    plain = request(tmp_path, *command[:-2])
    assert reveal_next(plain, replace(report, next_command="hotloop tune --budget 3m -- python train.py")) == ""
