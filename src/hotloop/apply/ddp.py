"""A DistributedDataParallel -> what techniques ask of it: its settings, its rhythm, and what all ranks agree on.

Whatever the ranks decide together is decided at a forward that follows a backward through DDP: that is the one place
which all ranks reach after the same exchanges, whatever else they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CHUNK_BYTES = 64 << 20
"""Gradients are exchanged in pieces of about this size where hotloop does it."""


def find_ddp(model: Any) -> list[Any]:
    """The DistributedDataParallel modules in a model, itself included."""
    from torch.nn.parallel import DistributedDataParallel

    return [module for module in model.modules() if isinstance(module, DistributedDataParallel)]


def why_special(ddp: Any) -> str | None:
    """What this DDP does beyond averaging its gradients, which hotloop cannot repeat; None when nothing."""
    if ddp._comm_hooks or ddp._get_ddp_logging_data().get("comm_hook"):
        return "DDP has a communication hook"
    return _why_unusual(ddp)


def why_no_average(ddp: Any) -> str | None:
    """As ``why_special``, for what is right with every hook that averages: with hotloop's own too."""
    states = [state for _, state in ddp._comm_hooks]
    if states and all(type(state).__module__.startswith("hotloop.apply.compression.") for state in states):
        return _why_unusual(ddp)
    return why_special(ddp)


def _why_unusual(ddp: Any) -> str | None:
    if getattr(ddp, "mixed_precision", None) is not None:
        return "DDP's own mixed precision is on"
    if getattr(ddp, "_use_python_reducer", False):
        return "Dynamo's Python reducer is in use"
    if getattr(ddp, "_delay_all_reduce_params", None):
        return "DDP delays the all-reduce of some parameters"
    if getattr(ddp, "skip_all_reduce_unused_params", False):
        return "DDP skips the all-reduce of unused parameters"
    if ddp._join_config.enable:
        return "the script joins ranks with uneven inputs"
    return None


def reduced_parameters(ddp: Any) -> list[Any]:
    """The parameters whose gradients DDP averages, in its order (the same on all ranks)."""
    parameters, _ = ddp._build_params_for_reducer()
    return list(parameters)


def agree(ddp: Any, values: Sequence[int]) -> list[tuple[int, int]]:
    """Least and greatest of each value over all ranks. All ranks must call this at the same place."""
    import torch
    import torch.distributed as dist

    device = next(ddp.parameters()).device
    both = torch.tensor([sign * value for value in values for sign in (1, -1)], dtype=torch.int64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=ddp.process_group)
    found = both.tolist()
    return [(-found[i + 1], found[i]) for i in range(0, len(found), 2)]


def average_gradients(ddp: Any, parameters: Sequence[Any]) -> None:
    """Replace every gradient by its mean over all ranks, as DDP would have. All ranks must call this."""
    import torch
    import torch.distributed as dist
    from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

    group = ddp.process_group
    world_size = dist.get_world_size(group)
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for chunk in _chunks([parameter.grad for parameter in parameters]):
            flat = _flatten_dense_tensors(chunk)  # type: ignore[no-untyped-call]
            flat.div_(world_size)
            dist.all_reduce(flat, group=group)
            means = _unflatten_dense_tensors(flat, chunk)  # type: ignore[no-untyped-call]
            for tensor, mean in zip(chunk, means, strict=True):
                tensor.copy_(mean)


def rebuild_reducer(ddp: Any) -> None:
    """Give DDP a new reducer with the settings that its attributes have now. Nothing is exchanged.

    The steps of DDP's own ``__setstate__``: torch keeps the settings of a reducer from its construction on.
    """
    parameters, sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False


def _chunks(tensors: Sequence[Any]) -> list[list[Any]]:
    """Tensors of one type and device together, in pieces of about CHUNK_BYTES, in an order that all ranks share."""
    found: list[list[Any]] = []
    sizes_bytes: list[int] = []
    open_piece: dict[Any, int] = {}
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        index = open_piece.get(kind)
        if index is None or sizes_bytes[index] >= CHUNK_BYTES:
            index = open_piece[kind] = len(found)
            found.append([])
            sizes_bytes.append(0)
        found[index].append(tensor)
        sizes_bytes[index] += tensor.numel() * tensor.element_size()
    return found
