"""`hotloop tune` on an unmodified script: baseline, trials, and the files that it leaves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.core.strategy import load_strategy

from .training import HOTLOOP, clean_environment

SCRIPT = """\
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(40)])
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for i in range(1000000):
    x = torch.randn(8, 16)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if i % 300 == 0:
        torch.save(model.state_dict(), "last.pt")
"""


def test_a_training_without_end_is_tuned_within_its_budget(tmp_path: Path) -> None:
    """The budget is enough for the baseline alone: nothing is proven, everything is written, nothing is changed."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [
            *HOTLOOP,
            "tune",
            "--no-probe",
            "--budget",
            "2s",
            "-o",
            "out",
            "--apply",
            "--format",
            "markdown",
            "--",
            sys.executable,
            "train.py",
        ],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out/report.json").read_text())
    tune = report["tune"]
    assert report["step"]["steady_count"] >= 20
    (found,) = [one for one in report["findings"] if one["rule"] == "slow-optimizer"]
    assert found["where"][0]["file"] == str(tmp_path / "train.py")
    (trial,) = [one for one in tune["trials"] if one["id"] == "fused-optimizer"]
    assert (trial["verdict"], trial["n"], trial["speedup_ratio"]) == ("cannot tell", 0, None)
    assert "budget" in trial["reason"]
    assert tune["baseline"]["n"] == 1
    assert tune["baseline"]["losses_repeat"] is True
    assert not load_strategy(tmp_path / "out/fast.toml")
    assert (tmp_path / "out/patch.diff").read_text() == ""
    assert "What was tried" in (tmp_path / "out/report.html").read_text()
    assert "\n## No change was proven faster; fast.toml is empty." in done.stderr
    assert "nothing was applied: no change to the source was proven" in done.stderr
    assert (tmp_path / "train.py").read_text() == SCRIPT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "train.py"]
    assert "fast.toml, patch.diff, report.html and report.json are in out" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Next: `hotloop tune --budget 1m --no-probe -- ")


RANKS = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
while True:
    x = torch.randn(8, 16)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def test_ranks_under_torchrun_stop_together_and_repeat_their_losses(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    launch = (str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2")
    done = subprocess.run(
        [*HOTLOOP, "tune", "--no-probe", "--budget", "2s", "-o", "out", "--", *launch, "ranks.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert [rank["world_size"] for rank in report["ranks"]] == [2, 2]
    assert any(one["techniques"] == ["ddp-settings"] for one in report["tune"]["trials"])
    assert report["tune"]["baseline"]["losses_repeat"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "soon", "--", "true"), "give a time such as"),
        ((), "no command to tune"),
        (("-o", "full", "--", "true"), "is not a tuning folder"),
    ],
)
def test_wrong_settings_start_nothing(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("mine")
    assert main(["tune", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["thesis.txt"]
