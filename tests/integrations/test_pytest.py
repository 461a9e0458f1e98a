"""The pytest plugin, in sessions of the real pytest and on recorded launches."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotloop.core.check import CheckVerdict
from hotloop.core.errors import UsageError
from hotloop.integrations.pytest import RecordedLaunches, TrainingRecorder
from tests.recordings import record

SESSION = """
import time
import torch

def train(steps, wait_s):
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 4 * steps

        def __getitem__(self, index):
            time.sleep(wait_s)
            return torch.ones(64)

    for batch in torch.utils.data.DataLoader(Samples(), batch_size=4):
        model(batch).square().mean().backward()
        optimizer.step()

def test_waits(hotloop):
    launches = hotloop.watch(train, 30, 0.005)
    assert launches.reports[0].step.count == 30
    launches.assert_finding("input-bound", severity="high")
    launches.assert_peak_memory(100_000)
    launches.assert_no_findings()
"""


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_session_records_a_function_in_a_fresh_process_and_shows_the_findings(tmp_path: Path) -> None:
    (tmp_path / "test_speed.py").write_text(SESSION)
    done = run_pytest(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = done.stdout
    assert "hotloop: findings in every launch (1 recorded): 1" in shown  # the step count and input-bound were right
    assert "high: every step waits" in shown
    assert "[input-bound]" in shown
    assert "slow-start" not in shown  # imports are not what a test of a few steps is about
    assert "test_speed.py:" in shown
    assert not (tmp_path / ".hotloop").exists()


def test_a_session_without_the_fixture_loads_nothing_of_hotloop_but_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_else.py").write_text(
        "import sys\n"
        "def test_modules():\n"
        "    found = sorted(name for name in sys.modules if name.partition('.')[0] in ('hotloop', 'torch', 'numpy'))\n"
        "    assert found == ['hotloop', 'hotloop.integrations', 'hotloop.integrations.pytest']\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert [one.value for one in entry_points(group="pytest11", name="hotloop")] == ["hotloop.integrations.pytest"]


def test_what_cannot_be_launched_is_refused_and_a_failure_is_shown(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = TrainingRecorder(request, tmp_path)
    for function, launches in ((lambda: None, 1), (len, 1), (run_pytest, 0)):
        with pytest.raises(UsageError, match="top level of a module, and at least 1 launch"):
            recorder.watch(function, launches=launches)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])
    with pytest.raises(pytest.fail.Exception, match=r"(?s)raise_error failed with exit code 1:.*nothing to train"):
        recorder.watch(raise_error, "nothing to train")
    with pytest.raises(pytest.fail.Exception, match=r"failed with exit code -9:\nit took more than 0\.2 s"):
        recorder.watch(raise_error, "", timeout_s=0.2)


def raise_error(text: str) -> None:
    raise ValueError(text)


Launch = Callable[..., RecordedLaunches]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Launches whose forwards have these means, as a test that asks for them sees them."""

    numbers = count()

    def make(*forwards_ms: float, updates: bool = False) -> RecordedLaunches:
        folders = []
        for forward in forwards_ms:
            number = next(numbers)
            draw = random.Random(number)
            times_ms = [forward + draw.gauss(0, 0.05) for _ in range(120)]
            folders.append(record(tmp_path / f"launch-{number}", times_ms, samples=8))
        node = SimpleNamespace(nodeid="test_speed.py::test_step", user_properties=[])
        config = SimpleNamespace(getoption=lambda name: updates)
        request = SimpleNamespace(path=tmp_path / "test_speed.py", node=node, config=config)
        return RecordedLaunches(request, folders)  # type: ignore[arg-type]

    return make


def test_step_times_are_judged_by_the_spread_between_launches(launch: Launch, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"no baseline .*base\.json; write it: pytest --hotloop-upd"):
        launch(4.0, 4.05).assert_step_time("base.json")
    assert launch(4.0, 4.05, 3.95, updates=True).assert_step_time("base.json") is None
    assert (tmp_path / "base.json").exists()
    same = launch(4.01, 4.02, 3.99)
    judged = same.assert_step_time("base.json")
    assert judged is not None
    assert judged.verdict is CheckVerdict.PASS
    assert judged.low_ratio is not None
    assert judged.high_ratio is not None
    assert judged.low_ratio < 0 < judged.high_ratio < 0.05
    ((name, text),) = same._request.node.user_properties
    assert name == "hotloop"
    assert text.startswith("step_ns pass: worse by ")
    assert "3 baseline launches and 3 of this run show the noise between launches" in text
    with pytest.raises(
        pytest.fail.Exception, match=r"step_ns regression: worse by \+1\d\.\d% to \+1\d\.\d%, tolerance"
    ):
        launch(5.5, 5.55, 5.45).assert_step_time("base.json")
    assert launch(5.5, 5.55, 5.45).assert_step_time("base.json", tolerance_ratio=0.5) is not None


def test_too_much_noise_is_a_warning_and_one_launch_an_error(launch: Launch) -> None:
    launch(4.0, 5.0, updates=True).assert_step_time("base.json")
    with pytest.warns(UserWarning, match="inconclusive, because of too much noise between launches"):
        launch(4.4, 4.6).assert_step_time("base.json")
    with pytest.raises(pytest.fail.Exception, match="step_ns inconclusive"):
        launch(4.4, 4.7).assert_step_time("base.json", strict=True)
    with pytest.raises(UsageError, match="one launch does not show the noise between launches"):
        launch(4.4).assert_step_time("base.json")
    with pytest.raises(UsageError, match="one launch does not show the noise between launches"):
        launch(4.4, updates=True).assert_step_time("other.json")


def test_findings_count_if_every_launch_has_them(launch: Launch) -> None:
    launches = launch(4.0, 4.0)
    assert "input-bound" in {one.rule for one in launches.findings}  # of low severity
    launches.assert_no_findings()
    launches.assert_finding("input-bound")
    with pytest.raises(pytest.fail.Exception, match="no finding of input-bound with severity high or above"):
        launches.assert_finding("input-bound", severity="high")
    with pytest.raises(pytest.fail.Exception, match=r"findings in every launch \(2 recorded\): 1"):
        launches.assert_no_findings("input-bound")
    launches.assert_no_findings(severity="info", tips=True, ignore={one.rule for one in launches.findings})
    launches.reports = (replace(launches.reports[0], findings=()), launches.reports[1])
    assert launches.findings == ()
    with pytest.raises(pytest.fail.Exception, match="no finding of gc-pause with severity info or above"):
        launches.assert_finding("gc-pause")
    unknown = launches.reports[-1].skipped[0].rule
    with pytest.raises(pytest.fail.Exception, match=f"{unknown} was not judged: "):
        launches.assert_no_findings(unknown)
    with pytest.raises(UsageError, match="unknown severity 'serious'"):
        launches.assert_no_findings(severity="serious")
    with pytest.raises(UsageError, match="did you mean 'input-bound'"):
        launches.assert_no_findings(ignore=["input-bond"])
    with pytest.raises(pytest.fail.Exception, match="peak memory is unknown, but at most 10 MiB"):
        launches.assert_peak_memory(10)
