"""What training on a CUDA device keeps in memory otherwise than on the CPU, for tensors that are traced on the CPU.

Each is an operator of the CPU that gets CUDA's rule. Loaded by its path where hotloop is not installed: torch and the
standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

GRANULE_BYTES = 512
"""The caching allocator rounds every block up to it (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""
FLASH_WIDTH = 256
"""The widest attention head of the flash kernel."""
LOW = (torch.float16, torch.bfloat16)

# torch 2.13, aten/src/ATen/autocast_mode.h: in float32 on CUDA, in their input's type on the CPU.
FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm "
    "native_layer_norm group_norm rms_norm cosine_similarity kl_div l1_loss smooth_l1_loss poisson_nll_loss "
    "soft_margin_loss binary_cross_entropy_with_logits logsumexp renorm dist pdist"
).split()
FLOAT32_RESULT = ("softmax", "log_softmax", "cumprod", "cumsum", "prod", "sum")
"""Those that get dtype=float32 where the call names none."""


def imitate_cuda() -> tuple[Any, list[str]]:
    """Change this process's CPU operators; what has to be kept for as long as they shall be so, and what was changed."""
    torch.backends.mkldnn.set_flags(False)  # else an LSTM is one operator of oneDNN
    library = torch.library.Library("aten", "IMPL")
    library.impl("dropout", _dropout, "AutogradCPU")
    library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
    excluded = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    for names, make in ((FLOAT32, _in_float32), (FLOAT32_RESULT, _result_in_float32)):
        for name in names:
            packet = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                op = getattr(packet, overload)
                first, last = op._schema.arguments[0], op._schema.arguments[-1]
                if str(first.type) != "Tensor" or last.is_out:
                    continue
                if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "AutocastCPU"):
                    continue  # in float32 on the CPU too
                library.impl(op, make(op, excluded), "AutocastCPU")
    return library, [
        "autocast: CUDA's list of operators in float32",
        "dropout: keeps a bool mask",
        "attention: flash kernel, or the memory-efficient one for float32, masks and wide heads",
        f"allocator: blocks of {GRANULE_BYTES} bytes",
        "optimizer: foreach, as CUDA's default",
    ]


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0 or x.numel() == 0:
        return x.clone() if train and p == 0 else x
    return torch.ops.aten.native_dropout(x, p, train)[0]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if attn_mask is None and query.dtype in LOW and query.shape[-1] <= FLASH_WIDTH:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    bias = attn_mask
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            bias = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -torch.inf)
        bias = bias.expand(*query.shape[:-1], key.shape[-2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]


def _in_float32(op: Any, excluded: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return op(*map(_widen, args), **{name: _widen(value) for name, value in kwargs.items()})

    return call


def _result_in_float32(op: Any, excluded: Any) -> Callable[..., Any]:
    takes_dtype = any(argument.name == "dtype" for argument in op._schema.arguments)

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            if takes_dtype and isinstance(x, torch.Tensor) and x.dtype in LOW and kwargs.get("dtype") is None:
                kwargs["dtype"] = torch.float32
                place = [argument.name for argument in op._schema.arguments].index("dtype")
                args = args[: place - 1]
            return op(x, *args, **kwargs)

    return call


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in LOW else value
