"""An optimizer whose state is shared out over the ranks by bytes: each rank updates its part, then all get the result.

The parts are cut through tensors, so the shares are equal however few tensors there are. Gradients must be the same on
all ranks, as DistributedDataParallel leaves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from hotloop.core.errors import HotloopError

ELEMENTWISE = frozenset(
    ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "ASGD", "Rprop")
)
"""Optimizers of torch that update every element by itself, so that a part of a tensor is updated as in the whole."""
ALIGNED_ELEMENTS = 1024
"""Cuts lie at multiples of this, so that vector kernels meet the same blocks."""
CHUNK_BYTES = 64 << 20


class ShardedOptimizer(torch.optim.Optimizer):
    """Stands for ``whole``: the same groups, whose settings (learning rate, ...) may be changed as before.

    ``state_dict()`` is the whole, ordinary state, after ``gather_state()`` was called on all ranks since the last step;
    otherwise it raises, because a rank holds only its part.
    """

    def __init__(self, whole: torch.optim.Optimizer, group: Any = None) -> None:
        self._group: Any = group if group is not None else dist.group.WORLD
        self._rank, self._ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._gathered: dict[str, Any] | None = None
        super().__init__(whole.param_groups, whole.defaults)
        self._parameters = [p for one in self.param_groups for p in one["params"]]
        self._cuts = cut([p.numel() * p.element_size() for p in self._parameters], self._parameters, self._ranks)
        groups = []
        self._mine: list[list[tuple[Any, torch.Tensor, int, int]]] = []
        index = 0
        for one in self.param_groups:
            parts = []
            for parameter in one["params"]:
                start, stop = self._cuts[index][self._rank]
                index += 1
                if stop > start:
                    parts.append((parameter, _part(parameter, start, stop), start, stop))
            self._mine.append(parts)
            groups.append({**_settings(one), "params": [part for _, part, _, _ in parts]})
        # torch accepts groups without parameters, but not an optimizer without groups.
        self._inner = type(whole)(groups, **_arguments(whole))
        if whole.state:
            self.load_state_dict(whole.state_dict())

    @property
    def updating(self) -> torch.optim.Optimizer:
        """The optimizer of ``whole``'s class that updates this rank's parts."""
        return self._inner

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._gathered = None
        for outer, inner, parts in zip(self.param_groups, self._inner.param_groups, self._mine, strict=True):
            inner.update(_settings(outer))
            for parameter, part, start, stop in parts:
                gradient = parameter.grad
                part.grad = None if gradient is None else _part(gradient, start, stop)
        self._inner.step()
        for parts in self._mine:
            for _, part, _, _ in parts:
                part.grad = None
        self._share([_Piece(p, p.grad is not None) for p in self._parameters])
        return loss

    @torch.no_grad()
    def gather_state(self) -> None:
        """Bring the whole state to every rank's host memory for ``state_dict()``. All ranks must call this."""
        state: dict[int, dict[str, Any]] = {}
        flat_index = {id(part): self._index(parameter) for parts in self._mine for parameter, part, _, _ in parts}
        mine = {}
        for part, values in self._inner.state.items():
            mine[flat_index[id(part)]] = {
                key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in values.items()
            }
        for rank in range(self._ranks):
            box = [mine if rank == self._rank else None]
            dist.broadcast_object_list(box, src=dist.get_global_rank(self._group, rank), group=self._group)
            for index, values in (box[0] or {}).items():
                self._merge(state.setdefault(index, {}), index, rank, values)
        numbers = iter(range(len(self._parameters)))
        groups = [{**_settings(one), "params": [next(numbers) for _ in one["params"]]} for one in self.param_groups]
        self._gathered = {"state": state, "param_groups": groups}

    def state_dict(self) -> dict[str, Any]:
        if self._gathered is None:
            raise HotloopError(
                "each rank holds only its part of the optimizer's state; call gather_state() on all ranks after "
                "the last step, then state_dict() on the rank that saves it"
            )
        return self._gathered

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take this rank's part of a whole state, as any optimizer of the same kind saves it."""
        groups = state_dict["param_groups"]
        if [len(one["params"]) for one in groups] != [len(one["params"]) for one in self.param_groups]:
            raise HotloopError(
                "the saved optimizer state belongs to other parameter groups; load a matching checkpoint"
            )
        for mine, saved in zip(self.param_groups, groups, strict=True):
            mine.update({key: value for key, value in saved.items() if key != "params"})
        saved_ids = [number for one in groups for number in one["params"]]
        part_state: dict[int, dict[str, Any]] = {}
        part_groups = []
        number = 0
        for parts, one in zip(self._mine, self.param_groups, strict=True):
            numbers = []
            for parameter, _, start, stop in parts:
                values = state_dict["state"].get(saved_ids[self._index(parameter)])
                if values is not None:
                    part_state[number] = {
                        key: _part(value, start, stop).clone() if _is_split(value, parameter) else value
                        for key, value in values.items()
                    }
                numbers.append(number)
                number += 1
            part_groups.append({**_settings(one), "params": numbers})
        self._inner.load_state_dict({"state": part_state, "param_groups": part_groups})
        self._gathered = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "_cuts"):
            raise HotloopError("a sharded optimizer does not accept new parameters; pass all of them when it is built")
        super().add_param_group(param_group)

    def _index(self, parameter: Any) -> int:
        if not hasattr(self, "_indices"):
            self._indices = {id(one): index for index, one in enumerate(self._parameters)}
        return self._indices[id(parameter)]

    def _merge(self, whole: dict[str, Any], index: int, rank: int, values: Mapping[str, Any]) -> None:
        parameter = self._parameters[index]
        start, stop = self._cuts[index][rank]
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.numel() == stop - start:
                if key not in whole:
                    whole[key] = torch.empty_like(parameter, dtype=value.dtype, device="cpu")
                _part(whole[key], start, stop).copy_(value.reshape(_part(whole[key], start, stop).shape))
            else:
                whole[key] = value

    def _share(self, pieces: list[_Piece]) -> None:
        """Every rank sends what it updated, in pieces of CHUNK_BYTES."""
        for rank in range(self._ranks):
            batch: list[torch.Tensor] = []
            for index, piece in enumerate(pieces):
                start, stop = self._cuts[index][rank]
                if stop > start and piece.changed:
                    part = _part(piece.parameter, start, stop)
                    if batch and (batch[0].dtype, batch[0].device) != (part.dtype, part.device):
                        self._send(batch, rank)
                        batch = []
                    batch.append(part)
                    if sum(one.numel() * one.element_size() for one in batch) >= CHUNK_BYTES:
                        self._send(batch, rank)
                        batch = []
            self._send(batch, rank)

    def _send(self, batch: list[torch.Tensor], rank: int) -> None:
        if not batch:
            return
        flat = _flatten_dense_tensors(batch)  # type: ignore[no-untyped-call]
        dist.broadcast(flat, src=dist.get_global_rank(self._group, rank), group=self._group)
        if rank != self._rank:
            values = _unflatten_dense_tensors(flat, batch)  # type: ignore[no-untyped-call]
            for part, value in zip(batch, values, strict=True):
                part.copy_(value)


class _Piece:
    __slots__ = ("changed", "parameter")

    def __init__(self, parameter: Any, changed: bool) -> None:
        self.parameter = parameter
        self.changed = changed


def cut(sizes_bytes: list[int], parameters: list[Any], ranks: int) -> list[list[tuple[int, int]]]:
    """For each tensor its elements' range on each rank, so that all ranks hold equal bytes, as near as the cuts allow.

    A tensor that is not laid out in one row goes to one rank whole.
    """
    total = sum(sizes_bytes)
    borders_bytes = [total * rank // ranks for rank in range(ranks + 1)]
    found = []
    begin = 0
    for size_bytes, parameter in zip(sizes_bytes, parameters, strict=True):
        count = parameter.numel()
        width = parameter.element_size()
        if parameter.is_contiguous():
            edges = [_border((border - begin) // width, count) for border in borders_bytes]
        else:
            middle = begin + size_bytes // 2
            edges = [0 if middle >= border else count for border in borders_bytes]
        edges[0], edges[-1] = 0, count
        found.append([(edges[rank], edges[rank + 1]) for rank in range(ranks)])
        begin += size_bytes
    return found


def _border(element: int, count: int) -> int:
    if element <= 0 or element >= count:
        return min(max(element, 0), count)
    fine = ALIGNED_ELEMENTS if count >= 256 * ALIGNED_ELEMENTS else 1
    return element // fine * fine


def _part(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """A view of the tensor's elements, itself when that is all of them."""
    if start == 0 and stop == tensor.numel():
        return tensor.detach()
    return tensor.detach().reshape(-1)[start:stop]


def _is_split(value: Any, parameter: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == parameter.shape


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _arguments(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The defaults that the optimizer's constructor takes."""
    import inspect

    known = inspect.signature(type(optimizer).__init__).parameters
    return {key: value for key, value in optimizer.defaults.items() if key in known}
