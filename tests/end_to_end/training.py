"""Small trainings as text -> what `hotloop run` reports of them, from real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOTLOOP = (sys.executable, "-m", "hotloop")

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
x, y = torch.randn(16, 32), torch.randint(0, 8, (16,))
loss_of = nn.CrossEntropyLoss()
"""


@dataclass(frozen=True)
class Ran:
    """One command under hotloop: its exit code, streams and report (None when none was written)."""

    exit_code: int
    stdout: str
    stderr: str
    report: dict[str, Any] | None
    folder: Path

    @property
    def seen(self) -> dict[str, Any]:
        assert self.report is not None, self.stderr
        return self.report

    def phase(self, name: str) -> dict[str, Any]:
        phase: dict[str, Any] = self.seen["breakdown"][name]
        return phase

    @property
    def run_folder(self) -> Path:
        runs = [p for p in (self.folder / ".hotloop").iterdir() if p.is_dir()]
        assert len(runs) == 1, runs
        return runs[0]


def write_script(folder: Path, text: str, name: str = "train.py", head: str = HEAD) -> Path:
    path = folder / name
    path.write_text(head + textwrap.dedent(text))
    return path


def clean_environment(**changes: str) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HOTLOOP_", "PYTHON", "COV_"))}
    return {**environment, "OMP_NUM_THREADS": "1", **changes}


def run_command(folder: Path, *command: str, options: tuple[str, ...] = (), **changes: str) -> Ran:
    """`hotloop run --no-probe ... -- COMMAND` in ``folder``."""
    target = folder / "report.json"
    done = subprocess.run(
        [*HOTLOOP, "run", "--no-probe", "--json", str(target), *options, "--", *command],
        cwd=folder,
        env=clean_environment(**changes),
        capture_output=True,
        text=True,
        timeout=400,
    )
    report = json.loads(target.read_text()) if target.exists() else None
    return Ran(done.returncode, done.stdout, done.stderr, report, folder)


def run_script(folder: Path, text: str, *options: str, head: str = HEAD, **changes: str) -> Ran:
    script = write_script(folder, text, head=head)
    return run_command(folder, sys.executable, script.name, options=options, **changes)


def run_plain(folder: Path, *command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """The same command without hotloop."""
    return subprocess.run(
        command, cwd=folder, env=clean_environment(**changes), capture_output=True, text=True, timeout=400
    )
