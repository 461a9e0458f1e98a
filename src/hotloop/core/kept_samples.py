"""Epochs and ranks -> how many reads find a sample that was kept from an earlier one."""

from __future__ import annotations

import math


def found_ratio(epochs: float, ranks: int = 1) -> float:
    """Share of the reads of so many epochs, 0..1, that find their sample in the cache of their own rank.

    A rank keeps what it has read. With a sampler that deals all samples anew over ``ranks`` in each epoch it has met
    a sample in one of the ``e`` epochs before with the chance ``1 - (1 - 1 / ranks) ** e``.

    >>> found_ratio(1.0), found_ratio(4.0), found_ratio(3.0, ranks=2)
    (0.0, 0.75, 0.4166666666666667)
    """
    if epochs <= 0:
        return 0.0
    whole = math.floor(epochs)
    parts = [(1.0, epoch) for epoch in range(whole)] + [(epochs - whole, whole)]
    return math.fsum(part * (1.0 - (1.0 - 1.0 / ranks) ** epoch) for part, epoch in parts) / epochs
