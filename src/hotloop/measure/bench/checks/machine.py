"""Facts of processor and memory -> checks of cores, threads, clocks, load and limits, and of who else uses them."""

from __future__ import annotations

import re

from hotloop.core.doctor import MachineCheck
from hotloop.core.findings import Value
from hotloop.core.machine import list_cgroup_files, memory_limit_bytes, read_free_bytes, read_system_file
from hotloop.measure.bench.checks import ResultMaker, machine_check
from hotloop.measure.bench.host import GIB, Host, format_bytes, listed, plural


@machine_check("threads", "cpu", "threads and cores")
def check_threads(host: Host, answer: ResultMaker) -> MachineCheck:
    cores = host.cores_count
    threads = host.number("torch", "threads")
    if cores is None:
        return answer.unknown("the number of usable cores is unknown")
    limit = host.quota_cores
    quota = f" (the container's quota is {limit:g})" if limit is not None and limit <= cores else ""
    if threads is None:
        return answer.unknown(f"{plural(cores, 'core')}{quota}, but torch could not be queried")
    threads = int(threads)
    measured = f"{plural(threads, 'thread')} on {plural(cores, 'core')}{quota}"
    values: dict[str, Value] = {"threads_count": threads, "cores_count": cores}
    on_cpu = host.fact("accelerator", "kind") is None
    if threads > cores:
        why = "the threads of an operator wait for each other, but some of them have no core to run on"
        fix = f"export OMP_NUM_THREADS={cores}, divided by the number of ranks on this host"
        if on_cpu:
            return answer.harmful(measured, why=why, fix=fix, **values)
        return answer.warning(measured, why=why + "; this affects only work on the CPU", fix=fix, **values)
    # Half of the logical cores is one thread per physical core, which is torch's own choice.
    if on_cpu and threads * 2 < cores:
        return answer.warning(
            measured,
            why="a single rank leaves cores idle; this is right only if several ranks share this host",
            fix=f"set OMP_NUM_THREADS to {cores} divided by the number of ranks on this host",
            **values,
        )
    return answer.good(measured, **values)


@machine_check("thread-binding", "cpu", "cores of the workers")
def check_thread_binding(host: Host, answer: ResultMaker) -> MachineCheck:
    before, after = host.number("affinity_count"), host.number("affinity_after_torch_count")
    if before is None or after is None:
        return answer.unknown("torch could not be queried" if not host.has_torch else "the kernel does not report it")
    values: dict[str, Value] = {"before_count": int(before), "after_count": int(after)}
    if after < before:
        intel = "libgomp" not in (host.fact("openmp") or ())
        names = ("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY" if intel else "GOMP_CPU_AFFINITY")
        named = [n for n in names if n in host.environment]
        return answer.harmful(
            f"{plural(int(after), 'core')} of {int(before)} after torch has started its threads",
            why="the main thread is pinned to them, and so is every DataLoader worker that it forks",
            fix=f"unset {' '.join(named)}" if named else "look for a library that pins threads",
            **values,
        )
    return answer.good(f"all {int(after)}" if after > 1 else "1", **values)


@machine_check("quota", "cpu", "CPU quota")
def check_quota(host: Host, answer: ResultMaker) -> MachineCheck:
    if host.affinity_count is None:
        return answer.unknown("the kernel does not report it")
    quota = host.quota_cores
    if quota is None:
        return answer.good("none", quota_cores=None)
    throttled = None
    for path in list_cgroup_files("cpu.stat", host.place):
        stat = dict(re.findall(r"^(\w+) (\d+)$", read_system_file(path), re.MULTILINE))
        periods, late = int(stat.get("nr_periods", 0)), int(stat.get("nr_throttled", 0))
        if periods >= 100:
            throttled = max(throttled or 0.0, late / periods)
    measured = f"{quota:g} of {plural(host.affinity_count, 'core')}"
    if throttled is not None and throttled > 0.05:
        return answer.warning(
            f"{measured}; throttled in {throttled * 100:.0f}% of the periods",
            why="all threads of the container stop until the next period, for up to 0.1 s",
            fix="use fewer threads and workers, or a larger quota",
            quota_cores=quota,
            throttled_ratio=round(throttled, 4),
        )
    return answer.good(measured, quota_cores=quota)


@machine_check("load", "cpu", "load by other programs")
def check_load(host: Host, answer: ResultMaker) -> MachineCheck:
    words = (host.read("proc/loadavg") or "").split()
    cores = host.affinity_count
    if not words or not re.fullmatch(r"\d+(\.\d+)?", words[0]) or not cores:
        return answer.unknown("the kernel does not report it")
    load = float(words[0])
    measured = f"{load:.1f} on {plural(cores, 'core')}, mean of the last minute"
    if load > max(1.0, 0.5 * cores):
        return answer.warning(
            measured,
            why="other programs use the CPU: training is slower and timings are less reliable",
            fix="find them with top; wait until they end or use another machine",
            load_ratio=round(load / cores, 3),
        )
    return answer.good(measured, load_ratio=round(load / cores, 3))


@machine_check("frequency", "cpu", "CPU frequency")
def check_frequency(host: Host, answer: ResultMaker) -> MachineCheck:
    base = "sys/devices/system/cpu"
    found = (host.read(f"{base}/{name}/cpufreq/scaling_governor") for name in host.names(base) if name[3:].isdigit())
    governors = sorted({governor for governor in found if governor})
    if not governors:
        return answer.unknown("no frequency control is visible (usual in virtual machines)")
    driver = host.read(f"{base}/cpu0/cpufreq/scaling_driver") or "unknown driver"
    most = host.read(f"{base}/cpu0/cpufreq/cpuinfo_max_freq") or ""
    top = f", up to {int(most) / 1e6:.1f} GHz" if most.isdigit() else ""
    measured = f"governor {listed(governors)} ({driver}){top}"
    turbo_off = host.read(f"{base}/intel_pstate/no_turbo") == "1" or host.read(f"{base}/cpufreq/boost") == "0"
    # In their active modes these drivers let the CPU choose; 'powersave' is then the ordinary, dynamic setting.
    chooses = driver in ("intel_pstate", "amd-pstate-epp")
    if "powersave" in governors and not chooses:
        return answer.warning(
            measured,
            why="this governor keeps the clock at its lowest rate",
            fix="cpupower frequency-set -g performance (needs root)",
        )
    if turbo_off:
        return answer.warning(
            f"{measured}, turbo off",
            why="the clock stays at its base rate, which is slower but gives steadier timings",
            fix="enable it in the BIOS or with cpupower, unless you need steady timings",
        )
    return answer.good(measured)


DEFAULT_SHM_BYTES = 64 << 20
"""The default of container engines."""
SMALL_SHM_BYTES = 1 * GIB


@machine_check("memory", "memory", "memory")
def check_memory(host: Host, answer: ResultMaker) -> MachineCheck:
    total, free = _read_meminfo(host).get("MemTotal"), read_free_bytes(host.place)
    if not total or free is None:
        return answer.unknown("/proc/meminfo cannot be read")
    limit = memory_limit_bytes(host.place) or total
    limit_text = " (the container's limit)" if limit < total else ""
    total = limit
    measured = f"{format_bytes(free)} free of {format_bytes(total)}{limit_text}"
    values: dict[str, Value] = {"free_bytes": free, "total_bytes": total}
    if free < 0.02 * total:
        return answer.harmful(
            measured,
            why="a training process started now would be killed or cause swapping",
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


@machine_check("file-descriptors", "memory", "file descriptors")
def check_file_descriptors(host: Host, answer: ResultMaker) -> MachineCheck:
    soft, hard = host.files_soft_count, host.files_hard_count
    if soft is None or hard is None:
        return answer.unknown("the system does not report it")
    measured = f"{soft:,} per process" + (f" (may be raised to {hard:,})" if hard > soft else "")
    values: dict[str, Value] = {"soft_count": soft, "hard_count": hard}
    why = "each tensor that a DataLoader worker sends uses one; training fails with 'Too many open files'"
    fix = f"ulimit -n {min(hard, 65536)}"
    if soft < 256:
        return answer.harmful(measured, why=why, fix=fix, **values)
    if soft < 1024:
        return answer.warning(measured, why=why, fix=fix, **values)
    return answer.good(measured, **values)


def _read_meminfo(host: Host) -> dict[str, int]:
    pairs = re.findall(r"^(\w+):\s+(\d+) kB", host.read("proc/meminfo") or "", re.MULTILINE)
    return {name: int(kib) << 10 for name, kib in pairs}
