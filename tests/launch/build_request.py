"""A LaunchRequest with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from hotloop.ahead.launch.request import LaunchRequest, MeasuredRun
from hotloop.ahead.launch.training_command import read_command


def make_request(*words: str, save_s: float | None = 4.0, step_s: float | None = None, **fields: Any) -> LaunchRequest:
    usual: dict[str, Any] = {
        "name": "train",
        "command": read_command(words or ("torchrun", "train.py")),
        "nodes": 2,
        "gpus_per_node": 8,
        "processes_per_node": 8,
        "measured": MeasuredRun(save_s=save_s, step_s=step_s),
        "gpu": "h100-80g-sxm",
        "image": "registry/training:1",
    }
    return LaunchRequest(**{**usual, **fields})
