"""Facts of the training's python -> checks of torch's build and what comes with it."""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.bench.host import Host, listed
from hotloop.bench.machine_check import ResultMaker, machine_check
from hotloop.core.doctor import MachineCheck
from hotloop.core.findings import Value
from hotloop.core.redact import redact_text


@machine_check("torch", "torch", "torch")
def check_torch(host: Host, answer: ResultMaker) -> MachineCheck:
    if not host.facts:
        return answer.unknown(
            redact_text(host.complaint or "torch could not be queried"), fix="hotloop doctor --python PATH"
        )
    error = host.fact("torch_error")
    if isinstance(error, Mapping) and error.get("missing"):
        return answer.unknown(
            f"{host.interpreter} has no torch", fix="hotloop doctor --python PATH, with the training's Python"
        )
    if isinstance(error, Mapping):
        return answer.harmful(
            f"import torch fails: {redact_text(str(error.get('message')))}",
            why=f"a training with {host.interpreter} fails at import",
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


@machine_check("cpu-libraries", "torch", "CPU libraries")
def check_cpu_libraries(host: Host, answer: ResultMaker) -> MachineCheck:
    if not host.has_torch:
        return answer.without_torch()
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
            why="matrix products or convolutions on the CPU run without an optimised library",
            fix="install torch from its official wheels",
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


@machine_check("start-method", "torch", "worker start method")
def check_start_method(host: Host, answer: ResultMaker) -> MachineCheck:
    method = host.fact("start_method")
    if not isinstance(method, str):
        return answer.unknown("the training's Python could not be queried")
    why = "" if method == "fork" else "every DataLoader worker imports the program again; use persistent_workers=True"
    return answer.noted(method, why=why, start_method=method)


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
