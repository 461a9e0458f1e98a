"""The resources of its machine that this process may use, from the kernel's files: cores, memory and network."""

from __future__ import annotations

import os


def count_cores(affinity_cores: int | None = None) -> int:
    """min(affinity, CPU quota of the cgroup, rounded), at least 1; an earlier affinity counts if it was wider."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = max(cores, affinity_cores or 0)
    quota = read_quota_cores()
    return max(1, min(cores, int(quota + 0.5) if quota else cores))


def allowed_cores() -> frozenset[int]:
    """Numbers of the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def idle_in(stat: bytes, cores: frozenset[int]) -> list[int] | None:
    """[ns, cores]: the total idle time of some cores so far, whoever else runs on them, and the number of cores.

    ``stat`` is the text of /proc/stat, in hundredths of a second. None if it does not list each of them.

    >>> idle_in(b"cpu 9 9 9 9 9\\ncpu0 1 0 2 700 50 3\\ncpu1 1 0 2 900 0 3\\nintr 7", frozenset({0}))
    [7500000000, 1]
    """
    tick_ns = 1_000_000_000 // (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
    idle_ticks = {}
    for line in stat.splitlines():
        words = line.split(None, 6)
        if len(words) > 5 and words[0].startswith(b"cpu") and words[0][3:].isdigit():
            idle_ticks[int(words[0][3:])] = int(words[4]) + int(words[5])
    if not cores or not cores <= idle_ticks.keys():
        return None
    return [sum(idle_ticks[core] for core in cores) * tick_ns, len(cores)]


def read_quota_cores(root: str = "") -> float | None:
    """CPU quota of this process's cgroup in cores, the smallest of it and its parents (v2, else v1); None if there is
    none. ``root``, here and below: the folder to use as the machine's root."""
    quotas = []
    for path in list_cgroup_files("cpu.max", root):
        words = read_system_file(path).split()
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
    if quotas:
        return min(quotas)
    folder = f"{root}/sys/fs/cgroup/cpu/cpu.cfs_"
    quota, period = read_system_file(folder + "quota_us").strip(), read_system_file(folder + "period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def list_cgroup_files(name: str, root: str = "") -> list[str]:
    """The file of this process's own cgroup and of its parents, innermost first (cgroup v2)."""
    for line in read_system_file(f"{root}/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            folder = f"{root}/sys/fs/cgroup" + line[3:].rstrip("/")
            files = []
            while folder.startswith(f"{root}/sys/fs/cgroup"):
                files.append(os.path.join(folder, name))
                folder = os.path.dirname(folder)
            return files
    return []


def read_system_file(path: str) -> str:
    """The text of a small file of the kernel; empty if it cannot be read."""
    try:
        with open(path) as file:
            return file.read(1 << 16)
    except (OSError, UnicodeDecodeError):
        return ""


def read_free_bytes(root: str = "") -> int | None:
    """The smaller of the host's available memory and what this process's cgroup has left; None if neither is known."""
    found = []
    for line in read_system_file(f"{root}/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for path in list_cgroup_files("memory.max", root):
        limit = read_system_file(path).strip()
        used = read_system_file(path.removesuffix("max") + "current").strip()
        if limit.isdigit() and used.isdigit():
            found.append(max(0, int(limit) - int(used) + _read_cached_bytes(path.removesuffix("max") + "stat")))
    return min(found) if found else None


def _read_cached_bytes(path: str) -> int:
    """The part of a cgroup's memory that is pages of files, which the kernel drops before anything else."""
    lines = read_system_file(path).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def memory_limit_bytes(root: str = "") -> int | None:
    """The memory that this process may use: min(physical, cgroup limit)."""
    limits = []
    for line in read_system_file(f"{root}/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            limits.append(int(line.split()[1]) * 1024)
    for path in [*list_cgroup_files("memory.max", root), f"{root}/sys/fs/cgroup/memory/memory.limit_in_bytes"]:
        text = read_system_file(path).strip()
        if text.isdigit() and int(text) < 1 << 60:
            limits.append(int(text))
    return min(limits) if limits else None


def network_counters(device_table: bytes, speeds: dict[str, int | None]) -> dict[str, dict[str, int | None]]:
    """Bytes received and sent by each network interface, and its nominal speed in bytes per second.

    ``device_table`` is the text of /proc/net/dev; ``speeds`` remembers the speeds: asking a driver takes long.
    """
    found: dict[str, dict[str, int | None]] = {}
    for line in device_table.decode("ascii", "replace").splitlines()[2:34]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) < 9:
            continue
        name = name.strip()
        if name not in speeds:
            speeds[name] = interface_speed(name)
        found[name] = {
            "rx_bytes": int(fields[0]),
            "tx_bytes": int(fields[8]),
            "speed_bytes_per_s": speeds[name],
        }
    return found


def interface_speed(name: str, root: str = "/sys/class/net") -> int | None:
    """Bytes per second; None if it is not backed by hardware: one end of a virtual cable, as in every container, claims
    10 Gbit/s whatever carries it. A bond or a VLAN has the interfaces below it."""
    folder = f"{root}/{name}"
    try:
        if not any(entry == "device" or entry.startswith("lower_") for entry in os.listdir(folder)):
            return None
        with open(f"{folder}/speed") as file:
            megabits_per_s = int(file.read())
    except (OSError, ValueError):
        return None
    return megabits_per_s * 125_000 if megabits_per_s > 0 else None
