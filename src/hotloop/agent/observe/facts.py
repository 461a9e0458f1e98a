"""This process -> the fact that says who it is (docs/formats.md lists the keys)."""

from __future__ import annotations

import os
import re
import socket
import sys
from typing import Any

import torch

from hotloop.core.redact import redact_command, redact_text

ENVIRONMENT = re.compile(
    r"^(TORCH_|PYTORCH_|TORCHINDUCTOR_|TRITON_|CUDA_(VISIBLE|LAUNCH|DEVICE|MODULE)|CUBLAS|CUDNN_|NVIDIA_TF32|NCCL_|GLOO_|UCX_|FI_"
    r"|OMP_|MKL_|KMP_|GOMP_|OPENBLAS_NUM|NUMEXPR_|DNNL_|ONEDNN_|ATEN_CPU|PYTHON(MALLOC|DEVMODE|OPTIMIZE|TRACEMALLOC|ASYNCIODEBUG)$"
    r"|MALLOC_|LD_PRELOAD$|TOKENIZERS_PARALLELISM$|RANK$|LOCAL_RANK$|WORLD_SIZE$|LOCAL_WORLD_SIZE$|SLURM_(JOB_ID|NTASKS|PROCID|NODEID|NNODES)$)"
)
"""Names of environment variables that may be recorded; everything else stays out of a recording."""


def integer(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def settings_left_on() -> list[str]:
    """Settings of torch's own for finding faults, that cost time in every step and are on at its first backward."""
    variables = os.environ.get
    found = {
        "anomaly-detection": torch.is_anomaly_enabled(),
        "deterministic-algorithms": torch.are_deterministic_algorithms_enabled(),
        "synchronous-launches": variables("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
        "distributed-debug": variables("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL",
    }
    return [name for name, is_on in found.items() if is_on]


def process_facts(anchor_wall_s: float, restart: int, affinity_cores: int | None = None) -> dict[str, Any]:
    """Who this process is: ranks from the launcher's variables or an initialized process group.

    ``affinity_cores`` is how many cores it might run on before torch was imported.
    """
    rank, local_rank = integer(os.environ.get("RANK")), integer(os.environ.get("LOCAL_RANK"))
    world_size = integer(os.environ.get("WORLD_SIZE"))
    local_world_size = integer(os.environ.get("LOCAL_WORLD_SIZE"))
    if rank is None and "SLURM_PROCID" in os.environ and integer(os.environ.get("SLURM_NTASKS")) not in (None, 1):
        rank, local_rank = integer(os.environ["SLURM_PROCID"]), integer(os.environ.get("SLURM_LOCALID"))
        world_size = integer(os.environ.get("SLURM_NTASKS"))
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    if rank is None and not _is_main_process():
        world_size = 1  # a process that the training started by hand (hogwild): it has no rank
    elif rank is None:
        rank, world_size = 0, 1
    accelerator = accelerator_type()
    return {
        "kind": "process",
        "host": socket.gethostname(),
        "ppid": os.getppid(),
        "rank": rank,
        "local_rank": local_rank,
        "world_size": world_size or 1,
        "local_world_size": local_world_size,
        "restart": restart,
        "run_id": _run_id(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "executable": sys.executable,
        "argv": list(redact_command([str(a)[:1000] for a in getattr(sys, "orig_argv", sys.argv)[:64]])),
        "cwd": os.getcwd(),
        "anchor_wall_s": anchor_wall_s,
        "affinity_cores": affinity_cores,
        "settings": settings_left_on(),
        "torch_threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "accelerator": accelerator,
        "device_name": _device_name(accelerator),
        "environment": {k: redact_text(v[:1000]) for k, v in dict(os.environ).items() if ENVIRONMENT.match(k)},
    }


def _run_id() -> str | None:
    """torchrun's id of the job, the same on all of its nodes and in all of its attempts; None with another launcher."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return None if name is None else redact_text(name[:200])


def _is_main_process() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is None or process.parent_process() is None


def accelerator_type() -> str | None:
    """'cuda' and the like when this process uses one by now; None otherwise.

    Only what is initialized counts: asking whether CUDA is available may initialize its driver, after which a
    training that forks would fail.
    """
    # torch.accelerator would ask the driver in torch 2.6, and raise where there is no device.
    kinds = ("cuda", "mps", "xpu", "mtia", "hpu", torch._C._get_privateuse1_backend_name())
    return next((kind for kind in kinds if _is_in_use(kind)), None)


def _is_in_use(kind: str) -> bool:
    if kind == "mps":
        mps = getattr(torch.backends, "mps", None)
        return mps is not None and bool(mps.is_available())
    is_initialized = getattr(getattr(torch, kind, None), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def _device_name(accelerator: str | None) -> str | None:
    get_device_name = getattr(getattr(torch, accelerator or "cpu", None), "get_device_name", None)
    return None if get_device_name is None else str(get_device_name())
