"""One tensor <-> its form with fewer bits, with its size in bytes and its error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from hotloop.core.errors import UsageError

from .quantization import PIECE_COUNT, blocks_of, dequantize, levels_of, pack_bits, quantize, unpack_bits
from .selection import select_largest

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
BITS = (2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedTensor:
    """Figures that both forms report. The tensors are on the device of the tensor that was compressed."""

    shape: torch.Size
    dtype: torch.dtype
    dense_norm: torch.Tensor
    """L2 norms (float64, 0-d) of the tensor and of its change by compression. Only ``error`` reads them."""
    lost_norm: torch.Tensor

    @property
    def sent_bytes(self) -> int:
        """Bytes that would be sent: the payload alone, without shape and dtype."""
        raise NotImplementedError

    @property
    def ratio(self) -> float:
        """Bytes sent per byte of the dense tensor; 0 for an empty one."""
        dense_bytes = self.shape.numel() * self.dtype.itemsize
        return self.sent_bytes / dense_bytes if dense_bytes else 0.0

    @property
    def error(self) -> float | None:
        """The L2 norm of what changed, relative to the tensor's; None if that is not finite. Waits for the device."""
        dense, lost = float(self.dense_norm), float(self.lost_norm)
        if not math.isfinite(dense):
            return None
        return lost / dense if dense else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseForm(CompressedTensor):
    """The chosen elements: ``values`` in the tensor's dtype and ``indices`` into the flat tensor (int32, or int64)."""

    values: torch.Tensor
    indices: torch.Tensor

    @property
    def sent_bytes(self) -> int:
        return self.values.nbytes + self.indices.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedForm(CompressedTensor):
    """``packed``: integers of ``num_bits`` as uint8 without gaps; ``scales``: one per block of 1,024 elements."""

    num_bits: int
    packed: torch.Tensor
    scales: torch.Tensor

    @property
    def sent_bytes(self) -> int:
        return self.packed.nbytes + self.scales.nbytes


class GradientCompressor:
    """Compresses tensors of any shape in float64, float32, bfloat16 or float16 on their device, and restores them.

    It keeps nothing between calls. Add the loss (tensor - restored) to the next gradient yourself, or let
    ``CompressedDDP`` do it.

    >>> compressor = GradientCompressor()
    >>> small = compressor.compress_quantize(torch.tensor([[1.0, -1.0], [0.5, 0.0]]), num_bits=8)
    >>> compressor.decompress_quantize(small).tolist()
    [[1.0, -1.0], [0.5039370059967041, 0.0]]
    >>> sparse = compressor.compress_topk(torch.tensor([0.0, 3.0, -4.0, 0.0]), ratio=0.25)
    >>> compressor.decompress_topk(sparse).tolist(), sparse.ratio, sparse.error
    ([0.0, 0.0, -4.0, 0.0], 0.5, 0.6)
    """

    def compress_topk(self, tensor: torch.Tensor, ratio: float = 0.01) -> SparseForm:
        """The largest magnitudes: ``ratio`` of the elements, at least one; NaN and infinities first.

        Exact up to 32,768 elements. Beyond that, a sample gives the threshold: fewer elements may be chosen, never
        more, and some may be slightly below the largest omitted ones. Raises UsageError for a ratio outside of 0 to 1.
        """
        if not 0.0 < ratio <= 1.0:
            raise UsageError(f"ratio is {ratio}: give the share of the elements to send, above 0 and at most 1")
        flat = _flat(tensor)
        size = flat.numel()
        count = max(1, round(ratio * size)) if size else 0
        norm = _norm(flat)
        if count == 0:
            chosen = torch.empty(0, dtype=torch.int64, device=flat.device)
        elif bool(torch.isfinite(norm)):
            chosen = select_largest(flat, count)
        else:  # NaN is found by no comparison
            chosen = flat.abs().topk(count, sorted=False).indices
        kept = flat.clone()
        kept[chosen] = 0.0
        return SparseForm(
            shape=tensor.shape,
            dtype=tensor.dtype,
            dense_norm=norm,
            lost_norm=_norm(kept),
            values=flat[chosen],
            indices=chosen.to(torch.int32) if size <= torch.iinfo(torch.int32).max else chosen,
        )

    def decompress_topk(self, compressed: SparseForm) -> torch.Tensor:
        """The chosen elements in their places, zeros elsewhere: a new tensor of the old shape and dtype."""
        _check(compressed, SparseForm, "compress_topk")
        size = compressed.shape.numel()
        flat = torch.zeros(size, dtype=compressed.dtype, device=compressed.values.device)
        flat[compressed.indices.long()] = compressed.values
        return flat.view(compressed.shape)

    def compress_quantize(self, tensor: torch.Tensor, num_bits: int = 8) -> QuantizedForm:
        """Integers of 2, 4 or 8 bits, rounded to the nearest. The scale is the largest magnitude of 1,024 elements.

        A constant tensor comes back unchanged (up to the last bit), zero as zero. A block of 1,024 that holds inf or
        NaN comes back as NaN throughout; one whose largest magnitude is below num_bits' largest integer times the
        dtype's smallest normal number comes back as zeros. Raises UsageError for other numbers of bits.
        """
        if type(num_bits) is not int or num_bits not in BITS:
            raise UsageError(f"num_bits is {num_bits!r}: give 2, 4 or 8")
        flat = _flat(tensor)
        rest = flat.to(torch.float64 if flat.dtype == torch.float64 else torch.float32, copy=True)
        codes = torch.empty(flat.numel(), dtype=torch.int8, device=flat.device)
        scales = torch.empty(blocks_of(flat.numel()), dtype=rest.dtype, device=flat.device)
        quantize(rest, codes, scales, levels_of(num_bits))
        if rest.dtype != flat.dtype:  # restoring rounds once more, to the tensor's own dtype
            dequantize(codes, scales, rest)
            rest = flat.to(rest.dtype) - rest.to(flat.dtype).to(rest.dtype)
        return QuantizedForm(
            shape=tensor.shape,
            dtype=tensor.dtype,
            dense_norm=_norm(flat),
            lost_norm=_norm(rest),
            num_bits=num_bits,
            packed=pack_bits(codes, num_bits),
            scales=scales,
        )

    def decompress_quantize(self, compressed: QuantizedForm) -> torch.Tensor:
        """Every integer times its block's scale: a new tensor of the old shape and dtype."""
        _check(compressed, QuantizedForm, "compress_quantize")
        size = compressed.shape.numel()
        values = torch.empty(size, dtype=compressed.scales.dtype, device=compressed.scales.device)
        dequantize(unpack_bits(compressed.packed, compressed.num_bits, size), compressed.scales, values)
        return values.to(compressed.dtype).view(compressed.shape)


def _flat(tensor: Any) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"a {type(tensor).__name__} cannot be compressed; give a torch.Tensor")
    if tensor.dtype not in DTYPES or tensor.layout != torch.strided:
        known = ", ".join(str(one).removeprefix("torch.") for one in DTYPES)
        raise UsageError(
            f"a tensor of {tensor.dtype} ({tensor.layout}) cannot be compressed; give a dense one of {known}"
        )
    return tensor.detach().reshape(-1)


def _check(compressed: Any, form: type[CompressedTensor], maker: str) -> None:
    if not isinstance(compressed, form):
        raise UsageError(f"{type(compressed).__name__} is not what {maker} returns; give its result")


def _norm(flat: torch.Tensor) -> torch.Tensor:
    """The L2 norm in float64, on a CPU in pieces that stay in its caches: 17 ms of 101 ms for 25 million elements."""
    size = PIECE_COUNT if flat.device.type == "cpu" else max(1, flat.numel())
    pieces = [flat[start : start + size] for start in range(0, max(1, flat.numel()), size)]
    norms = [torch.linalg.vector_norm(one, dtype=torch.float64) for one in pieces]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
