"""Recorded facts of an optimizer -> parameters of the recorded sizes, and the optimizer over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hotloop.probe.operators import NotReplayable
from hotloop.probe.request import RecordedOptimizer


def find_optimizer(facts: RecordedOptimizer) -> Any:
    """The class of torch.optim that was recorded. Raises NotReplayable when it is not one of torch's."""
    kind = getattr(torch.optim, facts.class_name, None)
    if kind is None:
        raise NotReplayable(f"{facts.class_name} is not one of torch's optimizers")
    return kind


def make_parameters(numels: Sequence[Sequence[int]], most_elements: int) -> tuple[list[torch.Tensor], float]:
    """Parameters with gradients in the recorded sizes, and their share of all elements (below 1 when too many)."""
    total = sum(numel * count for numel, count in numels)
    share = min(1.0, most_elements / max(total, 1))
    parameters: list[torch.Tensor] = []
    for numel, count in numels:
        kept = max(1, round(count * share))
        size = numel if share == 1.0 else min(numel, max(1, most_elements // 4))
        for _ in range(kept):
            parameter = torch.zeros(size, requires_grad=True)
            parameter.grad = torch.full((size,), 1e-3)
            parameters.append(parameter)
    made = sum(p.numel() for p in parameters)
    return parameters, made / max(total, 1)
