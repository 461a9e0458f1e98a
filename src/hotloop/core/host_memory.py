"""Memory that this process may still use, from the kernel's files."""

from __future__ import annotations

from .cores import list_cgroup_files, read_system_file


def read_free_bytes() -> int | None:
    """The least of what the host has available and what this process's cgroup has left; None where neither tells."""
    found = []
    for line in read_system_file("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for path in list_cgroup_files("memory.max"):
        limit = read_system_file(path).strip()
        used = read_system_file(path.removesuffix("max") + "current").strip()
        if limit.isdigit() and used.isdigit():
            found.append(max(0, int(limit) - int(used) + _read_cached_bytes(path.removesuffix("max") + "stat")))
    return min(found) if found else None


def _read_cached_bytes(path: str) -> int:
    """Of a cgroup's memory, the pages of files that the kernel drops before anything else."""
    lines = read_system_file(path).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def memory_limit_bytes() -> int | None:
    """The memory that this process may use: min(physical, cgroup limit)."""
    limits = []
    for line in read_system_file("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            limits.append(int(line.split()[1]) * 1024)
    for path in [*list_cgroup_files("memory.max"), "/sys/fs/cgroup/memory/memory.limit_in_bytes"]:
        text = read_system_file(path).strip()
        if text.isdigit() and int(text) < 1 << 60:
            limits.append(int(text))
    return min(limits) if limits else None
