"""python -I ignores PYTHONPATH: where hotloop is installed its .pth attaches; elsewhere the report says why not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .training import run_command, write_script

BARE = Path(__file__).parents[2] / ".venv-bare" / "bin" / "python"
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    loss_of(model(x), y).backward()
    optimizer.step()
"""


def test_isolated_python_is_observed_where_hotloop_is_installed(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-I", "-c", "import site; print(*site.getsitepackages())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert any((Path(folder) / "hotloop_attach.pth").exists() for folder in found.stdout.split())
    ran = run_command(tmp_path, sys.executable, "-I", write_script(tmp_path, LOOP).name)
    assert ran.seen["step"]["count"] == 20


@pytest.mark.skipif(not BARE.exists(), reason="the second environment is not there (make test creates it)")
def test_isolated_python_elsewhere_says_why_nothing_was_seen(tmp_path: Path) -> None:
    ran = run_command(tmp_path, str(BARE), "-I", write_script(tmp_path, LOOP).name)
    assert ran.exit_code == 0
    assert ran.seen["outcome"]["training_seen"] is False
    assert "-I" in ran.stderr
    assert len([line for line in ran.stderr.splitlines() if line.startswith("hotloop")]) == 1


def test_a_python_that_lost_the_environment_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(2.2)\n")
    (tmp_path / "start.sh").write_text(f"env -i {sys.executable} train.py\ntrue\n")
    ran = run_command(tmp_path, "bash", "start.sh")
    assert ran.exit_code == 0
    assert ran.seen["outcome"]["training_seen"] is False
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("hotloop")]
    assert "train.py was started without this environment (env -i" in line
    assert "hotloop.watch()" in line
