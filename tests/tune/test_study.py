"""What of a tuning is stored and counts again, what ends it early, and the command that goes on."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.report import Report
from hotloop.core.strategy import Strategy
from hotloop.tune import study
from hotloop.tune.attempt import stop_early
from hotloop.tune.outcome import reveal_next
from hotloop.tune.study import (
    CodeChanged,
    Progress,
    Request,
    Store,
    Study,
    TuneError,
    describe_study,
    drop_outputs,
)
from hotloop.tune.trials import CRASH, LOST, OOM, Bench, Ran, TrialLimits
from hotloop.tune.tuner import Arm, BaselineFailed
from hotloop.tune.workspace import SMALL_BYTES, plan_workspace
from tests.tune.records import Machine, candidate, failed, measurement, ok

LIMITS = TrialLimits(steps=40, seconds=None, timeout_s=30.0, start_s=30.0, stall_s=30.0)
FACTS = {"torch": "2.13.0", "executable": "/usr/bin/python3", "device_name": None}


def good(step_ns: float = 1e6) -> Ran:
    return ok(measurement(step_ns))


class Tuning:
    """A store and a bench whose processes are made up: each one answers ``next``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.next, self.count = folder, good(), 0
        (folder / "source").mkdir(exist_ok=True)
        self.bench = Bench(
            command=("python", "train.py"),
            plan=plan_workspace(folder / "source"),
            folder=folder,
            environment=lambda strategy, run_folder, options: nullcontext({}),
            measure=lambda run_folder: None,
        )
        monkeypatch.setattr(study, "run_trial", self._run_trial)
        self.begin()

    def begin(self) -> None:
        """A new tuning with the same store."""
        self.store = Store(self.folder / "tune.sqlite")
        self.study = Study(store=self.store, id="study", bench=self.bench, limits=LIMITS)

    def run(self, key: str, number: int, *, is_reference: bool = False) -> Ran:
        return self.study.run(key, self.bench, Strategy(), number, is_reference=is_reference)

    def _run_trial(self, *arguments: Any) -> Ran:
        self.count += 1
        return self.next


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tuning:
    return Tuning(tmp_path, monkeypatch)


def test_a_complete_tuning_runs_nothing_again(made_up: Tuning) -> None:
    for number in range(3):
        made_up.run("unchanged", number, is_reference=True)
        made_up.run("a", number)
    made_up.begin()
    for number in range(3):
        assert made_up.run("unchanged", number, is_reference=True) == good()
        assert made_up.run("a", number) == good()
    assert made_up.count == 6


def test_what_is_stored_stands_no_more_beside_what_runs_now(made_up: Tuning) -> None:
    for number in range(3):
        made_up.run("unchanged", number, is_reference=True)
    made_up.next = failed(OOM)
    made_up.run("greedy", 0)
    made_up.begin()
    made_up.next = good(2e6)
    assert made_up.run("unchanged", 0, is_reference=True) == good(), "nothing of today ran so far"
    made_up.run("a", 0)
    assert made_up.run("unchanged", 1, is_reference=True) == good(2e6)
    assert made_up.run("greedy", 0) == failed(OOM), "a failure is no time to compare"
    made_up.begin()
    assert [made_up.run("unchanged", number).measured for number in (0, 1)] == [good().measured, good(2e6).measured]
    assert made_up.count == 6


def test_a_failure_of_the_unchanged_command_is_not_kept(made_up: Tuning) -> None:
    made_up.next = failed(CRASH)
    assert made_up.run("unchanged", 0, is_reference=True).ended == CRASH
    made_up.store.put("study", "unchanged", 1, failed(CRASH))
    made_up.begin()
    made_up.next = good()
    assert made_up.run("unchanged", 0, is_reference=True) == good()
    made_up.begin()
    assert made_up.run("unchanged", 1, is_reference=True) == good()


def test_what_was_lost_is_not_kept_and_what_failed_is(made_up: Tuning) -> None:
    for kind, kept in ((LOST, 0), (CRASH, 1)):
        made_up.next = failed(kind)
        made_up.run(kind, 0)
        assert (made_up.store.get("study", kind, 0) is not None) == kept


def test_linked_code_that_changed_ends_the_tuning_and_its_process_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    large = tmp_path / "source" / "large.py"
    large.write_bytes(b"#" * (SMALL_BYTES + 1))
    made_up = Tuning(tmp_path, monkeypatch)
    made_up.run("a", 0)
    large.write_bytes(b"\n" * (SMALL_BYTES + 1))
    with pytest.raises(CodeChanged, match=r"large\.py changed during tuning"):
        made_up.run("a", 1)
    assert made_up.store.get("study", "a", 1) is None


def request(folder: Path, *command: str, variables: dict[str, str] | None = None, **changes: Any) -> Request:
    settings: dict[str, Any] = {
        "command": command or ("python", "train.py"),
        "variables": variables or {},
        "cwd": folder,
        "folder": folder / "out",
        "store": folder / "out" / "tune.sqlite",
        "budget_s": 60.0,
        "goal": "speed",
    }
    return Request(**{**settings, **changes})


def test_a_study_is_the_training_and_not_the_login(tmp_path: Path) -> None:
    def study_of(variables: dict[str, str], goal: str = "speed", **facts: Any) -> str:
        asked = request(tmp_path, variables=variables, goal=goal)
        return describe_study(asked, "code", {**FACTS, **facts})

    same = study_of({"BATCH": "64"})
    login = {"SSH_TTY": "/dev/pts/3", "PWD": "/x", "SHLVL": "2", "_": "/bin/x", "TERM": "xterm", "TMUX": "1"}
    assert study_of({"BATCH": "64", **login, "XDG_SESSION_ID": "4", "SLURM_JOB_ID": "9"}) == same
    others = [
        study_of({"BATCH": "256"}),
        study_of({"BATCH": "64", "SLURM_NTASKS": "4"}),
        study_of({"BATCH": "64"}, torch="2.14.0"),
        study_of({"BATCH": "64"}, executable="/other/python"),
        study_of({"BATCH": "64"}, device_name="H200"),
        study_of({"BATCH": "64"}, goal="memory"),
    ]
    assert len({same, *others}) == 1 + len(others)


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
    assert compared.warnings[0].startswith("ended early: crash: why; see the outputs in")


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
    first = (*typed, "--batch", "8")  # with the arguments of a matrix's first configuration
    asked = request(tmp_path, *first, typed=typed, options=("--matrix", "my grid.toml"))
    words = asked.next_command
    assert words == ("hotloop", "tune", "--budget", "3m", "--matrix", "my grid.toml", "-o", "out", "--", *typed)
    assert request(tmp_path, "python", "x.py").next_command[-2:] == ("python", "x.py")


def test_a_secret_of_the_command_is_for_the_terminal_alone(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {one.name: None for one in fields(Report) if one.default is MISSING}
    report = Report(**nothing)
    command = ("python", "train.py", "--api-key", "abc123")
    asked = request(tmp_path, *command, store=tmp_path / "tune.sqlite")
    hidden = "hotloop tune --budget 3m -- python train.py --api-key '***'"
    assert reveal_next(asked, replace(report, next_command=hidden)).endswith("--api-key abc123")
    assert reveal_next(asked, replace(report, next_command="hotloop rule straggler")) == ""
    plain = request(tmp_path, *command[:-2], store=tmp_path / "tune.sqlite")
    assert reveal_next(plain, replace(report, next_command="hotloop tune --budget 3m -- python train.py")) == ""
