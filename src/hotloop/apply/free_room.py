"""How many bytes of memory or of a disk a training may still take."""

from __future__ import annotations

import os

from hotloop.core.machine import read_free_bytes

MEMORY_PART, DISK_PART = 4, 2
"""A cache takes this part of what is free, unless it is given a size."""
UNKNOWN_BYTES = 1 << 28
"""Its size where the system does not tell what is free."""


def choose_memory_bytes(processes: int = 1) -> int:
    """Size of a cache in memory for each of so many processes of this host."""
    free = read_free_bytes()
    return UNKNOWN_BYTES // processes if free is None else free // MEMORY_PART // processes


def choose_disk_bytes(folder: str, processes: int = 1) -> int:
    """Size of a cache below a folder for each of so many processes of this host."""
    free = free_disk_bytes(folder)
    return UNKNOWN_BYTES // processes if free is None else free // DISK_PART // processes


def free_disk_bytes(folder: str) -> int | None:
    """Free bytes of the file system of a folder, or of the first of its parents that exists; None where none tells."""
    path = os.path.abspath(folder)
    while True:
        try:
            room = os.statvfs(path)
            return room.f_bavail * room.f_frsize
        except OSError:
            parent = os.path.dirname(path)
            if parent == path:
                return None
            path = parent
