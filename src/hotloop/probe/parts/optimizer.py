"""One step of the present optimizer, fused and with foreach; and gradient clipping by a loop and by foreach."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hotloop.probe.clock import middle, time_arms
from hotloop.probe.operators import NotReplayable
from hotloop.probe.optimizers import find_optimizer, make_parameters
from hotloop.probe.request import Part, ProbeRequest, RecordedOptimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerTimes:
    """``arms_ns``: ns of a step or of clipping, by arm; an arm that this optimizer does not support is missing."""

    arms_ns: Mapping[str, int]
    share_ratio: float
    """Share of the recorded parameters that was built, 0..1."""
    tensors: int
    rounds: int
    assumed_settings: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {f"{name}_ns": ns for name, ns in self.arms_ns.items()} | {
            "share_ratio": self.share_ratio,
            "tensors": self.tensors,
            "rounds": self.rounds,
            "assumed_settings": dict(self.assumed_settings),
        }


def time_optimizer(facts: RecordedOptimizer, memory_bytes: int, budget_s: float) -> OptimizerTimes:
    """Times of every arm over parameters of the recorded sizes, or of a share of them. Raises NotReplayable."""
    kind = find_optimizer(facts)
    settings = dict(facts.settings)
    if facts.class_name == "SGD":
        settings.setdefault("momentum", 0.9)
    parameters, share = make_parameters(facts.numels, memory_bytes // (4 * 8))
    groups = max(1, min(facts.groups, len(parameters)))
    variants: dict[str, dict[str, Any]] = {
        "present": facts.present,
        "fused": {"fused": True},
        "foreach": {"foreach": True},
    }
    arms: dict[str, Callable[[], object]] = {}
    for name, flags in variants.items():
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            split = [{"params": parameters[i::groups]} for i in range(groups)]
            optimizer = kind(split, lr=1e-6, **settings, **flags)
            optimizer.step()
            arms[name] = optimizer.step
    if "present" not in arms:
        raise NotReplayable(f"{facts.class_name} cannot be built with what was recorded")

    def clip_by_hand() -> None:
        total = 0.0
        for p in parameters:
            if p.grad is not None:
                total += p.grad.detach().norm(2).item() ** 2
        scale = min(1.0, 1e9 / (total**0.5 + 1e-6))
        for p in parameters:
            if p.grad is not None:
                p.grad.mul_(scale)

    arms["clip_by_hand"] = clip_by_hand
    arms["clip_foreach"] = lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e9, foreach=True)
    times = time_arms(arms, budget_s, most=25)
    return OptimizerTimes(
        arms_ns={name: round(middle(values)) for name, values in times.items()},
        share_ratio=round(share, 4),
        tensors=len(parameters),
        rounds=len(times["present"]),
        assumed_settings={} if facts.settings else settings,
    )


def _measure(request: ProbeRequest, budget_s: float) -> OptimizerTimes | None:
    return time_optimizer(request.optimizer, request.memory_bytes, budget_s) if request.optimizer else None


OPTIMIZER = Part(
    id="optimizer", order=5, budget_ratio=0.15, is_wanted=lambda request: bool(request.optimizer), measure=_measure
)
