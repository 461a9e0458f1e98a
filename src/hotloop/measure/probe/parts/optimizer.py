"""One step of the present optimizer, fused and with foreach; and gradient clipping by a loop and by foreach."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from hotloop.measure.probe.clock import middle, time_arms
from hotloop.measure.probe.operators import NotReplayable
from hotloop.measure.probe.opportunities import Part, ProbeRequest, RecordedOptimizer


def time_optimizer(facts: RecordedOptimizer, memory_bytes: int, budget_s: float) -> dict[str, Any]:
    """ns of a step or of clipping by arm, over parameters of the recorded sizes, or of a share of them.

    An arm that this optimizer does not support is missing. Raises NotReplayable.
    """
    kind = facts.kind
    settings = dict(facts.settings)
    if facts.class_name == "SGD":
        settings.setdefault("momentum", 0.9)
    parameters, share = facts.make_parameters(memory_bytes)
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
    return {f"{name}_ns": round(middle(values)) for name, values in times.items()} | {
        "share_ratio": round(share, 4),
        "tensors": len(parameters),
        "rounds": len(times["present"]),
        "assumed_settings": {} if facts.settings else settings,
    }


def _measure(request: ProbeRequest, budget_s: float) -> dict[str, Any] | None:
    return time_optimizer(request.optimizer, request.memory_bytes, budget_s) if request.optimizer else None


OPTIMIZER = Part(
    id="optimizer", order=5, budget_ratio=0.15, is_wanted=lambda request: bool(request.optimizer), measure=_measure
)
