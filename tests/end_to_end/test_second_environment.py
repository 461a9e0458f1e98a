"""A training whose Python has torch and nothing else: hotloop works fully without being installed there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .training import run_command, run_plain, write_script

BARE = Path(__file__).parents[2] / ".venv-bare" / "bin" / "python"

LOOP = """
import sys, time
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 640
    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.randn(32), i % 8
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for a, b in DataLoader(Slow(), batch_size=8):
    optimizer.zero_grad()
    loss_of(model(a), b).backward()
    optimizer.step()
print(sys.prefix, "numpy" in sys.modules, "rich" in sys.modules)
"""


@pytest.mark.skipif(not BARE.exists(), reason="the second environment is not there (make test creates it)")
def test_everything_works_where_hotloop_is_not_installed(tmp_path: Path) -> None:
    packages = subprocess.run([BARE, "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert "hotloop" not in packages
    assert "numpy" not in packages
    script = write_script(tmp_path, LOOP)
    plain = run_plain(tmp_path, str(BARE), script.name)
    ran = run_command(tmp_path, str(BARE), script.name, options=("-q",))
    assert ran.exit_code == 0
    assert (ran.stdout, ran.stderr) == (plain.stdout, plain.stderr)
    assert ran.seen["step"]["count"] == 80
    first = ran.seen["findings"][0]
    assert first["rule"] == "input-bound"
    assert Path(first["where"][0]["file"]).name == "train.py"
    # What the machine's pace did to the steps is told as well: of the recording itself nothing failed.
    failures = ("failed", "not observed", "no longer recorded", "lost", "do not add up")
    assert not [h for h in ran.seen["health"] if any(one in h["message"] for one in failures)]
