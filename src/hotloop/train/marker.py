"""A small file next to the checkpoints that says: a signal stopped this run cleanly, start it again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NAME = "preempted.json"
SCHEMA = "hotloop.preempted/1"


def write_marker(folder: Path, *, signal_number: int, step: int, checkpoint: Path) -> None:
    """Written when the checkpoint is complete; torchrun's own exit code does not distinguish this from a crash."""
    content = {"schema": SCHEMA, "signal": signal_number, "step": step, "checkpoint": checkpoint.name}
    temporary = folder / f".{NAME}.tmp"
    with open(temporary, "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / NAME)


def read_marker(folder: str | Path) -> dict[str, Any] | None:
    """The marker of the last stop by a signal; None when the run ended in another way or is still running."""
    try:
        content = json.loads((Path(folder) / NAME).read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("schema") == SCHEMA else None


def remove_marker(folder: Path) -> None:
    (folder / NAME).unlink(missing_ok=True)
