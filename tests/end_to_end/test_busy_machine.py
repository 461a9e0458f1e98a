"""A training beside programs that hold the cores: the report says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .training import run_script

SPIN = "while True: pass"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the kernel does not tell who uses the cores")
def test_programs_that_held_the_cores_are_a_warning(tmp_path: Path) -> None:
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        ran = run_script(
            tmp_path,
            """
            import time
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            end_s = time.monotonic() + 3.0
            while time.monotonic() < end_s:
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step()
            """,
        )
    finally:
        for one in others:
            one.kill()
            one.wait()
    warnings = [one["message"] for one in ran.seen["health"] if one["level"] == "warning"]
    (said,) = [message for message in warnings if message.startswith("other programs used ")]
    assert "during the steady steps" in said
