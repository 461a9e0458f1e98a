"""What the process that is read and the one that reads it agree on: sizes, and which files are the user's own."""

from __future__ import annotations

import os

Place = tuple[str, int, str]
"""File, 1-based line, function."""

STATE_BYTES = 320
"""The first so many bytes of a thread's state hold the way to its frames (CPython 3.11: the first 312; 3.13: 248)."""
FRAME_BYTES = 80
"""An interpreter frame ahead of its variables."""
CHUNK_HEADER_BYTES = 24
"""Ahead of the frames in a chunk of them: the chunk before it, its size, and how far it was filled."""
MOST_CHUNK_BYTES = 1 << 24
TAG = 7
"""Python 3.14 says in the lowest bits of an address whether it counts as a reference."""
TEXT_LENGTH = 16
"""Offset that is the same in every build with a lock: of a length behind an object's head."""
TEXT_KIND = 0b11111
"""Bits in which a string says how wide its characters are, that they lie behind its head, and whether all are ASCII."""


def is_users(filename: str, path: str, libraries: tuple[str, ...]) -> bool:
    """True for code that is neither a library's, nor the interpreter's, nor ours, where libraries lie in these folders;
    ``path`` is the absolute file."""
    if filename.startswith(("<ipython", "<stdin")) or "ipykernel_" in filename:
        return True
    return not (
        filename.startswith("<")
        or path.startswith(libraries)
        or f"{os.sep}site-packages{os.sep}" in path
        or f"{os.sep}dist-packages{os.sep}" in path
        or os.path.basename(filename) == "torchrun"
    )
