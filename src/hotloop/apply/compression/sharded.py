"""FSDP2's reduce-scatter of gradients in 16 bits, through the place that torch gives for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class CastReduceScatter:
    """What FSDPModule.set_custom_reduce_scatter asks for: the sum in 16 bits, each rank its shard, back in float32.

    A gradient is divided by the number of ranks before it is cast, so that the sum of float16 overflows no earlier than
    a single gradient.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """It waits as torch's own does on its stream: the answer None says that nothing is under way."""
        if op == dist.ReduceOp.AVG:
            input_tensor, op = input_tensor / group.size(), dist.ReduceOp.SUM
        short = input_tensor.to(self.dtype)
        received = torch.empty_like(output_tensor, dtype=self.dtype)
        _reduce_scatter(received, short, op=op, group=group)
        output_tensor.copy_(received)


def why_not_cast(modules: Sequence[Any]) -> str | None:
    """What keeps FSDP2's modules from reducing in 16 bits; None where nothing does."""
    if not hasattr(modules[0], "set_custom_reduce_scatter"):
        return f"FSDP2 of torch {torch.__version__} has no place for another reduce-scatter"
    for module in modules:
        for group in module._get_fsdp_state()._fsdp_param_groups:
            if type(group._reduce_scatter_comm).__name__ != "DefaultReduceScatter":
                return f"FSDP2 already reduces by {type(group._reduce_scatter_comm).__name__}"
            for one in group.fsdp_params:
                policy = group.mp_policy
                dtype = policy.reduce_dtype or policy.param_dtype or one.sharded_param.dtype
                if dtype != torch.float32:
                    return f"FSDP2 reduces gradients in {dtype}, not torch.float32"
        if len(module._get_fsdp_state()._fsdp_param_groups) > 1:
            return "a module's parameters are sharded over several meshes"
    return None


def cast_reduce_scatter(modules: Sequence[Any], dtype: torch.dtype) -> None:
    """Make FSDP2's modules reduce their gradients in this dtype."""
    for module in modules:
        if module._get_fsdp_state()._fsdp_param_groups:  # the root may have none of its own
            module.set_custom_reduce_scatter(CastReduceScatter(dtype))


_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
