"""Pieces of an array, one after another -> the whole array, without holding it twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST_LENGTH = 4096


class GrowingArray:
    """An array that grows at its end. Growing moves pages of a large array, it does not copy them (realloc)."""

    __slots__ = ("_length", "_values")

    def __init__(self, dtype: Any) -> None:
        self._values: NDArray[Any] = np.empty(_FIRST_LENGTH, dtype=dtype)
        self._length = 0

    def append(self, piece: NDArray[Any]) -> None:
        end = self._length + len(piece)
        if end > len(self._values):
            # Nobody else holds the buffer: it leaves this object only in ``finish``.
            self._values.resize(max(end, len(self._values) * 3 // 2), refcheck=False)
        self._values[self._length : end] = piece
        self._length = end

    def finish(self) -> NDArray[Any]:
        """The whole array; nothing can be appended after it."""
        self._values.resize(self._length, refcheck=False)
        return self._values
