"""Values that repeat -> small numbers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32s: TypeAlias = NDArray[np.int32]


class Interner(dict[Any, int]):
    """Value -> number in the order of first use. Looking up makes the number, so that map() can do it in C.

    Beyond ``max_bytes`` of text nothing new is kept: such values get -1 and are counted in ``left_out_count``.
    """

    __slots__ = ("_kept_bytes", "_max_bytes", "left_out_count")

    def __init__(self, max_bytes: int | None = None) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._kept_bytes = 0
        self.left_out_count = 0

    def __missing__(self, value: Any) -> int:
        if self._max_bytes is not None:
            self._kept_bytes += len(value)
            if self._kept_bytes > self._max_bytes:
                self._kept_bytes -= len(value)
                self.left_out_count += 1
                return -1
        number = self[value] = len(self)
        return number

    def numbers_of(self, values: Sequence[Any]) -> Int32s:
        """One number per value."""
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32, count=len(values))


def merge_equal(values: Iterable[Hashable]) -> tuple[Int32s, list[Any]]:
    """(new number of each value, the distinct values): for values that became equal when they were made readable."""
    merged = Interner()
    numbers = np.fromiter((merged[value] for value in values), dtype=np.int32)
    return numbers, list(merged)
