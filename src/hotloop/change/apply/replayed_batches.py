"""The first batches of a loader -> iterators that give them again, for ablations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from hotloop.change.apply.device_batches import move_batch, tensors_of

Cache = list[tuple[Any, list[int]]]
"""Batches, each with the versions of its tensors when it was read: a change in place raises them."""


def read_batches(iterator: Any, count: int) -> Cache:
    """The first batches of a pass, at most ``count``, unseen by what times batches."""
    batches: Cache = []
    try:
        while len(batches) < count:
            batch = iterator._next_data()
            batches.append((batch, _versions_of(batch)))
    except StopIteration:
        return batches
    return batches


def make_replay(
    cache: Cache, refuse: Callable[[str], None], *, passes_end: bool = False
) -> Callable[[Any], _BaseDataLoaderIter]:
    """What makes an iterator of a loader that gives the batches of ``cache`` in turn.

    A pass has as many batches as it had, or with ``passes_end`` those of the cache. ``refuse`` is called with the
    reason if the script has changed a batch.
    """

    class ReplayIterator(_BaseDataLoaderIter):
        def _next_data(self) -> Any:
            if passes_end and self._num_yielded >= len(cache):
                raise StopIteration
            if not passes_end:
                next(self._sampler_iter)  # raises StopIteration at the end of the pass
            batch, versions = cache[self._num_yielded % len(cache)]
            if _versions_of(batch) != versions:
                refuse("the script changes its batches in place, so they cannot be given again")
            # New containers around the same tensors: a script may take entries out of its batch.
            return move_batch(batch, lambda leaf: leaf)

    return ReplayIterator


def _versions_of(batch: Any) -> list[int]:
    return [tensor._version for tensor in tensors_of(batch)]
