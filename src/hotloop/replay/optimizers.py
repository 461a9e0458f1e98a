"""Identities of optimizers -> their numbers, in order of their first steps.

Some trainings build an optimizer anew each epoch, or each step. It has the number of the one that it replaces: the one
made at the same place that had stepped before it was built. So steps are counted by what trains, not by the object.
"""

from __future__ import annotations

from dataclasses import dataclass

Place = list[object]
"""File, line and function where an optimizer was made, as the training told it."""


@dataclass(slots=True)
class _Numbered:
    """The optimizer that has a number now, and when (counted in steps of any) it stepped first and last."""

    key: int
    place: Place
    first: int
    last: int


class OptimizerNumbers:
    """``built`` for every new object, ``index_of`` at each step."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._built: dict[int, int] = {}
        self._numbered: dict[int, _Numbered] = {}
        self._count = self._steps = 0

    def __len__(self) -> int:
        return self._count

    def built(self, key: int) -> None:
        """An object was made at an address; what was there before is gone."""
        self._index.pop(key, None)
        if len(self._built) > MOST_BUILT:
            self._built.clear()
        self._built[key] = self._steps

    def index_of(self, key: int, place: Place | None) -> int:
        """The number of the optimizer that steps now."""
        index = self._index.get(key)
        self._steps += 1
        if index is None:
            index = self._replaced(key, place)
            if index is None:
                index, self._count = self._count, self._count + 1
            else:
                self._index.pop(self._numbered[index].key, None)
            self._index[key] = index
            if place is not None:
                self._numbered[index] = _Numbered(key, place, self._steps, self._steps)
        elif index in self._numbered:
            self._numbered[index].last = self._steps
        return index

    def _replaced(self, key: int, place: Place | None) -> int | None:
        """The number whose optimizer was made at the same place and had stepped when this one was built; of several
        the one that has waited longest."""
        built = self._built.get(key)
        if built is None or place is None:
            return None
        before = [
            (one.last, index) for index, one in self._numbered.items() if one.place == place and one.first <= built
        ]
        return min(before)[1] if before else None


MOST_BUILT = 10_000
"""Remembered at a time: loaders and models are made too."""
