"""A data set -> a DataLoader whose settings fit this process: its share of the cores, pinning where it can help."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hotloop.apply.applier import make_context
from hotloop.apply.device_batches import DevicePrefetcher as DevicePrefetcher
from hotloop.apply.shareable import uses_worker_number
from hotloop.core.strategy import Strategy

__all__ = ["DevicePrefetcher", "loader_settings", "make_loader"]

MOST_WORKERS = 8
"""More rarely help, and every worker holds a copy of what it touches."""


def make_loader(dataset: Any, **arguments: Any) -> DataLoader[Any]:
    """A DataLoader of ``dataset``. Every argument of DataLoader may be given, and what is given stays.

    What is left out is chosen for this process (see ``loader_settings``).

    >>> loader = make_loader(TensorDataset(torch.arange(8)), batch_size=4)
    >>> len(loader), loader.num_workers
    (2, 0)
    """
    return DataLoader(dataset, **{**loader_settings(dataset, arguments), **arguments})


def loader_settings(dataset: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The settings that hotloop adds to ``arguments``.

    ``num_workers``: this process's share of the host's cores less one for its own computation, up to 8. None for data
    in tensors, which is quicker to index than to hand over, nor on a single core; one for an IterableDataset that does
    not split itself among workers, because each would repeat the data. Workers are kept between passes.
    ``pin_memory`` where there is an accelerator.
    """
    chosen: dict[str, Any] = {}
    if "num_workers" not in arguments:
        chosen["num_workers"] = _workers_count(dataset)
        if {"prefetch_factor", "multiprocessing_context"} & set(arguments) or arguments.get("persistent_workers"):
            chosen["num_workers"] = max(1, chosen["num_workers"])  # they make no sense without workers
    workers = arguments.get("num_workers", chosen.get("num_workers", 0))
    if workers and "persistent_workers" not in arguments:
        chosen["persistent_workers"] = True
    if "pin_memory" not in arguments:
        chosen["pin_memory"] = can_pin()
    return chosen


def _workers_count(dataset: Any) -> int:
    if type(dataset) is TensorDataset:
        return 0
    context = make_context(Strategy(), from_outside=False)
    share = context.cores // max(1, context.local_world_size) - 1
    if isinstance(dataset, IterableDataset) and not uses_worker_number(dataset):
        return min(1, max(0, share))
    return max(0, min(MOST_WORKERS, share))


def can_pin() -> bool:
    """Whether there is an accelerator to which pinned memory is copied faster."""
    if not torch.accelerator.is_available():
        return False
    kind = torch.accelerator.current_accelerator()
    return kind is not None and kind.type != "mps"
