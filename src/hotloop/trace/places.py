"""A recording of a working copy -> the same recording with its places in the folder that was copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from .recording import RunRecording


def move_places(run: RunRecording, old: Path, new: Path) -> RunRecording:
    """The run with every path below ``old`` as one below ``new``."""

    def move(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(str(old), str(new))
        if isinstance(value, dict):
            return {key: move(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(move(one) for one in value)
        return value

    processes = tuple(replace(p, process=move(p.process), facts=move(p.facts)) for p in run.processes)
    return replace(run, processes=processes)
