"""A training's name -> its result and recording, from a process of its own, with or without the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.agent.attach.child import attach_environment
from hotloop.agent.replay.collector import Collector

from .reading import Recording, check_rows, read_run

TRAININGS = Path(__file__).with_name("trainings.py")
LIMIT_S = 150


@dataclass(frozen=True)
class Ran:
    """``recording`` is None without the agent. ``stderr`` is what the training itself printed there."""

    result: dict[str, Any]
    recording: Recording | None
    stderr: str

    @property
    def seen(self) -> Recording:
        assert self.recording is not None
        return self.recording

    def device_times(self) -> dict[int, dict[str, Any]]:
        """The facts device_times by row."""
        return {fact["row"]: fact for fact in self.seen.of_kind("device_times")}


def train(name: str, device: str, folder: Path, *, attached: bool, deep: bool = False) -> Ran:
    folder = folder / f"{name}-{'with' if attached else 'without'}"
    folder.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HOTLOOP_", "PYTHON", "PYTEST_"))}
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")  # what is cached is not warned of
    (folder / "processes").mkdir()
    collector = Collector(folder / "processes")
    if attached:
        options = {"deep": deep, "address": collector.address, "token": collector.token}
        environment = attach_environment(environment, folder, options)
    out = folder / "result.json"
    done = subprocess.run(
        [sys.executable, str(TRAININGS), name, device, str(out)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    collector.stop()
    assert done.returncode == 0, f"{name} on {device}, attached {attached}: {done.stderr[-3000:]}"
    recording = None
    if attached:
        recording = read_run(folder)
        check_rows(recording.rows)
        failures = [f for f in recording.of_kind("health") if "agent failed" in f["message"]]
        assert not failures, failures
    return Ran(result=json.loads(out.read_text()), recording=recording, stderr=done.stderr)


def train_both(name: str, device: str, folder: Path, *, deep: bool = False) -> tuple[Ran, Ran]:
    """Without the agent, then with it."""
    return train(name, device, folder, attached=False), train(name, device, folder, attached=True, deep=deep)
