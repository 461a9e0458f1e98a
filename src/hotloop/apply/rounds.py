"""A DDP model on several ranks -> steps on local gradients, and every so often one exchange of what they changed.

Local SGD (Stich, arXiv 1805.09767): after every H steps the replicas take the mean of their weights. DiLoCo (Douillard
et al., arXiv 2311.08105): the mean change of the H steps is the gradient of an outer optimizer, SGD with Nesterov
momentum.

The first step is DDP's own, or several are (a warm-up; post-local SGD, Lin et al., arXiv 1808.07217): after it, the
ranks compare what they hold and begin together. From then on, every step of the model's optimizer whose number is a
multiple of H is followed by a *round*. After a round all ranks hold the same bits.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hotloop.apply.ddp import agree, average_tensors, reduced_parameters, why_special
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

    @property
    def first_steps(self) -> int:
        """Steps that are DDP's own."""
        return max(1, self.warm_up_steps)

    @property
    def has_anchor(self) -> bool:
        """Whether the weights of the last round must be kept: where more is computed from the change than its mean."""
        return self.outer == "nesterov" or self.send != "float32"


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
        self._anchor: dict[str, torch.Tensor] = {}
        """The weights of the last round, by the parameter's name, where the plan needs them."""
        self._velocity: dict[str, torch.Tensor] = {}
        """The outer optimizer's momentum buffers."""
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
        shared = [*self._members().values(), *self._buffers()]
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
            average_tensors(list(self._members().values()), self._model().process_group)
            self._align_buffers()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What this rank's part of a checkpoint needs beside its weights and its optimizer's state."""
        return {
            "is_active": self.is_active,
            "settings": self._kept_settings(),
            "position": self.position,
            "anchor": dict(self._anchor),
            "velocity": dict(self._velocity),
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
        for mine, kept in ((self._anchor, state["anchor"]), (self._velocity, state["velocity"])):
            for name, target in mine.items():
                target.copy_(kept[name])
        self.position = int(state["position"])

    def _kept_settings(self) -> dict[str, Any]:
        """Settings on which it depends what is kept; the others may change between two runs."""
        return {"outer": self.plan.outer, "send": self.plan.send}

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
        members = self._members().values()
        sums = [one.detach().reshape(-1).view(torch.int32).sum(dtype=torch.int64) for one in members]
        values: list[int] = torch.stack(sums).tolist()
        return sum((index + 1) * value for index, value in enumerate(values)) & DIGEST_MASK

    def _begin(self) -> None:
        ddp = self._model()
        ddp.require_backward_grad_sync = ddp.require_forward_param_sync = ddp.broadcast_buffers = False
        if self.plan.has_anchor:
            self._anchor = {name: one.detach().clone() for name, one in self._members().items()}
        if self.plan.outer == "nesterov":
            self._velocity = {name: torch.zeros_like(one) for name, one in self._anchor.items()}
        self.is_active = True

    # -- a round -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _run_round(self) -> None:
        members, group = self._members(), self._model().process_group
        if self.plan.has_anchor:
            dtype = torch.bfloat16 if self.plan.send == "bf16" else torch.float32
            moves = {name: (one - self._anchor[name]).to(dtype) for name, one in members.items()}
            average_tensors(list(moves.values()), group)
            for name, one in members.items():
                self._move_anchor(name, moves.pop(name).float())
                one.copy_(self._anchor[name])
        else:
            average_tensors(list(members.values()), group)
        self._align_buffers()
        self.position = 0

    def _move_anchor(self, name: str, mean: torch.Tensor) -> None:
        """The new weights of a parameter, from the mean change of all ranks."""
        velocity = self._velocity.get(name)
        if velocity is None:
            self._anchor[name].add_(mean)
        else:  # torch.optim.SGD(nesterov=True), whose gradient is the change backwards
            velocity.mul_(self.plan.outer_momentum).add_(mean)
            self._anchor[name].add_(mean.add(velocity, alpha=self.plan.outer_momentum), alpha=self.plan.outer_rate)

    # -- the model's tensors -------------------------------------------------------------------------------------------

    def _model(self) -> Any:
        ddp = self._ddp()
        assert ddp is not None, "its optimizer outlived the model"
        return ddp

    def _members(self) -> dict[str, torch.Tensor]:
        """The parameters that DDP averages, by name, in the same order on all ranks."""
        return {name: one for name, one in self._model().module.named_parameters() if id(one) in self._ids}

    def _buffers(self) -> list[torch.Tensor]:
        """Running statistics and the like, as DDP would send them; none where the script keeps them apart."""
        ddp = self._model()
        if not self._averages_buffers:
            return []
        ddp._assign_modules_buffers()  # as DDP does before it sends them: the script may have replaced one
        return list(ddp.modules_buffers)

    def _align_buffers(self) -> None:
        """Running statistics become the mean of all ranks; counters and the like, which have none, the first rank's."""
        buffers, group = self._buffers(), self._model().process_group
        average_tensors([one for one in buffers if one.is_floating_point()], group)
        for one in buffers:
            if not one.is_floating_point():
                dist.broadcast(one, dist.get_global_rank(group, 0), group=group)


def _after_step(rounds: LocalRounds, optimizer: Any, args: Any, kwargs: Any) -> None:
    rounds.count_step()
