"""Scripts on two gloo ranks -> what rank 0 wrote."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run_ranks(script: Path, folder: Path) -> dict[str, Any]:
    """The JSON that the script writes into the file which is its argument."""
    out = folder / "found.json"
    done = subprocess.run([*TORCHRUN, script, out], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(out.read_text())
    return result
