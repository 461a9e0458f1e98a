from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from hotloop.cli.live import EVERY_TICKS, LiveLine

TRAINING = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(7):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_backward_before_the_optimizer_is_seen_is_no_step_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    program = str(Path(sys.executable).with_name("hotloop"))
    command = [program, "run", "--name", "one", "--no-probe", "--no-deep", "-q", "--"]
    subprocess.run([*command, sys.executable, "train.py"], cwd=tmp_path, check=False, timeout=60)
    stream = io.StringIO()
    line = LiveLine(tmp_path / ".hotloop" / "one", stream)
    for _ in range(10 * EVERY_TICKS):
        line()
    assert "hotloop: 7 optimizer steps, " in stream.getvalue()
