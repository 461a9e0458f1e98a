"""How many cores this process may use: what of the system core itself asks, because every stage needs it."""

from __future__ import annotations

import os


def count_cores(affinity_cores: int | None = None) -> int:
    """min(affinity, CPU quota of the cgroup, rounded), at least 1; an earlier affinity counts when it was wider."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = max(cores, affinity_cores or 0)
    quota = read_quota_cores()
    return max(1, min(cores, int(quota + 0.5) if quota else cores))


def read_quota_cores() -> float | None:
    """CPU quota of this process's cgroup in cores, the smallest of it and its parents (v2, else v1); None without."""
    quotas = []
    for path in list_cgroup_files("cpu.max"):
        words = read_system_file(path).split()
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
    if quotas:
        return min(quotas)
    folder = "/sys/fs/cgroup/cpu/cpu.cfs_"
    quota, period = read_system_file(folder + "quota_us").strip(), read_system_file(folder + "period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def list_cgroup_files(name: str) -> list[str]:
    """The file of this process's own cgroup and of its parents, innermost first (cgroup v2)."""
    for line in read_system_file("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            folder = "/sys/fs/cgroup" + line[3:].rstrip("/")
            files = []
            while folder.startswith("/sys/fs/cgroup"):
                files.append(os.path.join(folder, name))
                folder = os.path.dirname(folder)
            return files
    return []


def read_system_file(path: str) -> str:
    """The text of a small file of the kernel; empty where it cannot be read."""
    try:
        with open(path) as file:
            return file.read(1 << 16)
    except (OSError, UnicodeDecodeError):
        return ""
