"""DDP's communication hooks: what a bucket of gradients becomes on its way. Replicas stay equal bit for bit.

``register(model, hook)`` puts one in the place of DDP's all-reduce. Under gradient accumulation with ``no_sync`` a hook
sees the sum once a step. A gradient that is infinite or NaN on any rank arrives as such on all, so that a GradScaler
skips the step everywhere; it is never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from .residuals import Bucket, Residuals, pieces_of, state_by_name
from .selection import select_largest

_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
ALIKE_SEED = 20_260_101
"""Of whatever ranks must draw alike."""


class GradientHook:
    """Averages a bucket over the ranks of ``group``; a subclass says how. One instance serves one model."""

    is_lossy = True

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.names: dict[int, str] = {}
        """By id of the parameter: its name in the model. ``register`` fills it."""

    @property
    def world_size(self) -> int:
        return dist.get_world_size(self.group)

    def send(self, bucket: Bucket) -> Any:
        """The future of the bucket's averaged buffer. Called in the order of the buckets, the same on every rank."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold to go on bit for bit; empty for a hook that keeps nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} keeps nothing, and the state has {sorted(state)[0]!r}")


class CastHook(GradientHook):
    """Gradients in 16 bits: half of float32's bytes. bfloat16 keeps the range, float16 more digits."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16, group: Any = None) -> None:
        super().__init__(group)
        if dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(f"dtype is {dtype}: choose torch.bfloat16 or torch.float16")
        self.dtype = dtype

    def send(self, bucket: Bucket) -> Any:
        buffer = bucket.buffer()
        short = buffer.to(self.dtype).div_(self.world_size)
        work = dist.all_reduce(short, group=self.group, async_op=True)
        return work.get_future().then(lambda _: buffer.copy_(short))


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

    def send(self, bucket: Bucket) -> Any:
        buffer = bucket.buffer()
        if buffer.dtype != torch.float32:
            raise TypeError(f"top-k sends float32 gradients, these are {buffer.dtype}: choose a 16-bit hook")
        unsent = self._unsent.of(bucket)
        is_sound = torch.isfinite(buffer.sum())
        gradient = torch.where(is_sound, buffer, torch.zeros_like(buffer))
        velocity = None
        if self.momentum:
            velocity = self._velocity.of(bucket)
            gradient = velocity.mul_(self.momentum).add_(gradient)
        unsent.add_(gradient)
        sizes = [one.numel() for one in bucket.parameters()]
        counts = [max(1, round(self.ratio * size)) for size in sizes]
        count = sum(counts)
        payload = torch.zeros(2 * count, dtype=torch.int32, device=buffer.device)
        indices, values = payload[:count], payload[count:].view(torch.float32)
        start = 0
        for piece, wanted in zip(unsent.split_with_sizes(sizes), counts, strict=True):
            chosen = select_largest(piece, wanted, self._step).add_(piece.storage_offset() - unsent.storage_offset())
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
        work = _all_gather(gathered, payload, group=self.group, async_op=True)

        def add_up(_: Any) -> torch.Tensor:
            buffer.zero_()
            for one in gathered.view(ranks, 2, count):
                buffer.index_add_(0, one[0], one[1].view(torch.float32))
            return buffer.div_(ranks)

        return work.get_future().then(add_up)

    def state_dict(self) -> dict[str, Any]:
        return {
            "unsent": state_by_name(self._unsent.by_parameter(), self.names),
            "velocity": state_by_name(self._velocity.by_parameter(), self.names),
            "step": self._step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        unsent, velocity = (pieces_of(state[key], self.names) for key in ("unsent", "velocity"))
        self._unsent.load(unsent)
        self._velocity.load(velocity)
        self._step = int(state["step"])


class LowRankHook(GradientHook):
    """PowerSGD (Vogels et al., NeurIPS 2019): each matrix as a product of two thin ones, in one power iteration a step.

    A matrix of n x m is sent as ``rank`` x (n + m) elements where that is less than half of it; vectors are sent whole.
    The second exchange of every bucket waits for the last bucket: it then starts in the order of the buckets.
    """

    def __init__(self, rank: int = 4, group: Any = None) -> None:
        super().__init__(group)
        if rank < 1:
            raise ValueError(f"rank is {rank}: choose 1 or more")
        self.rank = rank
        self._unsent = Residuals()
        self._right: dict[int, torch.Tensor] = {}
        """By id of the parameter: the right factor of the last step, [m, rank], where this one begins."""
        self._waiting: list[_LowRankBucket] = []

    def send(self, bucket: Bucket) -> Any:
        one = _LowRankBucket(self, bucket)
        self._waiting.append(one)
        if not bucket.is_last():
            return one.future
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.exchange_right()
        for one in waiting:
            one.finish()
        return one.future

    def right_factor(self, parameter: torch.Tensor, columns: int, rank: int) -> torch.Tensor:
        known = self._right.get(id(parameter))
        if known is None or known.shape != (columns, rank):
            draws = torch.Generator().manual_seed(ALIKE_SEED + columns)
            known = torch.randn(columns, rank, generator=draws).to(parameter.device)
        return known

    def keep_right(self, parameter: torch.Tensor, right: torch.Tensor) -> None:
        self._right[id(parameter)] = right

    def unsent(self, bucket: Bucket) -> torch.Tensor:
        return self._unsent.of(bucket)

    def state_dict(self) -> dict[str, Any]:
        return {
            "unsent": state_by_name(self._unsent.by_parameter(), self.names),
            "right": state_by_name(self._right, self.names),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        unsent, right = (pieces_of(state[key], self.names) for key in ("unsent", "right"))
        self._unsent.load(unsent)
        self._right = {key: one.clone() for key, one in right.items()}


class _LowRankBucket:
    """One bucket between its two exchanges. Matrices as views of the bucket's gradient with what was kept."""

    def __init__(self, hook: LowRankHook, bucket: Bucket) -> None:
        self.hook, self.buffer = hook, bucket.buffer()
        devices: list[int | str | torch.device] = [] if self.buffer.device.type == "cpu" else [self.buffer.device]
        self.future: Any = torch.futures.Future(devices=devices)
        if self.buffer.dtype != torch.float32:
            raise TypeError(f"PowerSGD sends float32 gradients, these are {self.buffer.dtype}: choose a 16-bit hook")
        self.unsent = hook.unsent(bucket)
        self.is_sound = torch.isfinite(self.buffer.sum())
        self.whole = torch.where(self.is_sound, self.buffer + self.unsent, torch.full_like(self.buffer, torch.nan))
        parameters = bucket.parameters()
        pieces = list(self.whole.split_with_sizes([one.numel() for one in parameters]))
        self.matrices: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.vectors: list[torch.Tensor] = []
        for parameter, piece in zip(parameters, pieces, strict=True):
            rows = parameter.shape[0] if parameter.dim() > 1 else 1
            columns = piece.numel() // max(1, rows)
            if min(rows, columns) > hook.rank and 2 * hook.rank * (rows + columns) < piece.numel():
                self.matrices.append((parameter, piece.view(rows, columns)))
            else:
                self.vectors.append(piece)
        self.right = [hook.right_factor(parameter, piece.shape[1], hook.rank) for parameter, piece in self.matrices]
        left = [piece @ right for (_, piece), right in zip(self.matrices, self.right, strict=True)]
        self.sent = _join([*left, *self.vectors], self.buffer)
        self.work = dist.all_reduce(self.sent, group=hook.group, async_op=True)

    def exchange_right(self) -> None:
        self.work.wait()
        ranks = self.hook.world_size
        sizes = [piece.shape[0] * self.hook.rank for _, piece in self.matrices]
        parts = self.sent.split_with_sizes([*sizes, *(one.numel() for one in self.vectors)])
        self.averaged_vectors = [part / ranks for part in parts[len(sizes) :]]
        # The factors' directions count, not their lengths: the sum serves as well as the mean.
        self.left = [_orthogonal(part.view(-1, self.hook.rank)) for part in parts[: len(sizes)]]
        right = [piece.t() @ left for (_, piece), left in zip(self.matrices, self.left, strict=True)]
        self.sent = _join(right, self.buffer)
        self.work = dist.all_reduce(self.sent, group=self.hook.group, async_op=True)

    def finish(self) -> None:
        self.work.wait()
        self.sent.div_(self.hook.world_size)
        sizes = [piece.shape[1] * self.hook.rank for _, piece in self.matrices]
        parts = self.sent.split_with_sizes(sizes) if sizes else ()
        for (parameter, piece), left, part in zip(self.matrices, self.left, parts, strict=True):
            right = part.view(-1, self.hook.rank)
            before = self.hook.right_factor(parameter, right.shape[0], self.hook.rank)
            self.hook.keep_right(parameter, torch.where(torch.isfinite(right).all(), right, before))
            mean = left @ right.t()
            _keep(self.unsent, self.whole, piece, piece - mean)
            piece.copy_(mean)
        for piece, mean in zip(self.vectors, self.averaged_vectors, strict=True):
            _keep(self.unsent, self.whole, piece, torch.zeros_like(piece))
            piece.copy_(mean)
        self.buffer.copy_(self.whole)
        self.future.set_result(self.buffer)


def _keep(unsent: torch.Tensor, whole: torch.Tensor, piece: torch.Tensor, rest: torch.Tensor) -> None:
    """Store what was not sent of a piece of ``whole``; a rest that is not finite leaves what was kept before."""
    start = piece.storage_offset() - whole.storage_offset()
    place = unsent[start : start + piece.numel()]
    rest = rest.reshape(-1)
    place.copy_(torch.where(torch.isfinite(rest.sum()), rest, place))


def _join(pieces: Iterable[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    flat = [piece.reshape(-1) for piece in pieces]
    return torch.cat(flat) if flat else like.new_zeros(1)


def _orthogonal(left: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns of the same span; what is not finite stays so, without an error of LAPACK's."""
    is_sound = torch.isfinite(left.sum())
    q = torch.linalg.qr(torch.where(is_sound, left, torch.zeros_like(left)))[0]
    return torch.where(is_sound, q, torch.full_like(q, torch.nan))


_MAKERS: Mapping[str, Callable[..., GradientHook]] = {
    "bf16": lambda **_: CastHook(torch.bfloat16),
    "fp16": lambda **_: CastHook(torch.float16),
    "topk": lambda ratio, momentum, **_: TopKHook(ratio, momentum),
    "powersgd": lambda rank, **_: LowRankHook(rank),
}
METHODS = tuple(_MAKERS)


def make_hook(method: str, *, ratio: float = 0.01, momentum: float = 0.0, rank: int = 4) -> GradientHook:
    """The hook of that name, one of METHODS. Raises ValueError for another."""
    if method not in _MAKERS:
        raise ValueError(f"method is {method!r}: choose one of {', '.join(METHODS)}")
    return _MAKERS[method](ratio=ratio, momentum=momentum, rank=rank)


def register(model: Any, hook: GradientHook) -> None:
    """Make a DistributedDataParallel send its gradients by this hook, before its first backward."""
    hook.names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    hook.group = model.process_group

    def send_bucket(state: GradientHook, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations as text
        return state.send(bucket)

    model.register_comm_hook(hook, send_bucket)
