"""The largest elements of a vector, by a threshold that a sample gives: as good as a sort and several times cheaper.

After Lin et al., Deep Gradient Compression (ICLR 2018), section 3: the threshold comes from a strided sample, and where
too many elements pass it, from those.
"""

from __future__ import annotations

import torch

EXACT_COUNT = 1 << 15
"""Up to so many elements a whole sort is cheap."""
SAMPLE_COUNT = 1 << 14
SAMPLE_RATIO = 0.01
LOWERED_RATIO = 0.7
"""A threshold that too few pass is lowered to this part of itself, at most ROUNDS times."""
ROUNDS = 8
PIECE_COUNT = 1 << 18
"""Elements that are compared at a time: 25 million took 48 ms in such pieces and 90 ms at once (one thread of an AMD
EPYC, least of 5, 2026-11-23)."""
ENOUGH_RATIO = 0.8
SPREAD = 2_654_435_761
"""Knuth's multiplier (2**32 over the golden ratio): successive steps start far apart."""


def select_largest(values: torch.Tensor, count: int, step: int = 0) -> torch.Tensor:
    """Indices (int64, [<= count]) of about the ``count`` largest magnitudes of a vector, each once, in no order.

    Exact up to EXACT_COUNT elements. Beyond, fewer than ``count`` may be found, where the magnitudes are very uneven;
    never more. Elements that are NaN are not found. ``step`` moves the sample's start, so that a period of the
    vector cannot hide from it for long.
    """
    size = values.numel()
    if not 0 < count <= size:
        raise ValueError(f"count is {count}, of {size} elements: choose 1 to {size}")
    if size <= EXACT_COUNT or 2 * count >= size:
        return values.abs().topk(count, sorted=False).indices
    stride = max(1, size // max(SAMPLE_COUNT, int(SAMPLE_RATIO * size)))
    sample = values[step * SPREAD % stride :: stride].abs()
    threshold = sample.topk(max(1, round(sample.numel() * count / size)), sorted=False).values.min()
    found = _find_above(values, threshold)
    for _ in range(ROUNDS):
        if found.numel() >= ENOUGH_RATIO * count:
            break
        threshold = threshold * LOWERED_RATIO
        found = _find_above(values, threshold)
    if found.numel() > count:
        found = found[values[found].abs().topk(count, sorted=False).indices]
    return found


def _find_above(values: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Indices of the magnitudes above a threshold: on a CPU in pieces that stay in its caches."""
    if values.device.type != "cpu":
        return (values.abs() > threshold).nonzero().flatten()
    starts = range(0, values.numel(), PIECE_COUNT)
    pieces = values.split_with_sizes([min(PIECE_COUNT, values.numel() - start) for start in starts])
    found = [(piece.abs() > threshold).nonzero().flatten() for piece in pieces]
    return torch.cat([one.add_(start) for one, start in zip(found, starts, strict=True)])
