"""A step's recorded forward operators -> a pass that hands data from call to call, with one backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from hotloop.probe.operators import (
    NOT_TIMED,
    Operator,
    find_overload,
    flatten,
    is_differentiable,
    make_inputs,
    scale_batch,
)

MOST_CALLS = 3_000
PASS_COPIES = 6
"""A pass keeps its inputs, outputs and gradients, once for each batch size."""
LEAST_PASS_RATIO = 0.8
"""Share of the calls that a pass has to hold to stand for the step."""


def order_calls(forward: Sequence[Operator]) -> list[Operator]:
    """One entry per call, as layers of a network make them: every operator once in turn while it has calls left."""
    ordered = sorted(forward, key=lambda op: op.first)
    left = [round(op.count) for op in ordered]
    calls = []
    while any(left):
        for i, op in enumerate(ordered):
            if left[i]:
                left[i] -= 1
                calls.append(op)
    return calls


class WholePass:
    """All forward calls of a step, each fed with what an earlier one made where the sizes fit, and one backward.

    Operators timed alone find their tensors in the caches. In a step they find what the steps' other operators left
    there, which is what decides how the time grows with the batch.
    """

    def __init__(self, calls: Sequence[Operator], batch: int, factor: int = 1) -> None:
        self.leaves: list[torch.Tensor] = []
        self._fed: dict[tuple[Any, ...], torch.Tensor] = {}
        self._calls = [call for op in calls if (call := self._prepare(op, batch, factor)) is not None]

    @property
    def calls_count(self) -> int:
        return len(self._calls)

    def _prepare(self, op: Operator, batch: int, factor: int) -> tuple[Any, list[Any], dict[str, Any], Any] | None:
        op = op.functional
        try:
            overload = find_overload(op)
            bigger = scale_batch(op, batch)
            shapes = (scale_batch(op, batch, factor) if bigger is not None else None) or op.shapes
            positional, keywords = make_inputs(op, overload, shapes, not overload._schema.is_mutable)
            overload(*positional, **keywords)
        except NOT_TIMED:
            return None
        # What grows with the batch is data, which calls hand on; the rest are this call's own weights.
        data = [i for i, (old, new) in enumerate(zip(op.shapes, bigger or (), strict=False)) if old != new]
        fed: list[tuple[int, tuple[int, ...], torch.dtype]] = []
        for i, value in enumerate(positional):
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            if i in data:
                positional[i] = self._fed.setdefault((tuple(value.shape), value.dtype), value)
                fed.append((i, tuple(value.shape), value.dtype))
        self.leaves += [t for t in flatten([*positional, *keywords.values()]) if is_differentiable(t)]
        return overload, positional, keywords, fed

    def run(self) -> None:
        """Forward and backward once."""
        made: dict[int, torch.Tensor] = {}
        unused: dict[int, torch.Tensor] = {}
        for overload, positional, keywords, fed in self._calls:
            arguments = list(positional)
            for i, shape, dtype in fed:
                source = made.get(math.prod(shape))
                if source is not None and source.dtype is dtype:
                    unused.pop(id(source), None)
                    arguments[i] = source.reshape(shape)
            out = overload(*arguments, **keywords)
            for one in flatten([out])[:1]:
                if is_differentiable(one):
                    made[one.numel()] = one
                    unused[id(one)] = one
        ends = list(unused.values())
        if ends:
            torch.autograd.grad(ends, self.leaves, [torch.ones_like(one) for one in ends], allow_unused=True)
