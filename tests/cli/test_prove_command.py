"""hotloop prove on real processes: a variant that waits, one that trains another model, and two revisions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import main
from hotloop.cli.prove_command import parse_percent, split_commands

SCRIPT = """import sys, time, torch
torch.manual_seed(0); torch.set_num_threads(1)
wait_ms, rate = 0.0, float(sys.argv[1])
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for step in range(60):
    loss = (model(torch.randn(32, 64)) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.002 + wait_ms / 1000)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(place)
    return place


def prove(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["prove", "-q", "--json", "proof.json", "--budget", "5m", *words])
    return code, json.loads((folder / "proof.json").read_text())


def test_another_learning_rate_is_another_model(folder: Path) -> None:
    a, b = ([sys.executable, "train.py", rate] for rate in ("0.01", "0.02"))
    code, proof = prove(folder, *a, "--", *b)
    assert (code, proof["verdict"], proof["guard_status"]) == (1, "refused", "rejected")
    assert [path.name for path in folder.iterdir() if path.is_dir()] == [".hotloop"]
    assert not list((folder / ".hotloop").glob("prove-*"))


def test_a_command_without_a_training_is_compared_with_no_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "sleep.py").write_text("import time; time.sleep(0.1)\n")
    a, b = [sys.executable, "sleep.py"], [sys.executable, "train.py", "0.01"]
    assert main(["prove", "-q", "--budget", "5m", *a, "--", *b]) == 2
    assert "training was seen in B" in capsys.readouterr().err


def test_the_logs_of_a_first_process_that_fails_stay(folder: Path) -> None:
    (folder / "broken.py").write_text("raise SystemExit(7)\n")
    words = [sys.executable, "broken.py"]
    code, proof = prove(folder, *words, "--", *words)
    assert (code, proof["verdict"]) == (3, "cannot tell")
    assert "exit code 7" in proof["reason"]
    assert len(list((folder / ".hotloop").glob("prove-*/A/trials/observed/stderr.log"))) == 1


def test_a_revision_that_waits_is_slower_and_the_proof_can_be_repeated(folder: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], check=True, capture_output=True)

    git("init", "-q")
    git("add", "train.py")
    git("commit", "-qm", "fast")
    (folder / "train.py").write_text(SCRIPT.replace("wait_ms, rate = 0.0", "wait_ms, rate = 20.0"))
    git("commit", "-qam", "slow")
    code, proof = prove(folder, "--git", "HEAD~1..HEAD", "--", sys.executable, "train.py", "0.01")
    assert (code, proof["verdict"]) == (1, "slower")
    assert proof["pairs"] in (4, 6, 8)  # of the looks; the busier the machine, the more
    assert proof["ratio"] > 3
    assert proof["low"] <= proof["ratio"] <= proof["high"]
    assert proof["words"][-3:] == [sys.executable, "train.py", "0.01"]
    assert proof["b"]["change"].endswith("slow")
    worktrees = subprocess.run(["git", "worktree", "list"], check=True, capture_output=True, text=True).stdout
    assert len(worktrees.splitlines()) == 1
    assert main(["report", "proof.json", "--format", "junit"]) == 0


def test_commands_and_percentages() -> None:
    assert split_commands(["python a.py", "--", "python", "b.py"]) == [["python", "a.py"], ["python", "b.py"]]
    assert parse_percent("0.5%") == 0.005
