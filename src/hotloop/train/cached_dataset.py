"""A map-style data set -> the same samples, each read once and kept."""

from __future__ import annotations

import os
from typing import Any

from torch.utils.data import Dataset

from hotloop.apply.sample_cache import SampleCache
from hotloop.apply.sample_store import (
    FolderStore,
    MemoryStore,
    NotPlain,
    SampleStore,
    choose_disk_bytes,
    choose_memory_bytes,
    encode,
    identify,
)
from hotloop.core.errors import UsageError

LEAST_BYTES = 1 << 16


class CachedDataset(Dataset[Any]):
    """Reads each sample of ``dataset`` once and keeps it, in memory or in a folder, up to ``most_bytes``.

    >>> data = CachedDataset([{"x": 1}, {"x": 2}])
    >>> data[1], data[1] is data[1], len(data)
    ({'x': 2}, False, 2)

    ``folder`` None keeps samples in shared memory, which forked loader workers fill together; a pickle of this object
    (spawned workers) begins with an empty cache of its own. A folder is shared by all processes and by later runs.
    ``most_bytes`` None is a quarter of the free memory, or half of the free disk, for each training process of the
    host (``LOCAL_WORLD_SIZE``).

    Every sample is a new copy. It must not depend on random numbers, on the epoch or on anything else but its index:
    reads are watched for that, and ``why_ended`` says why the cache was ended (empty while it keeps samples). What is
    not kept is read from ``dataset`` as before. Raises UsageError for a data set without length and index, a bound
    below 64 KiB, a sample without a plain record (lists, tuples, dictionaries, strings, bytes, numbers, tensors and
    numpy arrays have one), and a folder or a memory size that the system refuses.
    """

    def __init__(self, dataset: Any, *, most_bytes: int | None = None, folder: str | os.PathLike[str] | None = None):
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise UsageError(
                f"CachedDataset: {type(dataset).__name__} has no index or no length; an iterable data set cannot be "
                "cached by sample"
            )
        if most_bytes is not None and most_bytes < LEAST_BYTES:
            raise UsageError(f"CachedDataset: most_bytes is {most_bytes}; give at least {LEAST_BYTES}, or None")
        self.dataset = dataset
        self.most_bytes = most_bytes
        self.folder = None if folder is None else os.fspath(folder)
        self._cache = SampleCache(dataset, self._open_store())

    @property
    def why_ended(self) -> str:
        return self._cache.why_ended

    def count_kept(self) -> int:
        """Samples that the cache holds."""
        return self._cache.count()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self._cache.take((index,), lambda keys: [self.dataset[keys[0]]])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Samples of a batch: what is missing is read in one call, where the data set can do that."""
        many = getattr(self.dataset, "__getitems__", None)
        read = many if many is not None else lambda keys: [self.dataset[key] for key in keys]
        found: list[Any] = self._cache.take(indices, read)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_cache"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._cache = SampleCache(self.dataset, self._open_store())

    def _open_store(self) -> SampleStore:
        count, ranks = len(self.dataset), _local_ranks()
        try:
            size = len(encode(self.dataset[0], 0)) if count else 0
        except NotPlain as error:
            raise UsageError(
                f"CachedDataset: {error}, which has no plain record; return tensors, arrays, numbers, strings and "
                "containers of them"
            ) from error
        try:
            if self.folder is None:
                return MemoryStore(count, self.most_bytes or choose_memory_bytes(ranks), size)
            path = os.path.join(self.folder, identify(self.dataset))
            return FolderStore(path, self.most_bytes or choose_disk_bytes(self.folder, ranks), size)
        except OSError as error:
            raise UsageError(
                f"CachedDataset: the cache cannot be opened ({error.strerror or error}); give another folder or a "
                "smaller most_bytes"
            ) from error


def _local_ranks() -> int:
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdigit() else 1
