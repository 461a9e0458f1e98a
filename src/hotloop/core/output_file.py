"""A file that a user named -> written completely, without harm to an existing file of that name."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether a device, a pipe or a socket has that name: it is written to, and never replaced."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def write_whole(path: Path, text: str) -> None:
    """Write a file of our own, which gets its name once it is complete. Raises OSError."""
    partial = path.with_suffix(".part")
    partial.write_text(text)
    partial.replace(path)


@contextmanager
def open_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write, which gets its name when the block ends, so that nobody reads half of it.

    If the block raises, an existing file of that name stays. A link stays and its target is replaced; mode and owner
    stay; a device or a pipe gets the bytes themselves. Raises OSError.
    """
    if is_special(path):
        with open(path, "wb") as file:
            yield file
        return
    place = Path(os.path.realpath(path))
    partial = place.with_name(f".{place.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with partial.open("xb") as file:
            if place.exists():
                before = place.stat()
                if os.geteuid() == 0:
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            yield file
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
