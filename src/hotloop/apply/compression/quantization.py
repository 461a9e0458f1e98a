"""A vector <-> small integers with one scale per block of 1,024, and integers <-> packed bits.

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
GROUP_COUNT = 8
"""Integers that are packed together: 8 of n bits fill n bytes."""


def levels_of(num_bits: int) -> int:
    """The largest integer of so many bits, with its sign: 127 of 8, 1 of 2."""
    return (1 << (num_bits - 1)) - 1


def blocks_of(count: int) -> int:
    """Number of scales of so many elements."""
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


def pack_bits(codes: torch.Tensor, num_bits: int) -> torch.Tensor:
    """Integers of so many bits (int8, [n]) -> uint8, [ceil(n / 8) * num_bits]."""
    if num_bits == 8:
        return codes.view(torch.uint8)
    levels = levels_of(num_bits)
    packed = torch.empty(-(-codes.numel() // GROUP_COUNT) * num_bits, dtype=torch.uint8, device=codes.device)
    for start in range(0, codes.numel(), PIECE_COUNT):
        piece = codes[start : start + PIECE_COUNT]
        groups = -(-piece.numel() // GROUP_COUNT)
        padded = torch.zeros(groups * GROUP_COUNT, dtype=torch.int64, device=codes.device)
        padded[: piece.numel()] = piece
        padded[: piece.numel()] += levels
        columns = padded.view(groups, GROUP_COUNT)
        words = torch.zeros(groups, dtype=torch.int64, device=codes.device)
        for index in range(GROUP_COUNT):
            words |= columns[:, index] << (index * num_bits)
        at = start // GROUP_COUNT * num_bits
        packed[at : at + groups * num_bits] = words.view(torch.uint8).view(groups, 8)[:, :num_bits].reshape(-1)
    return packed


def unpack_bits(packed: torch.Tensor, num_bits: int, count: int) -> torch.Tensor:
    """The other way round: int8, [count]."""
    if num_bits == 8:
        return packed.view(torch.int8)
    levels = levels_of(num_bits)
    codes = torch.empty(count, dtype=torch.int8, device=packed.device)
    mask = (1 << num_bits) - 1
    for start in range(0, count, PIECE_COUNT):
        wanted = min(PIECE_COUNT, count - start)
        groups = -(-wanted // GROUP_COUNT)
        at = start // GROUP_COUNT * num_bits
        padded = torch.zeros(groups, 8, dtype=torch.uint8, device=packed.device)
        padded[:, :num_bits] = packed[at : at + groups * num_bits].view(groups, num_bits)
        words = padded.view(torch.int64).view(groups)
        columns = torch.empty(groups, GROUP_COUNT, dtype=torch.int8, device=packed.device)
        for index in range(GROUP_COUNT):
            columns[:, index] = (words >> (index * num_bits)).bitwise_and_(mask).sub_(levels)
        codes[start : start + wanted] = columns.view(-1)[:wanted]
    return codes


def _pieces(values: torch.Tensor) -> Iterator[tuple[slice, slice, tuple[int, int]]]:
    """Of a vector, part by part: its elements, their blocks, and both as a shape. A last, short block comes alone."""
    count = values.numel()
    whole = count // BLOCK_COUNT * BLOCK_COUNT
    size = PIECE_COUNT if values.device.type == "cpu" else max(1, whole)
    for start in range(0, whole, size):
        stop = min(whole, start + size)
        blocks = slice(start // BLOCK_COUNT, stop // BLOCK_COUNT)
        yield slice(start, stop), blocks, (blocks.stop - blocks.start, BLOCK_COUNT)
    if whole < count:
        yield slice(whole, count), slice(whole // BLOCK_COUNT, None), (1, count - whole)
