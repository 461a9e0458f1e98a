"""A DistributedDataParallel -> what techniques ask of it: its settings, its rhythm, and what all ranks agree on.

All joint decisions of the ranks are made at a forward that follows a backward through DDP: that is the one place
which all ranks reach after the same exchanges, whatever else they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hotloop.change.apply.forward import wrap_forward
from hotloop.core.findings import Numerics
from hotloop.core.techniques import Applied, Effect, NotApplicable

CHUNK_BYTES = 64 << 20
"""Gradients are exchanged in pieces of about this size where hotloop does it."""


def find_ddp(model: Any) -> list[Any]:
    """The DistributedDataParallel modules in a model, itself included."""
    from torch.nn.parallel import DistributedDataParallel

    return [module for module in model.modules() if isinstance(module, DistributedDataParallel)]


def why_special(ddp: Any) -> str | None:
    """Work of this DDP beyond averaging gradients, which hotloop cannot repeat; None without any."""
    if ddp._comm_hooks or ddp._get_ddp_logging_data().get("comm_hook"):
        return "DDP has a communication hook"
    return _why_unusual(ddp)


def why_no_average(ddp: Any) -> str | None:
    """As ``why_special``, for what is right with every hook that averages: with hotloop's own too."""
    states = [state for _, state in ddp._comm_hooks]
    if states and all(type(state).__module__.startswith("hotloop.change.apply.compression.") for state in states):
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
    device = next(ddp.parameters()).device
    both = torch.tensor([sign * value for value in values for sign in (1, -1)], dtype=torch.int64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=ddp.process_group)
    found = both.tolist()
    return [(-found[i + 1], found[i]) for i in range(0, len(found), 2)]


def average_gradients(ddp: Any, parameters: Sequence[Any]) -> None:
    """Replace every gradient by its mean over all ranks, as DDP would have. All ranks must call this."""
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


class UsedParameters:
    """Counts which parameters get gradients, until it can decide. All ranks decide at the same forward."""

    def __init__(self, ddp: Any, steps: int, emit: Callable[[Effect], None]) -> None:
        self._ddp = ddp
        self._steps = steps
        self._emit = emit
        self._count = 0
        self._fired: set[int] = set()
        self._parameters = reduced_parameters(ddp)
        self._missing: int | None = None
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._got, index))
            for index, parameter in enumerate(self._parameters)
        ]
        self._unwrap = wrap_forward(ddp, self._around)

    def _got(self, index: int, parameter: Any) -> None:
        self._fired.add(index)

    def _around(self, call: Any, args: Any, kwargs: Any) -> Any:
        if self._ddp is not None and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._before_forward()
        return call(*args, **kwargs)

    def _before_forward(self) -> None:
        if not self._fired:
            return
        self._count += 1
        if len(self._fired) < len(self._parameters) and self._missing is None:
            self._missing = next(i for i in range(len(self._parameters)) if i not in self._fired)
        self._fired.clear()
        if self._count >= self._steps:
            self._decide()

    def _decide(self) -> None:
        ddp, self._ddp = self._ddp, None
        for handle in self._handles:
            handle.remove()
        self._unwrap()
        special = why_special(ddp)
        if ddp._join_config.enable:  # ranks that have run out of data would not take part
            self._emit(NotApplicable(why=str(special)))
            return
        usable = special is None and ddp.find_unused_parameters
        (least, _), (all_used, _), (_, ranks) = agree(ddp, [int(usable), int(self._missing is None), 1])
        if not all_used:
            which = next((name for name, p in ddp.module.named_parameters() if self._is_missing(p)), "one")
            where = "on another rank" if self._missing is None else f"({which})"
            self._emit(NotApplicable(why=f"a parameter got no gradient in the first {self._count} backwards {where}"))
            return
        if not least or not ranks:
            self._emit(NotApplicable(why=special or "the script changed DDP's settings during training"))
            return
        ddp.find_unused_parameters = False
        rebuild_reducer(ddp)
        text = (
            "find_unused_parameters is off from backward {backward} on: all {parameters} parameters got their "
            "gradients in the {watched} backwards before, on all ranks"
        )
        values = {"backward": self._count + 1, "parameters": len(self._parameters), "watched": self._count}
        two = dist.get_world_size(ddp.process_group) <= 2
        self._emit(Applied(text=text, values=values, numerics=Numerics.EXACT if two else None))

    def _is_missing(self, parameter: Any) -> bool:
        return self._missing is not None and parameter is self._parameters[self._missing]
