"""A DDP model on several ranks -> steps on local gradients, and every so often one exchange of what they changed.

Local SGD (Stich, arXiv 1805.09767): after every H steps the replicas take the mean of their weights. DiLoCo (Douillard
et al., arXiv 2311.08105): the mean change of the H steps is the gradient of an outer optimizer, SGD with Nesterov
momentum. A *worker* is one rank, or ``group`` ranks that go on averaging their gradients in every step.

The first step is DDP's own, or several are (a warm-up; post-local SGD, Lin et al., arXiv 1808.07217): after it, the
ranks compare what they hold and begin together. From then on, every step of the model's optimizer whose number is a
multiple of H is followed by a *round*. After a round all ranks hold the same bits.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hotloop.apply.compression import CastHook, GradientHook, TopKHook, register
from hotloop.apply.compression.hooks import after
from hotloop.apply.ddp import CHUNK_BYTES, agree, average_tensors, reduced_parameters, why_special
from hotloop.core.errors import UsageError

SHARED_OPTIMIZERS = ("ZeroRedundancyOptimizer", "DistributedOptimizer", "PostLocalSGDOptimizer")
DIGEST_MASK = (1 << 62) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The settings of the technique ``local-updates``, which describes them."""

    steps: int = 10
    warm_up_steps: int = 0
    outer: str = "average"
    outer_rate: float = 0.7
    outer_momentum: float = 0.5
    send: str = "float32"
    ratio: float = 0.01
    group: int = 1

    @property
    def first_steps(self) -> int:
        """Steps that are DDP's own."""
        return max(1, self.warm_up_steps)

    @property
    def has_anchor(self) -> bool:
        """Whether the weights of the last round must be kept: where more is computed from the change than its mean."""
        return self.outer == "nesterov" or self.send != "float32"


class MeanHook(GradientHook):
    """Averages a bucket as it is."""

    def describe(self) -> str:
        return "all of the bytes"

    def send(self, bucket: Any) -> Any:
        buffer = bucket.buffer().div_(self.world_size)
        self.work = dist.all_reduce(buffer, group=self.group, async_op=True)
        return after(self.work, lambda: buffer)


@dataclass(slots=True, kw_only=True)
class _Piece:
    """Some of the parameters, flat and one after another; what a compression hook knows as a bucket."""

    position: int
    is_the_last: bool
    members: list[torch.Tensor]
    flat: torch.Tensor | None = None
    """What is sent in this round: the weights, or their change."""
    anchor: torch.Tensor | None = None
    """The weights of the last round."""
    velocity: torch.Tensor | None = None
    """The outer optimizer's momentum buffer."""

    def index(self) -> int:
        return self.position

    def buffer(self) -> torch.Tensor:
        assert self.flat is not None
        return self.flat

    def parameters(self) -> list[torch.Tensor]:
        return self.members

    def is_last(self) -> bool:
        return self.is_the_last

    def join(self) -> torch.Tensor:
        """A copy of the weights as they are, float32, [elements of all members]."""
        return torch.cat([one.detach().reshape(-1) for one in self.members])

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The members' parts of a flat tensor, each in its member's shape."""
        parts = flat.split_with_sizes([one.numel() for one in self.members])
        return [part.view(one.shape) for part, one in zip(parts, self.members, strict=True)]

    def put(self, flat: torch.Tensor) -> None:
        """Give the members these values."""
        for member, view in zip(self.members, self.views(flat), strict=True):
            member.copy_(view)


class LocalRounds:
    """One model's rounds. ``emit(why)`` is called once, when the ranks have decided: with None where they begin."""

    def __init__(self, ddp: Any, plan: RoundPlan, emit: Callable[[str | None], None]) -> None:
        self.plan = plan
        self.is_active = False
        self.position = 0
        """Steps since the last round."""
        self.made_steps = 0
        """Of the training, before the ranks began. Who continues one sets it."""
        self._ddp = weakref.ref(ddp)
        self._emit = emit
        self._is_decided = False
        self._ids = {id(parameter) for parameter in reduced_parameters(ddp)}
        self._optimizers: list[weakref.ref[Any]] = []
        self._pieces: list[_Piece] = []
        self._hook: GradientHook = MeanHook()
        self._workers: Any = None
        """The ranks of this worker, where it has several."""
        self._index = 0
        """This rank's place in its worker."""
        self._averages_buffers = bool(ddp.broadcast_buffers)

    def watch_optimizer(self, optimizer: Any) -> None:
        """Count its steps, if it changes this model's parameters."""
        if any(id(p) in self._ids for group in optimizer.param_groups for p in group["params"]):
            optimizer.register_step_post_hook(partial(_after_step, self))
            self._optimizers.append(weakref.ref(optimizer))

    def count_step(self) -> None:
        """The optimizer has made a step: all ranks are here after the same exchanges."""
        if self.is_active:
            self.position += 1
            if self.position >= self.plan.steps:
                self._run_round()
        elif not self._is_decided:
            self.made_steps += 1
            if self.made_steps >= self.plan.first_steps:
                self._decide()

    @contextlib.contextmanager
    def mean_weights(self) -> Iterator[None]:
        """Inside, the model has the mean weights and buffers of all ranks; after it, this rank's own. All ranks must
        enter. Straight after a round the ranks hold the same, and nothing is exchanged."""
        if not self.position:
            yield
            return
        shared = self._shared()
        own = [one.detach().clone() for one in shared]
        self.settle()
        try:
            yield
        finally:
            with torch.no_grad():
                for one, value in zip(shared, own, strict=True):
                    one.copy_(value)

    @torch.no_grad()
    def settle(self) -> None:
        """Leave the model with the mean weights and buffers of all ranks, between rounds too. All ranks must call it.

        The outer optimizer stays as it is, so that further steps go on to the next round.
        """
        if self.position:
            average_tensors(self._members(), self._model().process_group)
            self._align_buffers()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What this rank's part of a checkpoint needs beside its weights and its optimizer's state."""
        return {
            "is_active": self.is_active,
            "settings": self._kept_settings(),
            "position": self.position,
            "anchor": self._by_name("anchor"),
            "velocity": self._by_name("velocity"),
            "hook": self._hook.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint stood, before the first step. All ranks must call it.

        Raises UsageError where the model cannot be trained so, or the state is of other settings.
        """
        if not state["is_active"]:
            return
        here, there = self._kept_settings(), dict(state["settings"])
        if here != there:
            raise UsageError(f"local-updates: the checkpoint was written with {there}, here are {here}; set the same")
        if not self.is_active:
            problem = self._what_forbids()
            if problem is not None:
                raise UsageError(f"local-updates: {problem}, but the checkpoint was written with it; remove that first")
            self._begin()
        with torch.no_grad():
            for kind in ("anchor", "velocity"):
                for name, target in self._by_name(kind).items():
                    target.copy_(state[kind][name])
        self._hook.load_state_dict(state["hook"])
        self.position = int(state["position"])

    def _kept_settings(self) -> dict[str, Any]:
        """Settings on which it depends what is kept; the others may change between two runs."""
        return {name: getattr(self.plan, name) for name in ("outer", "send", "group")}

    def _by_name(self, kind: str) -> dict[str, torch.Tensor]:
        """Views of the pieces' anchors or velocities, by the parameter's name."""
        found: dict[str, torch.Tensor] = {}
        for piece in self._pieces:
            flat = getattr(piece, kind)
            if flat is not None:
                names = [self._hook.names[id(one)] for one in piece.members]
                found.update(zip(names, piece.views(flat), strict=True))
        return found

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """After DDP's own steps: begin on all ranks or on none."""
        self._is_decided = True
        problem = self._what_forbids()
        (_, is_bad), (least, greatest) = agree(self._model(), [int(problem is not None), self._digest()])
        if is_bad:
            self._emit(problem or "it is not possible on another rank")
        elif least != greatest:
            self._emit(f"the ranks have different weights after step {self.made_steps}")
        else:
            self._begin()
            self.position = self.made_steps % self.plan.steps
            self._emit(None)

    def _what_forbids(self) -> str | None:
        ddp = self._model()
        special = why_special(ddp)
        if special is not None:
            return special
        optimizers = [one for one in (reference() for reference in self._optimizers) if one is not None]
        if len(optimizers) > 1:
            return "several optimizers update the model"
        for cls in (cls for one in optimizers for cls in type(one).__mro__):
            if cls.__name__ in SHARED_OPTIMIZERS:
                return f"{cls.__name__} shares its work over the ranks and needs the same gradients on all of them"
        parameters = reduced_parameters(ddp)
        dtypes = {one.dtype for one in parameters}
        if dtypes != {torch.float32}:
            return f"the parameters are {', '.join(sorted(map(str, dtypes)))}, not torch.float32 alone"
        if len({one.device for one in parameters}) > 1:
            return "the parameters are on several devices"
        return None

    def _digest(self) -> int:
        """A number that differs where the weights' bits do."""
        sums = [one.detach().reshape(-1).view(torch.int32).sum(dtype=torch.int64) for one in self._members()]
        values: list[int] = torch.stack(sums).tolist()
        return sum((index + 1) * value for index, value in enumerate(values)) & DIGEST_MASK

    def _begin(self) -> None:
        ddp, plan = self._model(), self.plan
        self._hook = _hook_of(plan)
        self._hook.names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}
        self._hook.group = ddp.process_group
        if plan.group == 1:
            ddp.require_backward_grad_sync = ddp.require_forward_param_sync = False
        else:
            self._workers, self._hook.group, self._index = _split_ranks(ddp.process_group, plan.group)
            inner = MeanHook()
            register(ddp, inner)
            inner.group = self._workers
        ddp.broadcast_buffers = False
        self._pieces = _cut_pieces(self._members(), plan.group)
        if plan.has_anchor:
            for piece in self._pieces:
                piece.anchor = piece.join()
                if plan.outer == "nesterov":
                    piece.velocity = torch.zeros_like(piece.anchor)
        self.is_active = True

    # -- a round -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _run_round(self) -> None:
        for piece in self._pieces:
            owner = piece.position % self.plan.group  # the ranks of a worker share the sending out among them
            piece.flat = piece.join()
            if piece.anchor is not None:
                piece.flat.sub_(piece.anchor)
            if self._index == owner:
                sent = self._hook.send(piece)
                self._hook.work.wait()
                sent.wait()
            if self._workers is not None:
                dist.broadcast(piece.flat, dist.get_global_rank(self._workers, owner), group=self._workers)
            self._update(piece, piece.flat)
            piece.flat = None
        self._align_buffers()
        self.position = 0

    def _update(self, piece: _Piece, mean: torch.Tensor) -> None:
        """The new weights of a piece, from the mean of all workers."""
        if piece.anchor is None:
            piece.put(mean)
            return
        if piece.velocity is None:
            piece.anchor.add_(mean)
        else:  # torch.optim.SGD(nesterov=True), whose gradient is the change backwards
            piece.velocity.mul_(self.plan.outer_momentum).add_(mean)
            mean.add_(piece.velocity, alpha=self.plan.outer_momentum)
            piece.anchor.add_(mean, alpha=self.plan.outer_rate)
        piece.put(piece.anchor)

    # -- the model's tensors -------------------------------------------------------------------------------------------

    def _model(self) -> Any:
        ddp = self._ddp()
        assert ddp is not None, "its optimizer outlived the model"
        return ddp

    def _members(self) -> list[torch.Tensor]:
        return reduced_parameters(self._model())

    def _buffers(self) -> list[torch.Tensor]:
        """Running statistics and the like, as DDP would send them; none where the script keeps them apart."""
        ddp = self._model()
        if not self._averages_buffers:
            return []
        ddp._assign_modules_buffers()  # as DDP does before it sends them: the script may have replaced one
        return list(ddp.modules_buffers)

    def _shared(self) -> list[torch.Tensor]:
        return [*self._members(), *self._buffers()]

    def _align_buffers(self) -> None:
        """Running statistics become the mean of all ranks; counters and the like, which have none, the first rank's."""
        buffers, group = self._buffers(), self._model().process_group
        average_tensors([one for one in buffers if one.is_floating_point()], group)
        for one in buffers:
            if not one.is_floating_point():
                dist.broadcast(one, dist.get_global_rank(group, 0), group=group)


def _after_step(rounds: LocalRounds, optimizer: Any, args: Any, kwargs: Any) -> None:
    rounds.count_step()


def _hook_of(plan: RoundPlan) -> GradientHook:
    if plan.send == "topk":
        return TopKHook(plan.ratio)
    return CastHook(torch.bfloat16) if plan.send == "bf16" else MeanHook()


def _split_ranks(group: Any, size: int) -> tuple[Any, Any, int]:
    """The ranks of this rank's worker, those with the same place in every worker, and that place. All ranks must call
    this. Workers are ``size`` ranks that follow one another, as torchrun numbers the ranks of a host."""
    ranks = dist.get_process_group_ranks(group)
    mine = dist.get_rank(group)
    first, index = mine // size * size, mine % size
    inside = dist.new_group(ranks[first : first + size], use_local_synchronization=True)
    across = dist.new_group(ranks[index::size], use_local_synchronization=True)
    return inside, across, index


def _cut_pieces(parameters: Sequence[torch.Tensor], group: int) -> list[_Piece]:
    """The parameters in their order, in pieces of about CHUNK_BYTES; smaller where ranks share them out."""
    total_bytes = sum(one.nbytes for one in parameters)
    most_bytes = min(CHUNK_BYTES, -(-total_bytes // group))
    cuts: list[list[torch.Tensor]] = []
    size_bytes = most_bytes
    for one in parameters:
        if size_bytes >= most_bytes:
            cuts.append([])
            size_bytes = 0
        cuts[-1].append(one)
        size_bytes += one.nbytes
    return [
        _Piece(position=index, is_the_last=index + group >= len(cuts), members=members)
        for index, members in enumerate(cuts)
    ]
