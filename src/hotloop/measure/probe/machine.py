"""This interpreter, its torch and its accelerators -> one JSON object of facts on standard output.

Run as ``python machine.py`` with the training's interpreter. It needs the standard library only: without torch it says
so and reports the rest. It judges nothing. A fact that cannot be had is null.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

SCHEMA = "hotloop.machine/1"
CPU_FLAGS = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
    *("asimd", "sve", "bf16", "i8mm"),
)
"""Flags of /proc/cpuinfo that decide which kernels a CPU runs; the last four are ARM's names."""
MOST_DEVICES = 32


def main() -> int:
    # The folder of a script comes first on the path; nothing in ours may hide a module of the training's.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    out = os.dup(1)
    os.dup2(2, 1)  # what torch or a sitecustomize prints must not end up inside the JSON
    facts = collect_facts()
    with os.fdopen(out, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(facts) + "\n")
    return 0


def collect_facts() -> dict[str, Any]:
    """All facts; ``torch`` is null when it cannot be imported, and ``torch_error`` says why."""
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "python": platform.python_version(),
        "executable": sys.executable,
        "cpu_flags": cpu_flags(),
        "affinity_count": len(os.sched_getaffinity(0)),
        "torch": None,
        "torch_error": None,
    }
    start_ns = time.perf_counter_ns()
    try:
        import torch
    except ModuleNotFoundError as error:
        missing = error.name == "torch"
        facts["torch_error"] = {"missing": missing, "message": one_line(error)}
        return facts
    except Exception as error:  # a broken installation fails in many ways, and each is a result that we look for
        facts["torch_error"] = {"missing": False, "message": one_line(error)}
        return facts
    import_ns = time.perf_counter_ns() - start_ns
    about = attempt(lambda: torch_facts(torch))
    facts["torch"] = (about or {"version": None}) | {"import_ns": import_ns}
    facts["accelerator"] = attempt(lambda: accelerator_facts(torch))
    facts["distributed"] = attempt(lambda: distributed_facts(torch))
    # A bound main thread hands its mask to every process that it forks, so it is read after torch used its threads.
    attempt(lambda: torch.ones(1 << 16).sum().item())
    facts["affinity_after_torch_count"] = len(os.sched_getaffinity(0))
    facts["openmp"] = openmp_runtimes()
    return facts


def torch_facts(torch: Any) -> dict[str, Any]:
    """Version and build of torch, and its threads."""
    show = attempt(lambda: str(torch.__config__.show())) or ""
    settings = dict(re.findall(r"(\w+)=([^,\n]+)", show))
    return {
        "version": attempt(lambda: str(torch.__version__)),
        "cuda": getattr(torch.version, "cuda", None),
        "hip": getattr(torch.version, "hip", None),
        "debug": bool(getattr(torch.version, "debug", False)),
        "build_type": settings.get("BUILD_TYPE"),
        "mkl": attempt(lambda: bool(torch.backends.mkl.is_available())),
        "onednn": attempt(lambda: bool(torch.backends.mkldnn.is_available())),
        "threads": attempt(lambda: int(torch.get_num_threads())),
    }


def accelerator_facts(torch: Any) -> dict[str, Any]:
    """Devices that torch can use: {"kind": null | "cuda" | "xpu" | "mps", "devices": [...], "warning": null | text}."""
    captured = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(captured):
        warnings.simplefilter("always")
        cuda = bool(attempt(lambda: torch.cuda.is_available()))
    warning = "; ".join(one_line(w.message) for w in caught) or None
    if cuda:
        return {
            "kind": "cuda",
            "devices": attempt(lambda: cuda_devices(torch)) or [],
            "warning": warning,
            "architectures": attempt(lambda: list(torch.cuda.get_arch_list())),
        }
    for kind in ("xpu", "mps"):
        module = getattr(torch, kind, None)
        if kind == "mps":
            module = getattr(torch.backends, "mps", None)
        usable = getattr(module, "is_available", None)
        if usable is not None and attempt(usable):
            count = attempt(lambda: int(torch.xpu.device_count())) if kind == "xpu" else 1
            return {"kind": kind, "devices": [{"index": i} for i in range(count or 0)], "warning": warning}
    return {"kind": None, "devices": [], "warning": warning}


def cuda_devices(torch: Any) -> list[dict[str, Any]]:
    devices = []
    for index in range(min(torch.cuda.device_count(), MOST_DEVICES)):
        about = torch.cuda.get_device_properties(index)
        devices.append(
            {
                "index": index,
                "name": str(about.name),
                "total_bytes": int(about.total_memory),
                "capability": [int(about.major), int(about.minor)],
            }
        )
    return devices


def distributed_facts(torch: Any) -> dict[str, Any]:
    """Which backends of torch.distributed this build has."""
    names = ("gloo", "nccl", "mpi", "ucc", "xccl")
    distributed = attempt(lambda: __import__("torch.distributed").distributed)
    available = distributed is not None and bool(distributed.is_available())
    backends = {}
    for name in names:
        ask = getattr(distributed, f"is_{name}_available", None) if available else None
        backends[name] = bool(attempt(ask)) if ask is not None else False
    version = None
    if backends["nccl"]:
        version = attempt(lambda: ".".join(str(n) for n in torch.cuda.nccl.version()))
    return {"backends": backends, "nccl_version": version}


def cpu_flags() -> list[str] | None:
    """Those of CPU_FLAGS that this CPU has; None where /proc/cpuinfo does not say."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    return None if found is None else [flag for flag in CPU_FLAGS if flag in found.group(1).split()]


def openmp_runtimes() -> list[str] | None:
    """Names of the OpenMP runtimes in this process, such as libgomp and libiomp5; None where that is unknown."""
    maps = read("/proc/self/maps", 1 << 24)
    if not maps:
        return None
    return sorted({name for name in ("libgomp", "libiomp5", "libomp") if re.search(rf"/{name}[.-]", maps)})


def attempt(get: Callable[[], Any]) -> Any:
    """The value of ``get()``, or None: one odd library must not cost the other facts."""
    try:
        return get()
    except Exception:  # whatever it raises, the fact is unknown
        return None


def one_line(problem: object) -> str:
    text = " ".join(str(problem).split())
    return (f"{type(problem).__name__}: {text}" if isinstance(problem, Exception) else text)[:300]


def read(path: str, limit: int = 1 << 20) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
