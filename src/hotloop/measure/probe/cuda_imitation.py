"""Differences between the memory of training on a CUDA device and on the CPU, for tensors that are traced on the CPU.

Each is an operator of the CPU that gets CUDA's rule.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

GRANULE_BYTES = 512
"""The caching allocator rounds every block up to it (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""
FLASH_WIDTH = 256
"""The widest attention head of the flash kernel."""
LOW = (torch.float16, torch.bfloat16)

# torch 2.13, include/ATen/autocast_mode.h, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE: in float32 on CUDA. Those
# for which the CPU has a rule of its own keep it.
FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm "
    "native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss "
    "cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss "
    "mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d "
    "_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d "
    "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
FLOAT32_RESULT = "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum"
"""Those that get dtype=float32 where the call names none."""


@contextlib.contextmanager
def imitate_cuda() -> Iterator[list[str]]:
    """While entered, this process's CPU operators keep what CUDA's do; a line for each difference."""
    make_library: Any = torch.library.Library
    library = make_library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid", category=UserWarning)  # that is the purpose
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        for op, call in _follow_autocast():
            library.impl(op, call, "AutocastCPU")
    uses_onednn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # else an LSTM is one operator of oneDNN
    try:
        yield [
            "autocast: CUDA's list of operators in float32",
            "dropout: keeps a bool mask",
            "attention: flash kernel, or the memory-efficient one for float32, masks and wide heads",
            f"allocator: blocks of {GRANULE_BYTES} bytes",
            "optimizer: foreach, as CUDA's default",
            "LSTM and GRU: the tensors of their elementary operators in place of cuDNN's",
        ]
    finally:
        torch._C._set_mkldnn_enabled(uses_onednn)
        library._destroy()


def _follow_autocast() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Operators whose inputs or result autocast makes float32 on CUDA and not on the CPU, and what they become."""
    excluded = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    for names, make in ((FLOAT32, _in_float32), (FLOAT32_RESULT, _result_in_float32)):
        for name in names.split():
            packet = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                op = getattr(packet, overload)
                if str(op._schema.arguments[0].type) != "Tensor" or op._schema.arguments[-1].is_out:
                    continue
                if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "AutocastCPU"):
                    yield op, make(op, excluded)


def _dropout(x: torch.Tensor, p: float, train: bool) -> Any:
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
) -> Any:
    if attn_mask is None and query.dtype in LOW and query.shape[-1] <= FLASH_WIDTH:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -torch.inf)
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]


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
