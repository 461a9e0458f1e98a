"""A batch -> its micro-batches with the weight of each loss, so that their gradients add up to the full batch's.

for part in micro_batches(model, batch, 4):
    with part.exchange():
        (loss_of(model, part.batch) * part.weight).backward()
optimizer.step()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from hotloop.change.apply.device_batches import leaves
from hotloop.core.errors import HotloopError


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A part of a batch. ``weight`` is its share of the samples: times a mean loss, it makes the gradients add up.

    Forward and backward belong inside ``exchange()``: gradients stay local for all parts except the last.
    """

    batch: Any
    weight: float
    is_last: bool
    exchange: Callable[[], AbstractContextManager[Any]]


def micro_batches(model: Any, batch: Any, count: int) -> Iterator[MicroBatch]:
    """At most ``count`` parts of a batch, as equal as they can be; fewer when it has fewer samples.

    On several ranks, every rank must get a batch of at least ``count`` samples, or all the same number.
    """
    size = batch_size(batch)
    used = min(count, size)
    start = 0
    for index in range(used):
        stop = start + size // used + (index < size % used)
        is_last = index == used - 1
        yield MicroBatch(
            batch=take(batch, start, stop, size),
            weight=(stop - start) / size,
            is_last=is_last,
            exchange=lambda is_last=is_last: nullcontext() if is_last else without_exchange(model),  # type: ignore[misc]
        )
        start = stop


def without_exchange(model: Any) -> AbstractContextManager[Any]:
    """Backwards in here leave gradients on their rank: DDP's no_sync, FSDP2's switch, nothing for a plain module.

    FSDP2 then keeps the full gradients in memory between the micro-batches.
    """
    switch = getattr(model, "set_requires_gradient_sync", None)
    if switch is not None:
        return _switched_off(switch)
    no_sync: Callable[[], AbstractContextManager[Any]] = getattr(model, "no_sync", nullcontext)
    return no_sync()


@contextmanager
def _switched_off(switch: Callable[[bool], None]) -> Iterator[None]:
    switch(False)
    try:
        yield
    finally:
        switch(True)


def batch_size(batch: Any) -> int:
    """Length of the first dimension that all tensors of the batch share; raises HotloopError where there is none."""
    sizes = {tensor.shape[0] for tensor in _tensors(batch) if tensor.dim()}
    if len(sizes) != 1:
        raise HotloopError(
            f"a batch with first dimensions {sorted(sizes)} cannot be split; use the first dimension of all of the "
            "batch's tensors for the samples, or train without accumulation"
        )
    return int(sizes.pop())


def take(batch: Any, start: int, stop: int, size: int) -> Any:
    """The samples from ``start`` to ``stop``: views of tensors, slices of lists that are as long as the batch."""
    if isinstance(batch, torch.Tensor):
        return batch[start:stop] if batch.dim() else batch
    if isinstance(batch, Mapping):
        parts = {key: take(value, start, stop, size) for key, value in batch.items()}
        return parts if type(batch) is dict else type(batch)(parts)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(take(value, start, stop, size) for value in batch))
    if isinstance(batch, list | tuple):
        if len(batch) == size and not _tensors(batch):
            return batch[start:stop]
        return type(batch)(take(value, start, stop, size) for value in batch)
    return batch


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
