"""How many bytes of memory or of a disk a training may still take."""

from __future__ import annotations

import os

from hotloop.core.cores import list_cgroup_files, read_system_file

MEMORY_PART, DISK_PART = 4, 2
"""A cache takes this part of what is free, unless it is given a size."""
UNKNOWN_BYTES = 1 << 28
"""Its size where the system does not tell what is free."""


def choose_memory_bytes(processes: int = 1) -> int:
    """Size of a cache in memory for each of so many processes of this host."""
    free = free_memory_bytes()
    return UNKNOWN_BYTES // processes if free is None else free // MEMORY_PART // processes


def choose_disk_bytes(folder: str, processes: int = 1) -> int:
    """Size of a cache below a folder for each of so many processes of this host."""
    free = free_disk_bytes(folder)
    return UNKNOWN_BYTES // processes if free is None else free // DISK_PART // processes


def free_memory_bytes() -> int | None:
    """Available memory of the host, or what the cgroup's limit leaves if that is less; None where no file tells."""
    found = [
        int(line.split()[1]) * 1024
        for line in read_system_file("/proc/meminfo").splitlines()
        if line.startswith("MemAvailable:")
    ]
    for path in list_cgroup_files("memory.max"):
        left = _left_in_cgroup(os.path.dirname(path), read_system_file(path).strip())
        if left is not None:
            found.append(left)
    return min(found) if found else None


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


def _left_in_cgroup(folder: str, limit: str) -> int | None:
    used = read_system_file(os.path.join(folder, "memory.current")).strip()
    if not (limit.isdigit() and used.isdigit()):
        return None
    cached = [
        int(line.split()[1])
        for line in read_system_file(os.path.join(folder, "memory.stat")).splitlines()
        if line.startswith("inactive_file ")
    ]
    return max(0, int(limit) - int(used) + sum(cached))
