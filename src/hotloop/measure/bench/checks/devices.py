"""Facts of the training's Python and of the driver -> checks of torch's build, the accelerators and their links."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hotloop.core.doctor import MachineCheck
from hotloop.core.findings import Value
from hotloop.core.redact import redact_text
from hotloop.measure.bench.checks import ResultMaker, machine_check
from hotloop.measure.bench.host import Host, format_bytes, listed, plural


@machine_check("torch", "torch", "torch")
def check_torch(host: Host, answer: ResultMaker) -> MachineCheck:
    if not host.facts:
        return answer.unknown(
            redact_text(host.complaint or "torch could not be queried"), fix="hotloop doctor --python PATH"
        )
    error = host.fact("torch_error")
    if isinstance(error, Mapping) and error.get("missing"):
        return answer.unknown(
            f"{host.interpreter} has no torch", fix="hotloop doctor --python PATH, with the Python used for training"
        )
    if isinstance(error, Mapping):
        return answer.harmful(
            f"import torch fails: {redact_text(str(error.get('message')))}",
            why=f"training with {host.interpreter} fails at import",
            fix="reinstall torch in that environment",
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
            why="a debug build runs several times slower",
            fix="install a release build of torch",
            **values,
        )
    if import_ns is not None and import_ns > 30e9:
        return answer.warning(
            measured,
            why="every rank and every spawned worker imports torch and takes this long to start",
            fix="keep the environment on a local disk",
            **values,
        )
    return answer.good(measured, **values)


@machine_check("low-precision", "torch", "bf16 on the CPU")
def check_low_precision(host: Host, answer: ResultMaker) -> MachineCheck:
    flags = host.fact("cpu_flags")
    if not isinstance(flags, list):
        return answer.unknown("/proc/cpuinfo does not list the CPU's features")
    units = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 bf16", "bf16": "bf16"}
    found = [name for flag, name in units.items() if flag in flags]
    values: dict[str, Value] = {"flags": [str(flag) for flag in flags]}
    if found:
        return answer.good(f"in hardware ({', '.join(found)})", **values)
    return answer.noted("not in hardware", why="bfloat16 autocast on this CPU can save memory, but not time", **values)


@machine_check("openmp", "torch", "OpenMP runtime")
def check_openmp(host: Host, answer: ResultMaker) -> MachineCheck:
    loaded = host.fact("openmp")
    if not host.has_torch or not isinstance(loaded, list):
        return answer.without_torch()
    names = [str(name) for name in loaded]
    if len(names) > 1:
        return answer.warning(
            listed(names),
            why="each runtime starts its own threads; together they exceed the cores",
            fix="install torch and numpy from one source (all pip or all conda); check LD_PRELOAD",
            runtimes=[*names],
        )
    return answer.good(listed(names) or "none", runtimes=[*names])


@machine_check("backends", "torch", "distributed backends")
def check_backends(host: Host, answer: ResultMaker) -> MachineCheck:
    if not host.has_torch:
        return answer.without_torch()
    backends = host.fact("distributed", "backends")
    names = [str(n) for n, there in backends.items() if there] if isinstance(backends, Mapping) else []
    measured = listed(names) or "none"
    if (version := host.fact("distributed", "nccl_version")) is not None:
        measured = measured.replace("nccl", f"nccl {version}")
    several = (host.devices_count or 0) > 1
    if several and host.fact("accelerator", "kind") == "cuda" and "nccl" not in names:
        return answer.harmful(
            measured,
            why="without NCCL, several GPUs exchange gradients through host memory",
            fix="install a torch build with NCCL",
            backends=[*names],
        )
    return answer.good(measured, backends=[*names])


@machine_check("accelerator", "accelerator", "accelerator")
def check_accelerator(host: Host, answer: ResultMaker) -> MachineCheck:
    device_files = [n for n in host.names("dev") if re.fullmatch(r"nvidia\d+", n)]
    nvidia = len(device_files) or len(host.gpus or ())
    amd = host.exists("dev/kfd")
    if not host.has_torch:
        return answer.without_torch()
    kind, warning = host.fact("accelerator", "kind"), host.fact("accelerator", "warning")
    devices = host.fact("accelerator", "devices") or []
    values: dict[str, Value] = {"kind": kind, "devices_count": len(devices)}
    if kind is not None:
        names = sorted({str(d.get("name", kind)) for d in devices})
        sizes = [d["total_bytes"] for d in devices if isinstance(d.get("total_bytes"), int)]
        memory = f", {format_bytes(min(sizes))} each" if sizes else ""
        measured = f"{len(devices)} x {listed(names)}{memory}"
        hidden = nvidia - len(devices)
        if kind == "cuda" and hidden > 0 and "CUDA_VISIBLE_DEVICES" not in host.environment:
            return answer.warning(
                f"{measured}; torch cannot use {plural(hidden, 'GPU')} of the machine",
                why="torch finds fewer GPUs than the machine has",
                fix="run nvidia-smi and look for MIG, errors or a container that hides GPUs",
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
            fix="unset CUDA_VISIBLE_DEVICES to train on a GPU",
            **values,
        )
    built = host.fact("torch", "cuda") if nvidia else host.fact("torch", "hip")
    if built is None:
        return answer.harmful(
            f"{machine}, but torch {host.fact('torch', 'version')} is not built for it",
            why="training runs on the CPU",
            fix="install the torch build for this accelerator (see pytorch.org/get-started)",
            **values,
        )
    reason = f": {warning}" if warning else ""
    return answer.harmful(
        f"{machine}, but torch cannot use it{reason}",
        why="training runs on the CPU",
        fix="run nvidia-smi; the usual cause is a driver too old for this torch",
        **values,
    )


@machine_check("architectures", "accelerator", "kernels for this GPU")
def check_architectures(host: Host, answer: ResultMaker) -> MachineCheck | tuple[MachineCheck, ...]:
    devices, built = host.fact("accelerator", "devices"), host.fact("accelerator", "architectures")
    if host.fact("accelerator", "kind") != "cuda" or host.fact("torch", "hip") is not None:
        return ()
    if not isinstance(built, list) or not isinstance(devices, list):
        return answer.unknown("torch does not report for which GPUs it was built")
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
            why="this torch build cannot run any kernel on that GPU",
            fix="install a torch build for it (see pytorch.org/get-started)",
            built=[str(text) for text in built],
        )
    return answer.good("built in", built=[str(text) for text in built])


@machine_check("gpu-memory", "accelerator", "GPU memory in use")
def check_gpu_memory(host: Host, answer: ResultMaker) -> MachineCheck | tuple[MachineCheck, ...]:
    if not host.gpus:
        return ()
    used: list[tuple[float, str]] = []
    for gpu in host.gpus:
        total, taken = _mebibytes(gpu.get("memory.total")), _mebibytes(gpu.get("memory.used"))
        if total and taken is not None:
            used.append((taken / total, f"GPU {gpu['index']}: {format_bytes(taken)} of {format_bytes(total)}"))
    if not used:
        return answer.unknown("nvidia-smi does not report it")
    ratio, text = max(used)
    if ratio > 0.1:
        return answer.warning(
            text,
            why="another process uses its memory, and possibly its cores",
            fix="find it with nvidia-smi, or choose another GPU with CUDA_VISIBLE_DEVICES",
            used_ratio=round(ratio, 4),
        )
    return answer.good(f"at most {ratio * 100:.0f}%", used_ratio=round(ratio, 4))


@machine_check("pcie-width", "accelerator", "PCIe width")
def check_pcie_width(host: Host, answer: ResultMaker) -> MachineCheck | tuple[MachineCheck, ...]:
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
        return answer.unknown("nvidia-smi does not report it (usual in virtual machines)")
    if narrow:
        return answer.warning(
            listed(narrow),
            why="copies from the host are slower by that factor",
            fix="check again under load, then check the slot, the riser and the BIOS",
        )
    return answer.good("full")


def _mebibytes(text: str | None) -> int | None:
    """Bytes from nvidia-smi's number of MiB."""
    return int(text) << 20 if text is not None and text.isdigit() else None
