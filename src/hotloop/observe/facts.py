"""Objects of the training -> facts: plain JSON dicts of their settings (docs/formats.md lists the keys)."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from typing import Any

import torch

from hotloop.core.cores import count_cores, list_cgroup_files, read_system_file
from hotloop.core.redact import redact_command, redact_text

from .places import Place, place_of_callable, user_place_of_callable

ENVIRONMENT = re.compile(
    r"^(TORCH_|PYTORCH_|TORCHINDUCTOR_|CUDA_(VISIBLE|LAUNCH|DEVICE|MODULE)|NCCL_|GLOO_|OMP_|MKL_NUM|KMP_|GOMP_|OPENBLAS_NUM|NUMEXPR_"
    r"|MALLOC_|LD_PRELOAD$|TOKENIZERS_PARALLELISM$|RANK$|LOCAL_RANK$|WORLD_SIZE$|LOCAL_WORLD_SIZE$|SLURM_(JOB_ID|NTASKS|PROCID|NODEID|NNODES)$)"
)
"""Names of environment variables that may be recorded; everything else stays out of a recording."""


def integer(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def process_facts(anchor_wall_s: float, restart: int, affinity_cores: int | None = None) -> dict[str, Any]:
    """Who this process is: ranks from the launcher's variables or an initialised process group.

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
        "pid": os.getpid(),
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
        "process_start_wall_s": process_start_wall_s(),
        "cores": count_cores(affinity_cores),
        "torch_threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "accelerator": accelerator,
        "device_name": _device_name(accelerator),
        "memory_total_bytes": memory_limit_bytes(),
        "environment": {k: redact_text(v[:1000]) for k, v in os.environ.items() if ENVIRONMENT.match(k)},
    }


def _run_id() -> str | None:
    """What torchrun calls the job on all of its nodes and in all of its attempts; None with another launcher."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return None if name is None else redact_text(name[:200])


def _is_main_process() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is None or process.parent_process() is None


def accelerator_type() -> str | None:
    """'cuda' and the like when this process uses one by now; None otherwise.

    Only what is initialised counts: asking whether CUDA is available may initialise its driver, after which a
    training that forks would fail.
    """
    kinds = ["cuda", "mps", "xpu"]
    if hasattr(torch, "accelerator"):  # from torch 2.6 on; names the kind that torch was built for, and asks no driver
        built_for = torch.accelerator.current_accelerator()
        if built_for is not None and built_for.type not in kinds:
            kinds.append(built_for.type)
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


def process_start_wall_s() -> float | None:
    """Wall time at which the kernel started this process; None where /proc does not tell."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime") as file:
            uptime_s = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return time.time() - uptime_s + ticks / os.sysconf("SC_CLK_TCK")


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


def first_batch_size(loader: Any) -> int | None:
    """Samples in the first batch of a DataLoader that makes the batches itself; None when something else makes them."""
    size = getattr(loader, "batch_size", None)
    if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
        return None
    try:
        return min(size, len(loader.sampler)) or None
    except (TypeError, NotImplementedError):  # an endless data set has no length
        return size


def loader_facts(loader: Any, loader_id: int, where: Place | None) -> dict[str, Any]:
    """Settings of a torch DataLoader."""
    dataset = loader.dataset
    iterable = loader.__dict__.get("_dataset_kind", 0) == 1
    fetch = None if iterable else getattr(type(dataset), "__getitem__", None)
    if iterable:
        fetch = getattr(type(dataset), "__iter__", None)
    elif getattr(type(dataset), "__getitems__", None) is not None:
        fetch = type(dataset).__getitems__
    inner, depth = dataset, 0
    while place_of_callable(fetch) is not None and hasattr(inner, "dataset") and depth < 4:
        inner, depth = inner.dataset, depth + 1  # Subset and its kin: the wrapped data set does the work
        fetch = getattr(type(inner), "__getitem__", fetch)
    context = getattr(loader, "multiprocessing_context", None)
    method = None
    if loader.num_workers:
        import multiprocessing

        method = context.get_start_method() if context is not None else multiprocessing.get_start_method(True)
    try:
        length: int | None = len(loader)
    except (TypeError, NotImplementedError):
        length = None
    batch_size = loader.batch_size
    if batch_size is None:
        batch_size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    collate = loader.collate_fn
    return {
        "kind": "loader",
        "id": loader_id,
        "where": where,
        "num_workers": loader.num_workers,
        "chooses_workers": bool(getattr(loader, "chooses_workers", False)),
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(
            loader.persistent_workers or getattr(loader.__dict__.get("_get_iterator"), "persistent", False)
        ),
        "prefetch_factor": loader.prefetch_factor,
        "drop_last": bool(loader.drop_last),
        "start_method": method,
        "iterable": iterable,
        "length": length,
        "dataset": type(inner).__qualname__,
        "fetch_where": user_place_of_callable(fetch),
        "collate": getattr(collate, "__qualname__", type(collate).__qualname__),
        "collate_where": user_place_of_callable(collate),
    }


_OPTIMIZER_SETTINGS = frozenset(
    ("momentum", "weight_decay", "amsgrad", "nesterov", "dampening", "centered", "maximize")
)
"""Settings that change what a step computes; the probe repeats them."""


def optimizer_facts(optimizer: Any, index: int, where: Place | None, steps: int) -> dict[str, Any]:
    """Settings and parameter sizes of an optimizer."""
    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"] if isinstance(p, torch.Tensor)]
    numels: dict[int, int] = {}
    for p in parameters:
        numels[p.numel()] = numels.get(p.numel(), 0) + 1
    first = groups[0] if groups else {}
    torchs = getattr(torch.optim, type(optimizer).__name__, None)
    return {
        "kind": "optimizer",
        "index": index,
        "class": type(optimizer).__name__,
        "own_class": not (isinstance(torchs, type) and isinstance(optimizer, torchs)),
        "where": where,
        "foreach": first.get("foreach"),
        "fused": first.get("fused"),
        "capturable": first.get("capturable"),
        "groups": len(groups),
        "tensors": len(parameters),
        "parameters": sum(n * c for n, c in numels.items()),
        "device": parameters[0].device.type if parameters else None,
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
        "steps": steps,
        "state_steps": _state_steps(optimizer),
        "settings": {k: v for k, v in first.items() if k in _OPTIMIZER_SETTINGS and isinstance(v, (bool, int, float))},
        "numels": sorted(([n, c] for n, c in numels.items()), reverse=True)[:64],
    }


def _state_steps(optimizer: Any) -> int | None:
    """Steps that the optimizer's own state counts, those of a loaded checkpoint included; None where it counts none.

    A count on a device is left alone, where reading it would wait, and a tensor's subclass, where it may communicate.
    """
    for state in optimizer.state.values():
        step = state.get("step") if isinstance(state, dict) else None
        if isinstance(step, torch.Tensor):
            is_plain = type(step) is torch.Tensor and step.device.type == "cpu" and step.numel() == 1
            return int(step.item()) if is_plain else None
        return step if isinstance(step, int) else None
    return None


_SHARDING_CLASSES = ("FSDPModule", "FullyShardedDataParallel")
"""Classes of modules whose weights lie in parts on the ranks, which gather them with collectives of their own."""


def sharded_group(model: Any) -> Any:
    """The first of FSDP2's parameter groups in a model, whose ``reduce_grads`` says whether backward spreads gradients.

    None without FSDP2, and where this torch keeps that elsewhere: it is no public name.
    """
    for part in model.modules():
        state_of = getattr(part, "_get_fsdp_state", None)
        if state_of is None:
            continue
        state = state_of()
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            if isinstance(getattr(group, "reduce_grads", None), bool):
                return group
    return None


def model_facts(model: Any, model_id: int) -> dict[str, Any]:
    """Size, dtype and device of the module whose forward feeds backward."""
    parameters = list(model.parameters())
    inner = model
    for name in ("_orig_mod", "module"):
        inner = inner.__dict__.get("_modules", {}).get(name, inner)
    trainable = [p for p in parameters if p.requires_grad] or parameters
    return {
        "kind": "model",
        "id": model_id,
        "class": type(inner).__qualname__,
        "parameters": sum(p.numel() for p in parameters),
        "tensors": len(parameters),
        "bytes": sum(p.numel() * p.element_size() for p in parameters),
        "dtype": str(trainable[0].dtype).removeprefix("torch.") if trainable else None,
        "device": trainable[0].device.type if trainable else None,
        "where": place_of_callable(getattr(type(inner), "forward", None)),
        "recurrent": any(isinstance(part, torch.nn.RNNBase) for part in model.modules()),
        "sharded": any(cls.__name__ in _SHARDING_CLASSES for part in model.modules() for cls in type(part).__mro__),
    }
