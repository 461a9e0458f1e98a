"""DDP's communication hooks: what a bucket of gradients becomes on its way. Replicas stay equal bit for bit.

A hook replaces DDP's all-reduce. Under gradient accumulation with ``no_sync`` it sees the sum once
a step. A gradient that is infinite or NaN on any rank arrives as such on all, so that a GradScaler skips the step
everywhere; it is never kept.
"""

from __future__ import annotations

import atexit
import functools
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist

from .selection import select_largest

_RELEASE_S = 0.005
_MOST_RELEASE_S = 1.0
_unreleased: set[weakref.ref[Any]] = set()
"""References that the backend's threads still hold to finished exchanges."""

all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13


class Bucket(Protocol):
    """The part of torch.distributed.GradBucket that a hook reads."""

    def index(self) -> int: ...
    def buffer(self) -> torch.Tensor: ...
    def parameters(self) -> list[torch.Tensor]: ...
    def is_last(self) -> bool: ...


class Residuals:
    """One flat float vector per bucket, in the layout of its buffer.

    DDP lays its buckets out again after the first step. What was kept then moves with its parameters, and a checkpoint
    holds it by parameter as well, so that it may be loaded under other bucket sizes.

    ``multiple``: each parameter takes up a multiple of this many elements; the last ones are its padding.
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
            f"the state has {unknown[0]!r}, which is not a parameter of this model ({len(unknown)} such names)"
        )
    return {keys[name]: piece for name, piece in state.items()}


class GradientHook:
    """Averages a bucket over the ranks of ``group``; a subclass says how. One instance serves one model."""

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.names: dict[int, str] = {}
        """By id of the parameter: its name in the model. ``methods.register`` fills it."""

    @property
    def is_late(self) -> bool:
        """Whether what was sent last holds elements of earlier steps' gradients."""
        return False

    @property
    def world_size(self) -> int:
        return dist.get_world_size(self.group)

    def send(self, bucket: Bucket) -> Any:
        """The future of the bucket's averaged buffer. Called in the order of the buckets, the same on every rank."""
        raise NotImplementedError

    def describe(self) -> str:
        """The share of float32's bytes that is sent, in words."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The state that this rank's checkpoint needs to resume bit for bit; empty for a hook that keeps nothing."""
        kept = self.kept_state()
        return {"hook": type(self).__name__, **kept} if kept else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError for the state of another hook or of a model with other names, and changes nothing then."""
        if not state and not self.kept_state():
            return
        made_by = state.get("hook")
        if made_by != type(self).__name__:
            raise ValueError(f"it was kept by {made_by}, but this is {type(self).__name__}")
        self.load_kept_state(state)

    def kept_state(self) -> dict[str, Any]:
        return {}

    def load_kept_state(self, state: Mapping[str, Any]) -> None:
        """Load the state of the same kind of hook."""

    def forget(self) -> None:
        """Keep nothing, as at the beginning."""


class CastHook(GradientHook):
    """Gradients in 16 bits: half of float32's bytes. bfloat16 keeps the range, float16 more digits."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16, group: Any = None) -> None:
        super().__init__(group)
        if dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(f"dtype is {dtype}: choose torch.bfloat16 or torch.float16")
        self.dtype = dtype

    def describe(self) -> str:
        return "half of the bytes"

    def send(self, bucket: Bucket) -> Any:
        buffer = bucket.buffer()
        short = buffer.to(self.dtype).div_(self.world_size)
        work = dist.all_reduce(short, group=self.group, async_op=True)
        return after(work, lambda: buffer.copy_(short))


class WarmUpHook(GradientHook):
    """Another hook that begins late: the first ``steps`` exchanges are bf16's, which keeps nothing.

    Ranks exchange alike, so all of them begin with the same one; a checkpoint holds how many were made.
    """

    def __init__(self, later: GradientHook, steps: int) -> None:
        super().__init__()
        self.later, self.steps = later, steps
        self._first = CastHook(torch.bfloat16)
        self._active: GradientHook = self._first
        self._count = 0

    @property
    def is_late(self) -> bool:
        return self._active.is_late

    def describe(self) -> str:
        return f"{self.later.describe()}; the first {self.steps} exchanges in bf16"

    def send(self, bucket: Bucket) -> Any:
        self._active = self._first if self._count < self.steps else self.later
        self._active.names, self._active.group = self.names, self.group
        self._count += bucket.is_last()
        return self._active.send(bucket)

    def kept_state(self) -> dict[str, Any]:
        self.later.names = self.names
        return {"count": self._count, "later": self.later.state_dict()}

    def load_kept_state(self, state: Mapping[str, Any]) -> None:
        self.later.names = self.names
        self.later.load_state_dict(state["later"])
        self._count = int(state["count"])

    def forget(self) -> None:
        self.later.forget()
        self._count = 0


class TopKHook(GradientHook):
    """The largest elements of each parameter's gradient, with their indices; the rest is kept for later steps.

    A rank sends ``ratio`` of the elements, each 4 bytes and an index of 4: ratio 0.01 is 2 % of float32's bytes between
    two ranks. All ranks gather what all chose and add it in the order of the ranks. Elements are chosen parameter by
    parameter, so that DDP's layout of the buckets does not change the training.

    ``momentum`` is Deep Gradient Compression's correction: what is kept is the velocity, so that late elements carry
    the momentum of the steps that they missed. The optimizer's own momentum must be 0 then.
    """

    def __init__(self, ratio: float = 0.01, momentum: float = 0.0, group: Any = None) -> None:
        super().__init__(group)
        if not 0.0 < ratio <= 0.5:
            raise ValueError(f"ratio is {ratio}: choose more than 0 and at most 0.5 (indices double the bytes)")
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum is {momentum}: choose 0 to less than 1")
        self.ratio, self.momentum = ratio, momentum
        self._unsent, self._velocity = Residuals(), Residuals()
        self._step = 0

    @property
    def is_late(self) -> bool:
        return True

    def describe(self) -> str:
        return f"{self.ratio:.3g} of the elements with their indices, the rest is kept"

    def send(self, bucket: Bucket) -> Any:
        buffer = bucket.buffer()
        if buffer.dtype != torch.float32:
            raise TypeError(f"top-k sends float32 gradients, but these are {buffer.dtype}: choose a 16-bit hook")
        unsent = self._unsent.of(bucket)
        is_sound, gradient = _only_finite(buffer)
        velocity = None
        if self.momentum:
            velocity = self._velocity.of(bucket)
            gradient = velocity.mul_(self.momentum).add_(gradient)
        sizes = [one.numel() for one in bucket.parameters()]
        counts = [min(size, max(1, round(self.ratio * size))) for size in sizes]
        count = sum(counts)
        payload = torch.zeros(2 * count, dtype=torch.int32, device=buffer.device)
        indices, values = payload[:count], payload[count:].view(torch.float32)
        start, pieces = 0, unsent.split_with_sizes(sizes)
        for piece, added, wanted in zip(pieces, gradient.split_with_sizes(sizes), counts, strict=True):
            if not wanted:
                continue
            chosen = select_largest(piece, wanted, self._step, adding=added)
            chosen.add_(piece.storage_offset() - unsent.storage_offset())
            indices[start : start + chosen.numel()] = chosen
            values[start : start + chosen.numel()] = unsent[chosen]
            unsent[chosen] = 0.0
            if velocity is not None:
                velocity[chosen] = 0.0
            start += chosen.numel()
        values[0] = torch.where(is_sound, values[0], torch.nan)
        self._step += bucket.is_last()
        ranks = self.world_size
        gathered = torch.empty(ranks * 2 * count, dtype=torch.int32, device=buffer.device)
        work = all_gather(gathered, payload, group=self.group, async_op=True)

        def add_up() -> torch.Tensor:
            buffer.zero_()
            for one in gathered.view(ranks, 2, count):
                buffer.index_add_(0, one[0], one[1].view(torch.float32).div_(ranks))
            return buffer

        return after(work, add_up)

    def kept_state(self) -> dict[str, Any]:
        return {
            "unsent": state_by_name(self._unsent.by_parameter(), self.names),
            "velocity": state_by_name(self._velocity.by_parameter(), self.names),
            "step": self._step,
        }

    def load_kept_state(self, state: Mapping[str, Any]) -> None:
        unsent, velocity = (pieces_of(state[key], self.names) for key in ("unsent", "velocity"))
        self._unsent.load(unsent)
        self._velocity.load(velocity)
        self._step = int(state["step"])

    def forget(self) -> None:
        self._unsent.load({})
        self._velocity.load({})
        self._step = 0


def _only_finite(buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether all of it is finite (bool, 0-d), and the buffer, or zeros if it is not. Waits for no device."""
    is_sound = torch.isfinite(buffer.sum())
    if buffer.device.type == "cpu":
        return is_sound, buffer if is_sound else torch.zeros_like(buffer)
    return is_sound, torch.where(is_sound, buffer, torch.zeros_like(buffer))


def after(work: Any, finish: Callable[[], torch.Tensor]) -> Any:
    """The future of what ``finish`` returns once the collective is done; of its error where it failed."""

    def proceed(done: Any) -> torch.Tensor:
        done.value()  # raises: torch calls this after a failure too, and what arrived is no gradient then
        return finish()

    _wait_at_exit()
    _unreleased.add(weakref.ref(proceed, _unreleased.discard))
    return work.get_future().then(proceed)


@functools.cache
def _wait_at_exit() -> None:
    atexit.register(wait_for_release)


def wait_for_release() -> None:
    """Wait until the backend's threads released the exchanges' objects, for a second at most.

    A thread of gloo that asks for the interpreter's lock while Python ends aborts the process (torch 2.13 and Python
    3.11).
    """
    until_s = time.monotonic() + _MOST_RELEASE_S
    while _unreleased and time.monotonic() < until_s:
        time.sleep(_RELEASE_S)
    time.sleep(_RELEASE_S)  # a collective's tensors are released after what followed it


def new_future(device: torch.device) -> Any:
    """A future of a tensor on this device, to be set by the hook."""
    devices: list[int | str | torch.device] = [] if device.type == "cpu" else [device]
    return torch.futures.Future(devices=devices)
