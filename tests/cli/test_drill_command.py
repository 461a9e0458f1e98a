"""hotloop drill on real processes: one that saves at a signal, one that starts again, and checkpoints of the user."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import main
from hotloop.pipeline import drilling

SCRIPT = """import os, signal, sys, time, torch
torch.set_num_threads(1); torch.manual_seed(0)
way, path, asked = sys.argv[1], sys.argv[2], []
if way == "handles":
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
begin = 0
if os.path.exists(path) and way != "never loads":
    kept = torch.load(path)
    model.load_state_dict(kept["model"]); optimizer.load_state_dict(kept["optimizer"])
    begin = kept["step"]
for step in range(begin, 24):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.03)
    if asked or (way != "handles" and step % 5 == 4):
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(kept, path + ".tmp"); os.replace(path + ".tmp", path)
    if asked:
        sys.exit(75)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(place)
    monkeypatch.setattr(drilling, "AIMS", ("step",))  # each of the others takes two processes more
    return place


def drill(folder: Path, *words: str, signal: str = "TERM", options: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "train.py", *words]
    code = main(["drill", "-q", "--json", "drill.json", "--signal", signal, "--budget", "1h", *options, "--", *command])
    return code, json.loads((folder / "drill.json").read_text())


def test_a_training_that_saves_at_the_signal_loses_nothing(folder: Path) -> None:
    outside = folder.parent / "checkpoints"
    outside.mkdir()
    code, report = drill(folder, "handles", str(outside / "a.pt"), options=("--checkpoints", str(outside)))
    assert (code, report["verdict"], report["repeats"]) == (0, "pass", "exact")
    judged = report["signals"][0]
    assert (judged["saved"], judged["steps_lost"], judged["exit_code"]) == (True, 0, 75)
    assert judged["moments"][0]["resumed_at_step"] == judged["moments"][0]["steps_done"]
    assert report["save_seconds"]["n"] == 1
    assert outside.is_dir()
    assert not outside.is_symlink()
    assert not list(outside.iterdir())
    assert sorted(path.name for path in folder.iterdir()) == [".hotloop", "drill.json", "train.py"]
    assert not list((folder / ".hotloop").glob("drill-*"))


def test_a_training_that_starts_again_beside_its_checkpoint_fails(folder: Path) -> None:
    code, report = drill(folder, "never loads", "out/a.pt", signal="KILL")
    assert (code, report["verdict"], report["interval_steps"]) == (1, "fail", 5)
    assert "from the beginning although there is a checkpoint" in report["reason"]
    assert report["signals"][0]["exit_code"] == 137
    assert not (folder / "out").exists()
    assert main(["report", "drill.json", "--format", "junit"]) == 0
    assert main(["report", "drill.json", "--format", "markdown"]) == 0


def test_a_checkpoint_of_the_user_outside_of_the_folder_stays(folder: Path) -> None:
    mine = folder.parent / "mine" / "a.pt"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    code, report = drill(folder, "never loads", str(mine))
    assert (code, report["verdict"], mine.read_bytes()) == (3, "cannot tell", b"mine")
    assert f"--checkpoints {mine.parent}" in report["reason"]
