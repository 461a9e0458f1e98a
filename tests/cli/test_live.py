from __future__ import annotations

import io
import json
import subprocess
import sys
import time
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


def test_the_use_of_the_device_stands_in_the_line_else_that_of_the_cores(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    program = str(Path(sys.executable).with_name("hotloop"))
    command = [program, "run", "--name", "one", "--no-probe", "--no-deep", "-q", "--"]
    subprocess.run([*command, sys.executable, "train.py"], cwd=tmp_path, check=False, timeout=60)
    folder = tmp_path / ".hotloop" / "one"

    def shown() -> str:
        stream = io.StringIO()
        line = LiveLine(folder, stream, lambda: 0.5)
        for _ in range(10 * EVERY_TICKS):
            line()
        return stream.getvalue()

    assert shown().endswith("; CPU 50%\n")
    devices = [{"index": 0, "utilization_ratio": 0.43}]
    (folder / "devices.jsonl").write_text(json.dumps({"unix_s": time.time(), "devices": devices}) + "\n")
    assert shown().endswith("; GPU 43%\n")
