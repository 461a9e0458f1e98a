"""What the observed process and its reader agree on: sizes, and which files are the user's own."""

from __future__ import annotations

import os

Place = tuple[str, int, str]
"""File, 1-based line, function."""

STATE_BYTES = 320
"""The leading bytes of a thread's state that lead to its frames (CPython 3.11: the first 312; 3.13: 248)."""
FRAME_BYTES = 80
"""Bytes of an interpreter frame before its variables."""
CHUNK_HEADER_BYTES = 24
"""Bytes in a chunk of frames before the frames: the previous chunk, its size, and how far it was filled."""
MOST_CHUNK_BYTES = 1 << 24
TAG = 7
"""Python 3.14 marks in the lowest bits of an address whether it counts as a reference."""
TEXT_LENGTH = 16
"""Offset that is the same in every build with a lock: that of the length after an object's head."""
TEXT_KIND = 0b11111
"""Bits of a string for the width of its characters, that they follow its head, and whether all are ASCII."""

INTERPRETED = ":interpreted"
"""Ends the leaf of a sample that met the user's innermost call on an instruction that calls nothing."""


def is_users(filename: str, path: str, libraries: tuple[str, ...]) -> bool:
    """True for code that is neither a library's, nor the interpreter's, nor ours, if libraries are in these folders;
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
