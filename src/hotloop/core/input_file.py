"""A file that a user named -> its bytes, whoever wrote it and however large it is."""

from __future__ import annotations

import os

from .errors import HotloopError


def read_bounded(
    path: str | os.PathLike[str], most_bytes: int, what: str, error: type[HotloopError] = HotloopError
) -> bytes:
    """Raises ``error`` with one line if it cannot be read, or is too large for ``what``."""
    try:
        with open(path, "rb") as file:
            data = file.read(most_bytes + 1)
    except (OSError, ValueError) as cause:
        raise error(f"cannot read {path}: {getattr(cause, 'strerror', None) or cause}") from cause
    if len(data) > most_bytes:
        raise error(f"{path} is larger than {most_bytes:,} bytes, so it cannot be a {what}")
    return data
