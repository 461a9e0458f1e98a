"""A name of the user's -> a recorded run, or traces."""

from __future__ import annotations

from pathlib import Path

from hotloop.core.errors import RecordingError

from .inputs import is_remote
from .recording import find_run


def find_recorded(name: str, root: Path) -> Path | None:
    """The folder of a run; None for what must be traces. Raises RecordingError for what is neither."""
    path = root / name
    if is_remote(name) or path.is_file():
        return None
    try:
        return find_run(name, root)
    except RecordingError as error:
        if path.is_dir():
            return None
        if name == "last":
            raise
        raise RecordingError(f"{name} is not a file, a folder or a run: {error}") from None
