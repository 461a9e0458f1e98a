"""A stream of numbers -> its exact mean, spread and extremes, and quantiles from a bounded uniform sample."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

KEPT = 4096
"""Up to so many values the quantiles are exact; beyond, they come from a uniform sample of this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Statistics of ``count`` values, in the unit of the values. ``std`` is that of the population."""

    count: int
    total: float
    mean: float
    std: float
    min: float
    max: float
    p50: float
    p95: float
    p99: float


class Series:
    """Values arriving one by one; bounded memory. Its random draws are its own and touch no global generator."""

    __slots__ = ("_kept", "_random", "_total_squared", "count", "max", "min", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total: float = 0
        self.min: float = 0
        self.max: float = 0
        self._total_squared: float = 0
        self._kept: list[float] = []
        self._random: random.Random | None = None

    def add(self, value: float) -> None:
        if not self.count or value < self.min:
            self.min = value
        if not self.count or value > self.max:
            self.max = value
        self.total += value
        self._total_squared += value * value
        self.count += 1
        if len(self._kept) < KEPT:
            self._kept.append(value)
            return
        if self._random is None:
            self._random = random.Random(0)
        place = self._random.randrange(self.count)
        if place < KEPT:
            self._kept[place] = value

    def stats(self, zeros_count: int = 0) -> Stats | None:
        """Statistics of the values and of ``zeros_count`` zeros besides, which needs values >= 0; None without any.

        Int values give exact sums.
        """
        count = self.count + zeros_count
        if not count:
            return None
        mean = self.total / count
        variance = max(0.0, (self._total_squared * count - self.total**2) / count**2)
        ordered = sorted(self._kept)
        zeros = round(zeros_count * len(ordered) / self.count) if self.count else 1
        p50, p95, p99 = (quantile(ordered, at, zeros) for at in (0.5, 0.95, 0.99))
        return Stats(
            count=count,
            total=self.total,
            mean=mean,
            std=math.sqrt(variance),
            min=0 if zeros_count else self.min,
            max=self.max,
            p50=p50,
            p95=p95,
            p99=p99,
        )


def quantile(ordered: list[float], at: float, zeros_count: int = 0) -> float:
    """Quantile of ``zeros_count`` zeros followed by sorted values, linear between neighbours.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5), quantile([4.0], 0.5, 2)
    (2.5, 0.0)
    """

    def value(place: int) -> float:
        return ordered[place - zeros_count] if place >= zeros_count else 0.0

    last = len(ordered) + zeros_count - 1
    place = at * last
    low = math.floor(place)
    return value(low) + (value(min(low + 1, last)) - value(low)) * (place - low)
