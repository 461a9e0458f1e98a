"""Run folders for tests: as a training's own writer leaves them, at any moment of its life."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from tests.recordings import InstantWriter, step_row

STEP_NS = 10_000_000
DEAD_PID = 1 << 22
"""Larger than any that Linux gives."""


def build_run(
    runs: Path,
    name: str,
    *,
    steps: int = 20,
    ago_s: float = 0.0,
    outcome: dict[str, Any] | None = None,
    closed: bool = False,
    pid: int | None = None,
    command: tuple[str, ...] = ("python", "train.py"),
    started_s: float | None = None,
) -> Path:
    """A run of one process whose last step ended ``ago_s`` ago."""
    folder = runs / name
    (folder / "processes").mkdir(parents=True)
    began_s = time.time() - ago_s - steps * STEP_NS * 1e-9
    manifest = {"schema": "hotloop.run/1", "command": list(command), "started_wall_s": started_s or began_s}
    (folder / "run.json").write_text(json.dumps(manifest))
    process = {"host": socket.gethostname(), "pid": pid or os.getpid(), "rank": 0, "world_size": 1}
    writer = InstantWriter(str(folder / "processes" / f"host-{process['pid']}-0-0.hlr"))
    writer.write_fact({"kind": "process", "t": 0, "anchor_wall_s": began_s, **process})
    for index in range(steps):
        writer.write_row(make_row(index))
        if index % 1000 == 0:
            writer.flush()
    if closed or outcome is not None:
        writer.close()
    if outcome is not None:
        (folder / "outcome.json").write_text(json.dumps(outcome))
    return folder


def make_row(index: int, **other: int) -> list[int]:
    """A step of STEP_NS, a quarter of it forward."""
    known = {"rss_bytes": 1 << 30, "forward_ns": STEP_NS // 4, "backward_ns": STEP_NS - STEP_NS // 4}
    return step_row(index, index * STEP_NS, STEP_NS, **known | other)
