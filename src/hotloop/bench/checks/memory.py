"""Facts of the host's memory -> checks of what is free, swapped, shared or limited."""

from __future__ import annotations

import re

from hotloop.bench.host import GIB, Host, cgroup_folders, format_bytes
from hotloop.bench.machine_check import ResultMaker, machine_check
from hotloop.core.doctor import MachineCheck
from hotloop.core.findings import Value

DEFAULT_SHM_BYTES = 64 << 20
"""What container engines give when they are not told otherwise."""
SMALL_SHM_BYTES = 1 * GIB


@machine_check("memory", "memory", "memory")
def check_memory(host: Host, answer: ResultMaker) -> MachineCheck:
    pairs = re.findall(r"^(\w+):\s+(\d+) kB", host.read("proc/meminfo") or "", re.MULTILINE)
    info = {name: int(kib) << 10 for name, kib in pairs}
    total, free = info.get("MemTotal"), info.get("MemAvailable")
    if not total or free is None:
        return answer.unknown("/proc/meminfo cannot be read")
    limit_text = ""
    for folder in cgroup_folders(host, "memory"):
        limit = _size_in_bytes(host.read(f"{folder}/memory.max") or host.read(f"{folder}/memory.limit_in_bytes"))
        if limit is None or limit >= total:
            continue
        used = _size_in_bytes(host.read(f"{folder}/memory.current") or host.read(f"{folder}/memory.usage_in_bytes"))
        stat = host.read(f"{folder}/memory.stat") or ""
        # Cached files count as used by the group, and go first when it needs room.
        cached = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
        left = limit - max(0, (used or 0) - (int(cached.group(1)) if cached else 0))
        total, free, limit_text = limit, min(free, max(0, left)), " (the container's limit)"
    measured = f"{format_bytes(free)} free of {format_bytes(total)}{limit_text}"
    values: dict[str, Value] = {"free_bytes": free, "total_bytes": total}
    if free < 0.02 * total:
        return answer.harmful(
            measured,
            why="a training started now would be killed or cause swapping",
            fix="stop the programs that use it (top, sorted by memory)",
            **values,
        )
    if free < 0.1 * total:
        return answer.warning(
            measured,
            why="little is left for data, workers and the page cache",
            fix="stop the programs that use it (top, sorted by memory)",
            **values,
        )
    return answer.good(measured, **values)


@machine_check("swap", "memory", "swap")
def check_swap(host: Host, answer: ResultMaker) -> MachineCheck:
    pairs = re.findall(r"^(\w+):\s+(\d+) kB", host.read("proc/meminfo") or "", re.MULTILINE)
    info = {name: int(kib) << 10 for name, kib in pairs}
    total, free = info.get("SwapTotal"), info.get("SwapFree")
    if total is None or free is None:
        return answer.unknown("/proc/meminfo cannot be read")
    if not total:
        return answer.good("none")
    found = re.search(r"^some .*avg60=([\d.]+)", host.read("proc/pressure/memory") or "", re.MULTILINE)
    waiting = float(found.group(1)) / 100 if found else None
    measured = f"{format_bytes(total - free)} of {format_bytes(total)} used"
    if waiting is not None and waiting > 0.1:
        return answer.warning(
            f"{measured}; tasks waited for memory in {waiting * 100:.0f}% of the last minute",
            why="programs wait while pages are swapped in and out",
            fix="stop the programs that use the memory, or use less",
            used_bytes=total - free,
            waiting_ratio=waiting,
        )
    return answer.good(measured, used_bytes=total - free)


@machine_check("shared-memory", "memory", "shared memory (/dev/shm)")
def check_shared_memory(host: Host, answer: ResultMaker) -> MachineCheck:
    total, free = host.shm_total_bytes, host.shm_free_bytes
    if total is None or free is None:
        return answer.unknown("/dev/shm does not exist, but DataLoader workers need it on Linux")
    measured = f"{format_bytes(free)} free of {format_bytes(total)}"
    values: dict[str, Value] = {"free_bytes": free, "total_bytes": total}
    fix = "docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir of medium Memory at /dev/shm"
    why = "DataLoader workers pass batches through it and crash with a bus error when it is full"
    if total <= DEFAULT_SHM_BYTES or free < DEFAULT_SHM_BYTES // 2:
        return answer.harmful(measured, why=why, fix=fix if total < SMALL_SHM_BYTES else "ls /dev/shm", **values)
    if free < SMALL_SHM_BYTES:
        return answer.warning(measured, why=why, fix=fix if total < SMALL_SHM_BYTES else "ls /dev/shm", **values)
    return answer.good(measured, **values)


@machine_check("huge-pages", "memory", "transparent huge pages")
def check_huge_pages(host: Host, answer: ResultMaker) -> MachineCheck:
    found = re.search(r"\[(\w+)\]", host.read("sys/kernel/mm/transparent_hugepage/enabled") or "")
    if found is None:
        return answer.unknown("the kernel does not report it")
    setting = found.group(1)
    if setting == "never" and host.fact("accelerator", "kind") is None:
        return answer.warning(
            setting,
            why="large buffers are mapped in 4 KiB pages, which may slow training on the CPU by a few per cent",
            fix="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (needs root), and measure",
        )
    return answer.good(setting)


@machine_check("file-descriptors", "memory", "file descriptors")
def check_file_descriptors(host: Host, answer: ResultMaker) -> MachineCheck:
    soft, hard = host.files_soft_count, host.files_hard_count
    if soft is None or hard is None:
        return answer.unknown("the system does not report it")
    measured = f"{soft:,} per process" + (f" (may be raised to {hard:,})" if hard > soft else "")
    values: dict[str, Value] = {"soft_count": soft, "hard_count": hard}
    why = "each tensor sent by a DataLoader worker uses one; the training fails with 'Too many open files'"
    fix = f"ulimit -n {min(hard, 65536)}"
    if soft < 256:
        return answer.harmful(measured, why=why, fix=fix, **values)
    if soft < 1024:
        return answer.warning(measured, why=why, fix=fix, **values)
    return answer.good(measured, **values)


def _size_in_bytes(text: str | None) -> int | None:
    """A number of bytes from a cgroup's file; None for 'max' and for numbers that stand for no limit."""
    return int(text) if text is not None and text.isdigit() and int(text) < 1 << 60 else None
