"""What was not sent yet of each gradient, kept flat as DDP's buckets are, and found again by parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch


class Bucket(Protocol):
    """What a hook reads of torch.distributed.GradBucket."""

    def index(self) -> int: ...
    def buffer(self) -> torch.Tensor: ...
    def parameters(self) -> list[torch.Tensor]: ...
    def is_last(self) -> bool: ...


class Residuals:
    """One flat float vector per bucket, in the layout of its buffer.

    DDP lays its buckets out again after the first step. What was kept then moves with its parameters, and a checkpoint
    holds it by parameter as well, so that it may be loaded under other bucket sizes.

    ``multiple``: each parameter takes up a multiple of so many elements; the last ones are its padding.
    """

    def __init__(self, multiple: int = 1) -> None:
        self._multiple = multiple
        self._flat: dict[int, tuple[tuple[int, ...], torch.Tensor]] = {}
        self._loose: dict[int, torch.Tensor] = {}
        """By id of the parameter: what no bucket has taken up yet."""
        self._sizes: dict[int, int] = {}
        """Elements kept of each parameter seen, by its id."""

    def of(self, bucket: Bucket) -> torch.Tensor:
        """The bucket's vector, to be changed in place; zeros at first."""
        parameters = bucket.parameters()
        layout = tuple(map(id, parameters))
        known = self._flat.get(bucket.index())
        if known is not None and known[0] == layout:
            return known[1]
        self._dissolve(bucket, parameters)
        sizes = [-(-one.numel() // self._multiple) * self._multiple for one in parameters]
        flat = bucket.buffer().new_zeros(sum(sizes))
        for parameter, piece in zip(parameters, flat.split_with_sizes(sizes), strict=True):
            kept = self._loose.pop(id(parameter), None)
            if kept is not None:
                piece.copy_(kept.view(-1))
        self._flat[bucket.index()] = (layout, flat)
        self._sizes.update(zip(layout, sizes, strict=True))
        return flat

    def _dissolve(self, bucket: Bucket, parameters: list[torch.Tensor]) -> None:
        """Take apart what old buckets hold of these parameters, and what this index held."""
        wanted = set(map(id, parameters))
        for index, (layout, flat) in list(self._flat.items()):
            if index != bucket.index() and wanted.isdisjoint(layout):
                continue
            for key, piece in zip(layout, flat.split_with_sizes([self._sizes[key] for key in layout]), strict=True):
                self._loose[key] = piece
            del self._flat[index]

    def by_parameter(self) -> dict[int, torch.Tensor]:
        """By id of the parameter, each flat."""
        found = dict(self._loose)
        for layout, flat in self._flat.values():
            found.update(zip(layout, flat.split_with_sizes([self._sizes[key] for key in layout]), strict=True))
        return found

    def load(self, pieces: Mapping[int, torch.Tensor]) -> None:
        """Forget everything, and take these up as their parameters come by."""
        self._flat.clear()
        self._loose = dict(pieces)


def state_by_name(pieces: Mapping[int, torch.Tensor], names: Mapping[int, str]) -> dict[str, torch.Tensor]:
    """A checkpoint's form: copies, by the parameter's name in its model."""
    return {names[key]: piece.detach().clone() for key, piece in pieces.items() if key in names}


def pieces_of(state: Mapping[str, Any], names: Mapping[int, str]) -> dict[int, torch.Tensor]:
    """The other way round. Raises ValueError for a name that the model does not have."""
    keys = {name: key for key, name in names.items()}
    unknown = sorted(set(state) - set(keys))
    if unknown:
        raise ValueError(
            f"the state has {unknown[0]!r}, which is no parameter of this model ({len(unknown)} such names)"
        )
    return {keys[name]: piece for name, piece in state.items()}
