"""A vector <-> small integers with one scale per block of 1,024.

A block's largest magnitude becomes the largest integer, everything else is rounded to the nearest (ties to even), so
that no element is off by more than half a scale. Zero stays zero. A block that holds inf or NaN comes back as NaN
throughout; one whose largest magnitude is below ``levels`` times the smallest normal number comes back as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

BLOCK_COUNT = 1024
"""Elements that share a scale: scales add 4 bytes to 1,024."""
PIECE_COUNT = 1 << 18
"""Elements that a CPU works on at a time, a multiple of BLOCK_COUNT: 26 million took 25 ms in such pieces and 61 ms in
pieces of 2**20 (one thread of an AMD EPYC, least of 4, 2026-11-23)."""


def blocks_of(count: int) -> int:
    """Number of scales for this many elements."""
    return -(-count // BLOCK_COUNT)


def quantize(values: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, levels: int) -> None:
    """Round ``values`` (floating, [n]) to ``codes`` (int8, [n]) and ``scales`` ([blocks_of(n)]), and keep the rest.

    What rounding took away is left in ``values``: 0 in a block that is not finite, so that it may be added to the next.
    """
    for elements, blocks, shape in _pieces(values):
        piece = values[elements].view(shape)
        scale = piece.abs().amax(dim=1).div_(levels)
        tiny = torch.finfo(scale.dtype).tiny
        scale = torch.where(torch.isfinite(scale), torch.where(scale >= tiny, scale, 0.0), torch.nan)
        rounded = (piece * torch.where(scale > 0.0, 1.0 / scale, 0.0).unsqueeze(1)).round_()
        codes[elements].view(shape).copy_(rounded)
        scales[blocks] = scale
        piece.addcmul_(rounded, scale.unsqueeze(1), value=-1.0).nan_to_num_(0.0)


def dequantize(codes: torch.Tensor, scales: torch.Tensor, values: torch.Tensor) -> None:
    """Write what ``quantize`` rounded to into ``values`` ([n], of the scales' dtype)."""
    for elements, blocks, shape in _pieces(values):
        torch.mul(codes[elements].view(shape), scales[blocks].unsqueeze(1), out=values[elements].view(shape))


def _pieces(values: torch.Tensor) -> Iterator[tuple[slice, slice, tuple[int, int]]]:
    """A vector part by part: its elements, their blocks, and both as a shape. A last, short block comes alone."""
    count = values.numel()
    whole = count // BLOCK_COUNT * BLOCK_COUNT
    size = PIECE_COUNT if values.device.type == "cpu" else max(1, whole)
    for start in range(0, whole, size):
        stop = min(whole, start + size)
        blocks = slice(start // BLOCK_COUNT, stop // BLOCK_COUNT)
        yield slice(start, stop), blocks, (blocks.stop - blocks.start, BLOCK_COUNT)
    if whole < count:
        yield slice(whole, count), slice(whole // BLOCK_COUNT, None), (1, count - whole)
