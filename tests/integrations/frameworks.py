"""A script in the environment of the frameworks -> what it prints as JSON on its last line."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"

needs_frameworks = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-frameworks (make frameworks creates it)")

HEAD = """
import json, os, time
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 320
    def __getitem__(self, index):
        time.sleep(0.004)  # the planted fault: 64 ms a batch of 16 in the main process
        return {"features": torch.ones(32), "labels": index % 8}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 8)
    def forward(self, features, labels):
        return {"loss": nn.functional.cross_entropy(self.inner(features), labels)}
def show(report, **more):
    if report is not None:
        more |= {"steps": report.step.count, "rules": [one.rule for one in report.findings],
                 "ranks": len(report.ranks)}
    print(json.dumps(more))
"""


@dataclass(frozen=True)
class Done:
    """What a script printed; ``shown`` is its last line."""

    shown: dict[str, Any]
    stdout: str
    stderr: str


def run(folder: Path, text: str, *prefix: str, head: str = HEAD) -> Done:
    """Run ``text`` in ``folder``, with hotloop importable as if installed; ``prefix`` are options before the script."""
    script = folder / "train.py"
    script.write_text(head + textwrap.dedent(text))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HOTLOOP_", "PYTHON"))}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"ACCELERATE_USE_CPU": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [str(PYTHON), *prefix, script.name], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    shown = next((line for line in reversed(done.stdout.splitlines()) if line.startswith('{"')), "{}")
    return Done(json.loads(shown), done.stdout, done.stderr)


def run_folders(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / ".hotloop").iterdir() if path.is_dir())
