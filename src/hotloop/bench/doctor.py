"""Host -> Checks: is this machine set up well for training?

One function per question. Adding a check is writing one more function with ``@question``; CHECKS collects them. A check
says ``harmful`` only for what is known to break or slow a training here, ``warning`` for what may, and ``unknown`` for
what could not be found out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hotloop.core.findings import Value
from hotloop.core.redact import redact_text

from .host import GIB, Host, Reading, cgroup_folders, file_system_of, listed, parse_links, plural, say_bytes
from .variables import VARIABLES, judge_variables

SCHEMA = "hotloop.doctor/1"

Status = Literal["good", "warning", "harmful", "unknown"]
ORDER: tuple[Status, ...] = ("harmful", "warning", "good", "unknown")
GROUPS = ("torch", "accelerator", "cpu", "memory", "data", "network", "variables")
"""Groups in the order in which they are shown."""

DEFAULT_SHM_BYTES = 64 << 20
"""What container engines give when they are not told otherwise."""
SMALL_SHM_BYTES = 1 * GIB
FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "s390-tod", "timebase")
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "afs", "fuse.sshfs")
SLOW_READ_BYTES_PER_S = 50 << 20
"""Less than a single hard disk gives."""
SLOW_OPEN_NS = 5_000_000
ENOUGH_BYTES = 4 << 20
"""Less than this says how long a file takes, not how fast the storage is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The answer to one question. ``measured`` carries its units; ``values`` holds the same figures for programs."""

    id: str
    group: str
    title: str
    status: Status
    measured: str
    why: str = ""
    fix: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``ask`` is pure but for files below the host's root. It answers with one check, or with several."""

    id: str
    group: str
    title: str
    ask: Callable[[Host, Answer], Check | tuple[Check, ...]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Makes the checks of one question."""

    id: str
    group: str
    title: str

    def good(self, measured: str, **values: Value) -> Check:
        return self._make("good", measured, "", "", values)

    def noted(self, measured: str, *, why: str, **values: Value) -> Check:
        """Good, with something that is worth knowing."""
        return self._make("good", measured, why, "", values)

    def warning(self, measured: str, *, why: str, fix: str, **values: Value) -> Check:
        return self._make("warning", measured, why, fix, values)

    def harmful(self, measured: str, *, why: str, fix: str, **values: Value) -> Check:
        return self._make("harmful", measured, why, fix, values)

    def unknown(self, why: str, *, fix: str = "") -> Check:
        return self._make("unknown", "unknown", why, fix, {})

    def _make(self, status: Status, measured: str, why: str, fix: str, values: Mapping[str, Value]) -> Check:
        return Check(
            id=self.id,
            group=self.group,
            title=self.title,
            status=status,
            measured=measured,
            why=why,
            fix=fix,
            values=values,
        )


Ask = Callable[[Host, Answer], "Check | tuple[Check, ...]"]


def question(question_id: str, group: str, title: str) -> Callable[[Ask], Question]:
    """Make a Question of a function."""

    def make(ask: Ask) -> Question:
        return Question(id=question_id, group=group, title=title, ask=ask)

    return make


def run_checks(host: Host, questions: Iterable[Question] | None = None) -> tuple[Check, ...]:
    """The checks of one host, worst first, then by group; ``questions`` defaults to all.

    A question that fails on an odd machine is answered with unknown.
    """
    checks: list[Check] = []
    for one in CHECKS if questions is None else questions:
        answer = Answer(one.id, one.group, one.title)
        try:
            given = one.ask(host, answer)
        except Exception as error:  # an odd file in /proc must not cost the other answers
            given = answer.unknown(f"could not be judged ({type(error).__name__}: {error})"[:200])
        checks += [given] if isinstance(given, Check) else given
    return tuple(sorted(checks, key=lambda c: (ORDER.index(c.status), GROUPS.index(c.group))))


def has_harm(checks: Iterable[Check]) -> bool:
    return any(check.status == "harmful" for check in checks)


def checks_to_json(checks: Iterable[Check]) -> list[dict[str, Any]]:
    """The checks as plain dicts of schema hotloop.doctor/1."""
    return [
        {
            "id": c.id,
            "group": c.group,
            "title": c.title,
            "status": c.status,
            "measured": c.measured,
            "why": c.why,
            "fix": c.fix,
            "values": dict(c.values),
        }
        for c in checks
    ]


def _no_torch(host: Host, answer: Answer) -> Check:
    return answer.unknown("torch gave no facts")


def _size_in_bytes(text: str | None) -> int | None:
    """A number of bytes from a cgroup's file; None for 'max' and for numbers that stand for no limit."""
    return int(text) if text is not None and text.isdigit() and int(text) < 1 << 60 else None


# torch


@question("torch", "torch", "torch")
def check_torch(host: Host, answer: Answer) -> Check:
    if not host.facts:
        return answer.unknown(
            redact_text(host.complaint or "the probe gave no facts"), fix="hotloop doctor --python PATH"
        )
    error = host.fact("torch_error")
    if isinstance(error, Mapping) and error.get("missing"):
        return answer.unknown(
            f"{host.interpreter} has no torch", fix="hotloop doctor --python PATH, with the training's python"
        )
    if isinstance(error, Mapping):
        return answer.harmful(
            f"import torch fails: {redact_text(str(error.get('message')))}",
            why=f"a training with {host.interpreter} ends at its first line",
            fix="install torch anew in that environment",
        )
    version, import_ns = str(host.fact("torch", "version")), host.number("torch", "import_ns")
    python = f"Python {host.fact('python')}"
    measured = f"torch {version}, {python}"
    if import_ns is not None:
        measured += f", imported in {import_ns * 1e-9:.1f} s"
    values: dict[str, Value] = {"version": version, "import_ns": import_ns, "executable": host.fact("executable")}
    if host.fact("torch", "debug") or host.fact("torch", "build_type") == "Debug":
        return answer.harmful(
            measured + ", a debug build",
            why="a debug build checks everything and runs several times slower",
            fix="install a release build of torch",
            **values,
        )
    if import_ns is not None and import_ns > 30e9:
        return answer.warning(
            measured,
            why="every rank and every spawned worker imports torch: each start waits this long",
            fix="keep the environment on a local disk",
            **values,
        )
    return answer.good(measured, **values)


@question("cpu-libraries", "torch", "CPU libraries")
def check_cpu_libraries(host: Host, answer: Answer) -> Check:
    if not host.has_torch:
        return _no_torch(host, answer)
    blas, capability = host.fact("torch", "blas"), host.fact("torch", "cpu_capability")
    parts = [f"BLAS {blas or 'unknown'}"]
    if host.fact("torch", "mkl_version"):
        parts[-1] += f" {host.fact('torch', 'mkl_version')}"
    if host.fact("torch", "onednn"):
        parts.append(f"oneDNN {host.fact('torch', 'onednn_version') or ''}".strip())
    parts.append(f"kernels for {capability or 'unknown'}")
    measured = ", ".join(parts)
    values: dict[str, Value] = {"blas": blas, "cpu_capability": capability, "onednn": host.fact("torch", "onednn")}
    if blas in ("none", "eigen", "generic") or host.fact("torch", "onednn") is False:
        return answer.warning(
            measured,
            why="matrix products or convolutions on the CPU run without a tuned library",
            fix="install torch from its official wheels",
            **values,
        )
    return answer.good(measured, **values)


@question("low-precision", "torch", "bf16 on the CPU")
def check_low_precision(host: Host, answer: Answer) -> Check:
    flags = host.fact("cpu_flags")
    if not isinstance(flags, list):
        return answer.unknown("/proc/cpuinfo does not say what the CPU can do")
    units = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 bf16", "bf16": "bf16"}
    found = [name for flag, name in units.items() if flag in flags]
    values: dict[str, Value] = {"flags": [str(flag) for flag in flags]}
    if found:
        return answer.good(f"in hardware ({', '.join(found)})", **values)
    return answer.noted("not in hardware", why="bfloat16 autocast on this CPU saves memory at most", **values)


@question("openmp", "torch", "OpenMP runtime")
def check_openmp(host: Host, answer: Answer) -> Check:
    loaded = host.fact("openmp")
    if not host.has_torch or not isinstance(loaded, list):
        return _no_torch(host, answer)
    names = [str(name) for name in loaded]
    if len(names) > 1:
        return answer.warning(
            listed(names),
            why="each runtime starts threads of its own: together they are more than the cores",
            fix="let torch and numpy come from one source (all pip, or all conda); check LD_PRELOAD",
            runtimes=[*names],
        )
    return answer.good(listed(names) or "none", runtimes=[*names])


@question("start-method", "torch", "worker start method")
def check_start_method(host: Host, answer: Answer) -> Check:
    method = host.fact("start_method")
    if not isinstance(method, str):
        return answer.unknown("the training's python gave no facts")
    why = "" if method == "fork" else "every DataLoader worker imports the program anew: keep persistent_workers=True"
    return answer.noted(method, why=why, start_method=method)


@question("backends", "torch", "distributed backends")
def check_backends(host: Host, answer: Answer) -> Check:
    if not host.has_torch:
        return _no_torch(host, answer)
    backends = host.fact("distributed", "backends")
    names = [str(n) for n, there in backends.items() if there] if isinstance(backends, Mapping) else []
    measured = listed(names) or "none"
    if (version := host.fact("distributed", "nccl_version")) is not None:
        measured = measured.replace("nccl", f"nccl {version}")
    several = (host.devices_count or 0) > 1
    if several and host.fact("accelerator", "kind") == "cuda" and "nccl" not in names:
        return answer.harmful(
            measured,
            why="without NCCL, several GPUs exchange gradients through the host's memory",
            fix="install a build of torch with NCCL",
            backends=[*names],
        )
    return answer.good(measured, backends=[*names])


# accelerator


@question("accelerator", "accelerator", "accelerator")
def check_accelerator(host: Host, answer: Answer) -> Check:
    device_files = [n for n in host.names("dev") if re.fullmatch(r"nvidia\d+", n)]
    nvidia = len(device_files) or len(host.gpus or ())
    amd = host.exists("dev/kfd")
    if not host.has_torch:
        return _no_torch(host, answer)
    kind, warning = host.fact("accelerator", "kind"), host.fact("accelerator", "warning")
    devices = host.fact("accelerator", "devices") or []
    values: dict[str, Value] = {"kind": kind, "devices_count": len(devices)}
    if kind is not None:
        names = sorted({str(d.get("name", kind)) for d in devices})
        sizes = [d["total_bytes"] for d in devices if isinstance(d.get("total_bytes"), int)]
        memory = f", {say_bytes(min(sizes))} each" if sizes else ""
        measured = f"{len(devices)} x {listed(names)}{memory}"
        hidden = nvidia - len(devices)
        if kind == "cuda" and hidden > 0 and "CUDA_VISIBLE_DEVICES" not in host.environment:
            return answer.warning(
                f"{measured}; {plural(hidden, 'GPU')} of the machine cannot be used",
                why="torch sees fewer GPUs than the machine has",
                fix="nvidia-smi, and look for MIG, errors or a container that holds some back",
                **values,
            )
        return answer.good(measured, **values)
    if not nvidia and not amd:
        return answer.good("none: training runs on the CPU", **values)
    machine = plural(nvidia, "NVIDIA GPU") if nvidia else "an AMD GPU"
    if host.environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() in ("", "-1"):
        return answer.warning(
            f"{machine}, hidden by CUDA_VISIBLE_DEVICES",
            why="training runs on the CPU",
            fix="unset CUDA_VISIBLE_DEVICES, if that is not what you want",
            **values,
        )
    built = host.fact("torch", "cuda") if nvidia else host.fact("torch", "hip")
    if built is None:
        return answer.harmful(
            f"{machine}, but torch {host.fact('torch', 'version')} is not built for it",
            why="training runs on the CPU",
            fix="install the build of torch for this accelerator (see pytorch.org/get-started)",
            **values,
        )
    reason = f": {warning}" if warning else ""
    return answer.harmful(
        f"{machine}, but torch cannot use it{reason}",
        why="training runs on the CPU",
        fix="nvidia-smi; an old driver for this torch is the usual reason",
        **values,
    )


@question("architectures", "accelerator", "kernels for this GPU")
def check_architectures(host: Host, answer: Answer) -> Check | tuple[Check, ...]:
    devices, built = host.fact("accelerator", "devices"), host.fact("accelerator", "architectures")
    if host.fact("accelerator", "kind") != "cuda" or host.fact("torch", "hip") is not None:
        return ()
    if not isinstance(built, list) or not isinstance(devices, list):
        return answer.unknown("torch does not say for which GPUs it was built")
    codes = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", str(text)) for text in built]
    known = [(m.group(1), int(m.group(2)), int(m.group(3))) for m in codes if m]
    lacking = []
    for device in devices:
        capability = device.get("capability")
        if not isinstance(capability, list) or len(capability) != 2:
            continue
        major, minor = int(capability[0]), int(capability[1])
        ready = any(kind == "sm" and a == major and b <= minor for kind, a, b in known)
        later = any(kind == "compute" and (a, b) <= (major, minor) for kind, a, b in known)
        if not ready and not later:
            lacking.append(f"{device.get('name')} (sm_{major}{minor})")
    if lacking:
        return answer.harmful(
            f"none for {listed(lacking)}",
            why="this build of torch cannot run a single kernel on that GPU",
            fix="install a build of torch for it (see pytorch.org/get-started)",
            built=[str(text) for text in built],
        )
    return answer.good("built in", built=[str(text) for text in built])


@question("gpu-memory", "accelerator", "GPU memory in use")
def check_gpu_memory(host: Host, answer: Answer) -> Check | tuple[Check, ...]:
    if not host.gpus:
        return ()
    used: list[tuple[float, str]] = []
    for gpu in host.gpus:
        total, taken = _mebibytes(gpu.get("memory.total")), _mebibytes(gpu.get("memory.used"))
        if total and taken is not None:
            used.append((taken / total, f"GPU {gpu['index']}: {say_bytes(taken)} of {say_bytes(total)}"))
    if not used:
        return answer.unknown("nvidia-smi does not say")
    ratio, text = max(used)
    if ratio > 0.1:
        return answer.warning(
            text,
            why="another process holds memory there, and may compute there too",
            fix="nvidia-smi names it; choose another GPU with CUDA_VISIBLE_DEVICES",
            used_ratio=round(ratio, 4),
        )
    return answer.good(f"at most {ratio * 100:.0f}%", used_ratio=round(ratio, 4))


@question("gpu-links", "accelerator", "links between GPUs")
def check_gpu_links(host: Host, answer: Answer) -> Check | tuple[Check, ...]:
    if (host.devices_count or 0) < 2 or host.fact("accelerator", "kind") != "cuda":
        return ()
    links = parse_links(host.gpu_links or "")
    kinds = sorted(set(links.values()))
    peer = host.fact("accelerator", "peer_access")
    measured = f"{listed(kinds)}" if kinds else "kind unknown"
    if isinstance(peer, list) and not all(all(row) for row in peer):
        return answer.warning(
            f"{measured}; some pairs cannot read each other's memory",
            why="these pairs exchange data through the host's memory",
            fix="nvidia-smi topo -p2p r shows the pairs; inside a virtual machine, ACS or the hypervisor may forbid it",
            links=[*kinds],
        )
    if not kinds and not isinstance(peer, list):
        return answer.unknown("neither nvidia-smi nor torch tells")
    return answer.good(f"{measured}, every pair directly" if isinstance(peer, list) else measured, links=[*kinds])


@question("pcie-width", "accelerator", "PCIe width")
def check_pcie_width(host: Host, answer: Answer) -> Check | tuple[Check, ...]:
    if not host.gpus:
        return ()
    narrow = []
    seen = 0
    for gpu in host.gpus:
        now, most = gpu.get("pcie.link.width.current", ""), gpu.get("pcie.link.width.max", "")
        if now.isdigit() and most.isdigit():
            seen += 1
            if int(now) < int(most):
                narrow.append(f"GPU {gpu['index']}: x{now} of x{most}")
    if not seen:
        return answer.unknown("nvidia-smi does not say (usual in virtual machines)")
    if narrow:
        return answer.warning(
            listed(narrow),
            why="copies from the host are slower by that factor",
            fix="look at it again under load; then check the slot, the riser and the BIOS",
        )
    return answer.good("full")


def _mebibytes(text: str | None) -> int | None:
    """Bytes from nvidia-smi's number of MiB."""
    return int(text) << 20 if text is not None and text.isdigit() else None


# CPU


@question("threads", "cpu", "threads against cores")
def check_threads(host: Host, answer: Answer) -> Check:
    cores = host.cores_count
    threads = host.number("torch", "threads")
    if cores is None:
        return answer.unknown("the number of usable cores is unknown")
    limit = host.quota_cores
    quota = f" (the container's quota is {limit:g})" if limit is not None and limit <= cores else ""
    if threads is None:
        return answer.unknown(f"{plural(cores, 'core')}{quota}, but torch gave no facts")
    threads = int(threads)
    measured = f"{plural(threads, 'thread')} on {plural(cores, 'core')}{quota}"
    values: dict[str, Value] = {"threads_count": threads, "cores_count": cores}
    on_cpu = host.fact("accelerator", "kind") is None
    if threads > cores:
        why = "threads of one operator wait for each other at its end, and some of them have no core to run on"
        fix = f"export OMP_NUM_THREADS={cores}, divided by the ranks of this host"
        if on_cpu:
            return answer.harmful(measured, why=why, fix=fix, **values)
        return answer.warning(measured, why=why + "; it matters for work on the CPU only", fix=fix, **values)
    # Half of the logical cores is one thread per physical core, which is torch's own choice.
    if on_cpu and threads * 2 < cores:
        return answer.warning(
            measured,
            why="one rank alone leaves cores idle; right only if several ranks share this host",
            fix=f"export OMP_NUM_THREADS to {cores} divided by the ranks of this host",
            **values,
        )
    return answer.good(measured, **values)


@question("thread-binding", "cpu", "cores of the workers")
def check_thread_binding(host: Host, answer: Answer) -> Check:
    before, after = host.number("affinity_count"), host.number("affinity_after_torch_count")
    if before is None or after is None:
        return answer.unknown("torch gave no facts" if not host.has_torch else "the kernel does not tell")
    values: dict[str, Value] = {"before_count": int(before), "after_count": int(after)}
    if after < before:
        intel = "libgomp" not in (host.fact("openmp") or ())
        names = ("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY" if intel else "GOMP_CPU_AFFINITY")
        named = [n for n in names if n in host.environment]
        return answer.harmful(
            f"{plural(int(after), 'core')} of {int(before)} after torch has started its threads",
            why="the main thread is bound, and every DataLoader worker that it forks inherits that: all on those cores",
            fix=f"unset {' '.join(named)}" if named else "look for a library that binds threads",
            **values,
        )
    return answer.good(f"all {int(after)}" if after > 1 else "1", **values)


@question("quota", "cpu", "CPU quota")
def check_quota(host: Host, answer: Answer) -> Check:
    if host.affinity_count is None:
        return answer.unknown("the kernel does not tell")
    quota = host.quota_cores
    if quota is None:
        return answer.good("none", quota_cores=None)
    throttled = None
    for folder in cgroup_folders(host, "cpu"):
        stat = dict(re.findall(r"^(\w+) (\d+)$", host.read(f"{folder}/cpu.stat") or "", re.MULTILINE))
        periods, late = int(stat.get("nr_periods", 0)), int(stat.get("nr_throttled", 0))
        if periods >= 100:
            throttled = max(throttled or 0.0, late / periods)
    measured = f"{quota:g} of {plural(host.affinity_count, 'core')}"
    if throttled is not None and throttled > 0.05:
        return answer.warning(
            f"{measured}; stopped for using it up in {throttled * 100:.0f}% of the periods",
            why="all threads of the container stand still until the next period, as long as 0.1 s",
            fix="fewer threads and workers, or a larger quota",
            quota_cores=quota,
            throttled_ratio=round(throttled, 4),
        )
    return answer.good(measured, quota_cores=quota)


@question("load", "cpu", "load by others")
def check_load(host: Host, answer: Answer) -> Check:
    words = (host.read("proc/loadavg") or "").split()
    cores = host.affinity_count
    if not words or not re.fullmatch(r"\d+(\.\d+)?", words[0]) or not cores:
        return answer.unknown("the kernel does not tell")
    load = float(words[0])
    measured = f"{load:.1f} on {plural(cores, 'core')}, mean of the last minute"
    if load > max(1.0, 0.5 * cores):
        return answer.warning(
            measured,
            why="something else runs here: it slows a training, and its timings mean less",
            fix="top; wait for it or move",
            load_ratio=round(load / cores, 3),
        )
    return answer.good(measured, load_ratio=round(load / cores, 3))


@question("steal", "cpu", "time taken by the hypervisor")
def check_steal(host: Host, answer: Answer) -> Check:
    found = re.match(r"cpu\s+([\d ]+)", host.read("proc/stat") or "")
    ticks = [int(t) for t in found.group(1).split()] if found else []
    if len(ticks) < 8 or sum(ticks[:8]) <= 0:
        return answer.unknown("the kernel does not tell")
    ratio = ticks[7] / sum(ticks[:8])
    measured = f"{ratio * 100:.1f}% since the start of the machine"
    if ratio > 0.03:
        return answer.warning(
            measured,
            why="other virtual machines use these cores too: steps take longer and vary",
            fix="ask for dedicated cores",
            steal_ratio=round(ratio, 4),
        )
    return answer.good(measured, steal_ratio=round(ratio, 4))


@question("frequency", "cpu", "CPU frequency")
def check_frequency(host: Host, answer: Answer) -> Check:
    base = "sys/devices/system/cpu"
    found = (host.read(f"{base}/{name}/cpufreq/scaling_governor") for name in host.names(base) if name[3:].isdigit())
    governors = sorted({governor for governor in found if governor})
    if not governors:
        return answer.unknown("no frequency control is visible, as usual in virtual machines")
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
            why="this governor keeps the clock at its lowest",
            fix="cpupower frequency-set -g performance (needs root)",
        )
    if turbo_off:
        return answer.warning(
            f"{measured}, turbo off",
            why="the clock stays at its base rate: slower, but steadier timings",
            fix="turn it on in the BIOS or with cpupower, unless steady timings are wanted",
        )
    return answer.good(measured)


@question("clock-source", "cpu", "clock source")
def check_clock(host: Host, answer: Answer) -> Check:
    source = host.read("sys/devices/system/clocksource/clocksource0/current_clocksource")
    cost = host.clock_read_ns
    if not source:
        return answer.unknown("the kernel does not tell")
    measured = source if cost is None else f"{source}, {cost:.0f} ns per reading"
    if source not in FAST_CLOCKS and (cost is None or cost > 250):
        return answer.warning(
            measured,
            why="reading the clock is a call into the kernel: profilers cost more, and so does everything that times",
            fix="choose tsc where the kernel offers it (available_clocksource)",
            read_ns=cost,
        )
    return answer.good(measured, read_ns=cost)


# Memory


@question("memory", "memory", "memory")
def check_memory(host: Host, answer: Answer) -> Check:
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
    measured = f"{say_bytes(free)} free of {say_bytes(total)}{limit_text}"
    values: dict[str, Value] = {"free_bytes": free, "total_bytes": total}
    if free < 0.02 * total:
        return answer.harmful(
            measured,
            why="a training that starts now is killed, or pushes everything out to swap",
            fix="end what uses it (top, sorted by memory)",
            **values,
        )
    if free < 0.1 * total:
        return answer.warning(
            measured,
            why="little is left for data, workers and the page cache",
            fix="end what uses it (top, sorted by memory)",
            **values,
        )
    return answer.good(measured, **values)


@question("swap", "memory", "swap")
def check_swap(host: Host, answer: Answer) -> Check:
    pairs = re.findall(r"^(\w+):\s+(\d+) kB", host.read("proc/meminfo") or "", re.MULTILINE)
    info = {name: int(kib) << 10 for name, kib in pairs}
    total, free = info.get("SwapTotal"), info.get("SwapFree")
    if total is None or free is None:
        return answer.unknown("/proc/meminfo cannot be read")
    if not total:
        return answer.good("none")
    found = re.search(r"^some .*avg60=([\d.]+)", host.read("proc/pressure/memory") or "", re.MULTILINE)
    waiting = float(found.group(1)) / 100 if found else None
    measured = f"{say_bytes(total - free)} of {say_bytes(total)} used"
    if waiting is not None and waiting > 0.1:
        return answer.warning(
            f"{measured}; tasks waited for memory in {waiting * 100:.0f}% of the last minute",
            why="pages go out and come back while programs run",
            fix="end what uses the memory, or use less of it",
            used_bytes=total - free,
            waiting_ratio=waiting,
        )
    return answer.good(measured, used_bytes=total - free)


@question("shared-memory", "memory", "shared memory (/dev/shm)")
def check_shared_memory(host: Host, answer: Answer) -> Check:
    total, free = host.shm_total_bytes, host.shm_free_bytes
    if total is None or free is None:
        return answer.unknown("/dev/shm is not there; DataLoader workers need it on Linux")
    measured = f"{say_bytes(free)} free of {say_bytes(total)}"
    values: dict[str, Value] = {"free_bytes": free, "total_bytes": total}
    fix = "docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir of medium Memory at /dev/shm"
    why = "DataLoader workers hand batches over here; when it is full they end with a bus error"
    if total <= DEFAULT_SHM_BYTES or free < DEFAULT_SHM_BYTES // 2:
        return answer.harmful(measured, why=why, fix=fix if total < SMALL_SHM_BYTES else "ls /dev/shm", **values)
    if free < SMALL_SHM_BYTES:
        return answer.warning(measured, why=why, fix=fix if total < SMALL_SHM_BYTES else "ls /dev/shm", **values)
    return answer.good(measured, **values)


@question("huge-pages", "memory", "transparent huge pages")
def check_huge_pages(host: Host, answer: Answer) -> Check:
    found = re.search(r"\[(\w+)\]", host.read("sys/kernel/mm/transparent_hugepage/enabled") or "")
    if found is None:
        return answer.unknown("the kernel does not tell")
    setting = found.group(1)
    if setting == "never" and host.fact("accelerator", "kind") is None:
        return answer.warning(
            setting,
            why="large buffers are mapped in pieces of 4 KiB; training on the CPU may lose a few per cent",
            fix="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (needs root), and measure",
        )
    return answer.good(setting)


@question("file-descriptors", "memory", "file descriptors")
def check_file_descriptors(host: Host, answer: Answer) -> Check:
    soft, hard = host.files_soft_count, host.files_hard_count
    if soft is None or hard is None:
        return answer.unknown("the system does not tell")
    measured = f"{soft:,} per process" + (f" (may be raised to {hard:,})" if hard > soft else "")
    values: dict[str, Value] = {"soft_count": soft, "hard_count": hard}
    why = "each tensor on its way from a DataLoader worker holds one: 'Too many open files' ends the training"
    fix = f"ulimit -n {min(hard, 65536)}"
    if soft < 256:
        return answer.harmful(measured, why=why, fix=fix, **values)
    if soft < 1024:
        return answer.warning(measured, why=why, fix=fix, **values)
    return answer.good(measured, **values)


# Data


@question("data-folder", "data", "data folder")
def check_data_folder(host: Host, answer: Answer) -> Check:
    if host.reading is None:
        return answer.unknown("no folder was named", fix="hotloop doctor --data FOLDER")
    kind = file_system_of(host, host.reading.folder)
    if kind is None:
        return answer.unknown("the kernel does not say on which file system it is")
    measured = f"on {kind}"
    if kind in NETWORK_FILE_SYSTEMS or (kind.startswith("fuse") and kind != "fuseblk"):
        return answer.warning(
            f"{measured}, a network or user-space file system",
            why="every file that is opened costs a round trip, and other users share its speed",
            fix="pack small files into large ones, or copy the data to a local disk first",
            file_system=kind,
        )
    if kind in ("overlay", "overlayfs", "aufs"):
        return answer.warning(
            f"{measured}, inside the container's layers",
            why="files are looked up in every layer, and a change copies the whole file first",
            fix="mount the data into the container (docker run -v FOLDER:/data)",
            file_system=kind,
        )
    note = "it takes up memory" if kind in ("tmpfs", "ramfs") else ""
    return answer.noted(measured, why=note, file_system=kind)


@question("read-speed", "data", "data read speed")
def check_read_speed(host: Host, answer: Answer) -> Check:
    reading = host.reading
    if reading is None:
        return answer.unknown("no folder was named", fix="hotloop doctor --data FOLDER")
    if reading.complaint and not reading.sampled_count:
        return answer.unknown(reading.complaint)
    if not reading.sampled_count:
        return answer.unknown(f"{reading.folder} holds no files that can be read")
    if reading.complaint and "did not come back" in reading.complaint:
        return answer.harmful(
            reading.complaint,
            why="a DataLoader that reads here stands still as long",
            fix="check the mount and its server",
        )
    return _judge_speed(reading, answer)


def _judge_speed(reading: Reading, answer: Answer) -> Check:
    opened = f"opening a file takes {_say_time(reading.open_median_ns)}"
    values: dict[str, Value] = {
        "storage_bytes": reading.storage_bytes,
        "storage_ns": reading.storage_ns,
        "cached_bytes": reading.cached_bytes,
        "cached_ns": reading.cached_ns,
        "unknown_bytes": reading.unknown_bytes,
        "unknown_ns": reading.unknown_ns,
        "open_median_ns": reading.open_median_ns,
        "cached_before_ratio": reading.cached_before_ratio,
        "sampled_count": reading.sampled_count,
    }
    files = plural(reading.sampled_count, "file")
    if reading.storage_bytes and reading.storage_ns:
        speed = reading.storage_bytes / (reading.storage_ns * 1e-9)
        measured = f"{say_bytes(speed)}/s past the page cache ({say_bytes(reading.storage_bytes)} in {files}), {opened}"
        if reading.cached_before_ratio is not None:
            measured += f"; {reading.cached_before_ratio * 100:.0f}% of the sample was in the page cache before"
        enough = reading.storage_bytes >= ENOUGH_BYTES
        if enough and speed < SLOW_READ_BYTES_PER_S:
            return answer.warning(
                measured,
                why="slower than a single hard disk; a first epoch may wait for it",
                fix="copy the data to a local disk, or read larger files in order",
                **values,
            )
    elif reading.cached_bytes and reading.cached_ns:
        speed = reading.cached_bytes / (reading.cached_ns * 1e-9)
        measured = f"{say_bytes(speed)}/s from the page cache, which could not be dropped; {opened}"
    elif reading.unknown_bytes and reading.unknown_ns:
        speed = reading.unknown_bytes / (reading.unknown_ns * 1e-9)
        measured = f"{say_bytes(speed)}/s, from the storage or the page cache: the kernel does not tell; {opened}"
    else:
        return answer.unknown(f"nothing could be read from {reading.folder}")
    if reading.open_median_ns is not None and reading.open_median_ns > SLOW_OPEN_NS:
        return answer.warning(
            measured,
            why="with one sample per file, opening files alone may take longer than a step",
            fix="pack samples into large files, or copy the data to a local disk",
            **values,
        )
    return answer.good(measured, **values)


def _say_time(value_ns: float | None) -> str:
    """A short duration.

    >>> _say_time(8_500), _say_time(2_400_000)
    ('8.5 us', '2.4 ms')
    """
    if value_ns is None:
        return "an unknown time"
    return f"{value_ns / 1e6:.1f} ms" if value_ns >= 1e6 else f"{value_ns / 1e3:.1f} us"


# Network


@question("interfaces", "network", "network interfaces")
def check_interfaces(host: Host, answer: Answer) -> Check:
    base = "sys/class/net"
    found: list[str] = []
    speeds: list[int] = []
    for name in host.names(base):
        if name == "lo" or not host.exists(f"{base}/{name}/device"):
            continue
        if host.read(f"{base}/{name}/operstate") not in ("up", "unknown"):
            continue
        speed = host.read(f"{base}/{name}/speed") or ""
        if speed.isdigit() and int(speed) > 0:
            speeds.append(int(speed))
            found.append(f"{name} {int(speed) / 1000:g} Gbit/s")
        else:
            found.append(f"{name}, speed unknown")
    if not found:
        return answer.unknown("no hardware interface that is up is visible (usual in containers)")
    hosts = host.environment.get("SLURM_NNODES", "1")
    several = hosts.isdigit() and int(hosts) > 1
    values: dict[str, Value] = {"interfaces": [*found], "fastest_mbit_per_s": max(speeds, default=None)}
    if several and len(speeds) == len(found) and max(speeds) <= 1000:
        return answer.warning(
            listed(found),
            why=f"{hosts} hosts exchange gradients over at most {max(speeds) / 1000:g} Gbit/s",
            fix="use fewer, larger exchanges (accumulation, compression), or a faster network",
            **values,
        )
    if not speeds:
        return answer.unknown(f"{listed(found)}: the driver does not tell, as usual in virtual machines")
    return answer.good("; ".join(found[:4]), **values)


@question("infiniband", "network", "InfiniBand")
def check_infiniband(host: Host, answer: Answer) -> Check:
    base = "sys/class/infiniband"
    ports = [(d, p) for d in host.names(base) for p in host.names(f"{base}/{d}/ports")]
    if not ports:
        return answer.good("none", devices_count=0)
    active: list[str] = []
    down: list[str] = []
    for device, port in ports:
        state = (host.read(f"{base}/{device}/ports/{port}/state") or "").partition(":")[2].strip()
        rate = host.read(f"{base}/{device}/ports/{port}/rate") or "rate unknown"
        (active if state == "ACTIVE" else down).append(f"{device} {rate}" if state == "ACTIVE" else f"{device}:{port}")
    measured = listed(active) or "no active port"
    values: dict[str, Value] = {"active_count": len(active), "down_count": len(down)}
    if down:
        return answer.warning(
            f"{measured}; not active: {listed(down)}",
            why="collectives use only ports that are active",
            fix="ibstat shows why a port is down",
            **values,
        )
    if host.locked_soft_bytes is not None and 0 <= host.locked_soft_bytes < 64 << 20:
        return answer.warning(
            f"{measured}; only {say_bytes(host.locked_soft_bytes)} of memory may be locked",
            why="the card needs locked memory, and its start fails without it",
            fix="ulimit -l unlimited (docker run --ulimit memlock=-1)",
            **values,
        )
    return answer.good(measured, **values)


# Variables


@question("variables", "variables", "environment variables")
def check_variables(host: Host, answer: Answer) -> tuple[Check, ...]:
    effects = judge_variables(host)
    checks = []
    for effect in effects:
        if effect.level is None:
            continue
        one = Answer(f"variable-{effect.name.lower().replace('_', '-').strip('-')}", "variables", effect.name)
        measured = f"{effect.name}={redact_text(effect.value)}"[:120]
        make = one.harmful if effect.level == "harmful" else one.warning
        checks.append(make(measured, why=effect.why, fix=effect.fix, variable=effect.name))
    idle = [effect for effect in effects if effect.level is None]
    if idle:
        one = Answer("variables-without-effect", "variables", "variables without effect")
        reasons: dict[str, list[str]] = {}
        for effect in idle:
            reasons.setdefault(effect.why, []).append(effect.name)
        checks.append(
            one.warning(
                listed([effect.name for effect in idle], most=8),
                why="; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items()),
                fix="unset them, or leave them for machines where they act",
                variables=[effect.name for effect in idle],
            )
        )
    if checks:
        return tuple(checks)
    known = sum(1 for one in VARIABLES if one.name in host.environment)
    text = f"{len(VARIABLES)} looked for, {known} set" + (", none harmful" if known else "")
    return (answer.good(text, set_count=known),)


CHECKS: tuple[Question, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Question))
"""Every question of this file, in its order."""
