"""An iterable of batches -> the same batches on a device, the next one copied while the current one is computed on."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch


class DevicePrefetcher:
    """Iterates ``batches`` with their tensors on ``device``, one batch ahead, copied on a stream of its own.

    >>> prefetcher = DevicePrefetcher([torch.zeros(2), {"x": torch.ones(2)}], "cpu")
    >>> [type(batch).__name__ for batch in prefetcher], prefetcher.position
    (['Tensor', 'dict'], 2)

    Batches may be nested: tuples, named tuples, lists, mappings, dataclasses, and objects with a ``to(device)`` of
    their own. Everything else is passed on as it is. For copies that overlap with the computation the batches must be
    in pinned memory (``pin_memory=True`` on the loader); from pageable memory they are right, and the host waits.

    ``position`` is the number of batches of this pass that the loop has been given: what was only read ahead does not
    count, so that a training resumes with the batch it has not seen. Errors of ``batches`` are raised when the loop
    asks for the batch that failed, after the batches before it. Without an accelerator batches pass straight through,
    and nothing is read ahead.
    """

    def __init__(self, batches: Iterable[Any], device: Any = None) -> None:
        self.batches = batches
        self.device = _default_device() if device is None else torch.device(device)
        self.position = 0

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """Other attributes of the loader (``dataset``, ``sampler``, ``batch_size``)."""
        if name.startswith("__") or name == "batches":
            raise AttributeError(name)
        return getattr(self.batches, name)

    def __iter__(self) -> Iterator[Any]:
        self.position = 0
        passed = iter(self.batches) if self.device.type == "cpu" else _ahead(iter(self.batches), self.device)
        for batch in passed:
            self.position += 1
            yield batch


def move_batch(batch: Any, move: Callable[[Any], Any]) -> Any:
    """The same nested batch with ``move(leaf)`` in place of every tensor and of every object that has ``to``."""
    if isinstance(batch, torch.Tensor):
        return move(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_batch(one, move) for one in batch))
    if type(batch) in (list, tuple):
        return type(batch)(move_batch(one, move) for one in batch)
    if isinstance(batch, Mapping):
        return _move_mapping(batch, move)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _move_dataclass(batch, move)
    return move(batch) if callable(getattr(batch, "to", None)) else batch


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """All tensors that ``move_batch`` would meet, and those directly inside objects with a ``to`` of their own."""
    found: list[torch.Tensor] = []

    def keep(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        else:
            values = leaf.values() if isinstance(leaf, Mapping) else getattr(leaf, "__dict__", {}).values()
            found.extend(one for one in values if isinstance(one, torch.Tensor))
        return leaf

    move_batch(batch, keep)
    return found


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of nested lists, tuples and dictionaries."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from leaves(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from leaves(one)
    else:
        yield value


def _default_device() -> torch.device:
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return torch.device(kind.type, torch.accelerator.current_device_index())


def _ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Batches on the device. The copy of the next one is queued before the loop gets the current one."""
    module: Any = getattr(torch, device.type)
    side = module.Stream(device=device)

    def load() -> tuple[Any, Exception | None]:
        try:
            source = next(batches)
        except Exception as error:
            return None, error
        with module.stream(side):  # the allocator of pinned memory keeps the source until the copy is done
            return move_batch(source, lambda leaf: leaf.to(device, non_blocking=True)), None

    batch, error = load()
    while error is None:
        current = module.current_stream(device)
        current.wait_stream(side)
        for tensor in tensors_of(batch):
            if tensor.device.type == device.type:
                # Its memory came from the side stream: the allocator must not reuse it before this stream is done.
                tensor.record_stream(current)
        ready = batch
        batch, error = load()
        yield ready
        del ready
    if not isinstance(error, StopIteration):
        raise error


def _move_mapping(batch: Mapping[Any, Any], move: Callable[[Any], Any]) -> Any:
    moved = {key: move_batch(value, move) for key, value in batch.items()}
    if type(batch) is dict:
        return moved
    if callable(getattr(batch, "to", None)):  # an encoding of tokens knows how to move itself
        return move(batch)
    try:
        twin = copy.copy(batch)
        for key, value in moved.items():
            twin[key] = value  # type: ignore[index]
    except TypeError:  # a mapping that cannot be written to
        return moved
    return twin


def _move_dataclass(batch: Any, move: Callable[[Any], Any]) -> Any:
    if callable(getattr(batch, "to", None)):
        return move(batch)
    twin = copy.copy(batch)
    for field in dataclasses.fields(batch):
        if hasattr(batch, field.name):
            object.__setattr__(twin, field.name, move_batch(getattr(batch, field.name), move))
    return twin
