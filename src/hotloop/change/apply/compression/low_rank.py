"""PowerSGD as a communication hook that works with any number of buckets, on gloo too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from .hooks import Bucket, GradientHook, Residuals, new_future, pieces_of, state_by_name

ALIKE_SEED = 20_260_101
"""Seed of all draws that must be the same on every rank."""


class LowRankHook(GradientHook):
    """PowerSGD (Vogels et al., NeurIPS 2019): each matrix as a product of two thin ones, in one power iteration a step.

    A matrix of n x m is sent as ``rank`` x (n + m) elements where that is less than half of it; vectors are sent in
    full. The second exchange of every bucket waits for the last bucket: it then starts in the order of the buckets. On
    more than two ranks an all-reduce adds up in an order that depends on the buckets, as plain DDP's does: a checkpoint
    goes on bit for bit on two, and up to rounding on more.
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

    @property
    def is_late(self) -> bool:
        return True

    def describe(self) -> str:
        return f"matrices as two of rank {self.rank}, the rest is kept"

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
            known = torch.randn(columns, rank, generator=draws)
        return known.to(parameter.device)

    def keep_right(self, parameter: torch.Tensor, right: torch.Tensor) -> None:
        self._right[id(parameter)] = right

    def unsent(self, bucket: Bucket) -> torch.Tensor:
        return self._unsent.of(bucket)

    def kept_state(self) -> dict[str, Any]:
        return {
            "unsent": state_by_name(self._unsent.by_parameter(), self.names),
            "right": state_by_name(self._right, self.names),
        }

    def load_kept_state(self, state: Mapping[str, Any]) -> None:
        unsent, right = (pieces_of(state[key], self.names) for key in ("unsent", "right"))
        self._unsent.load(unsent)
        self._right = {key: one.clone() for key, one in right.items()}

    def forget(self) -> None:
        self._unsent.load({})
        self._right = {}


class _LowRankBucket:
    """One bucket between its two exchanges. Matrices as views of the bucket's gradient with what was kept."""

    def __init__(self, hook: LowRankHook, bucket: Bucket) -> None:
        self.hook, self.buffer = hook, bucket.buffer()
        self.future = new_future(self.buffer.device)
        if self.buffer.dtype != torch.float32:
            raise TypeError(
                f"PowerSGD sends float32 gradients, but these are {self.buffer.dtype}: choose a 16-bit hook"
            )
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
        self.left = [orthogonalize(part.view(-1, self.hook.rank)) for part in parts[: len(sizes)]]
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


def orthogonalize(left: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns of the same span; what is not finite stays so, without an error of LAPACK's."""
    is_sound = torch.isfinite(left.sum())
    q = torch.linalg.qr(torch.where(is_sound, left, torch.zeros_like(left)))[0]
    return torch.where(is_sound, q, torch.full_like(q, torch.nan))
