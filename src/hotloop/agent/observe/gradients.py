"""Optimizer steps -> the norm of the gradients that the optimizer was given, read when somebody asks for it.

Only in trials of ``hotloop tune`` and under ``hotloop run --watch-numbers``. A norm looks at every gradient once, which
in each step would cost more than a trial may: the first steps are noted, and then one in THEN_EVERY, by number, so that
all processes note the same ones. The value stays on its device. Gradients are taken as the optimizer gets them, after
clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .guard import GUARD

EACH_UNTIL = 8
"""Rows from the first one whose norm is noted each."""
THEN_EVERY = 16
MOST_NORMS = 256

_SINGLE = (torch.float32, torch.float64)
"""Number formats in which a norm neither overflows nor loses its digits when it is computed in them."""


class GradientWatch:
    """``row_number`` returns the number of the row that is open. ``unseen`` says why the norms say nothing."""

    def __init__(self, row_number: Callable[[], int]) -> None:
        self._row_number = row_number
        self._norms: dict[int, tuple[Any, Any]] = {}
        """Row -> its norm so far, and whether a GradScaler found it not finite (None without one)."""
        self._row = -1
        self._noted: set[int] = set()
        self._depth = 0
        """How many steps are running: an optimizer may make its step by those of others."""
        self._outer_storages: set[int] = set()
        """Memory of the parameters that the outermost running step holds."""
        self.unseen = ""
        self.is_over = False

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """For torch's global hooks of optimizers, ahead of what times the step."""
        if torch.compiler.is_compiling() or self.is_over:
            return
        try:
            self._note(optimizer)
        except Exception as error:
            self.unseen = f"noting gradients failed ({type(error).__name__})"
            GUARD.record("noting a gradient norm", error)
        self._depth += 1

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not (torch.compiler.is_compiling() or self.is_over):
            self._depth = max(0, self._depth - 1)

    def read(self, read_values: Callable[[list[Any]], list[float | None]]) -> list[tuple[int, float | None]]:
        """Row and norm, in order; None where a GradScaler skipped the step. Nothing is noted afterwards."""
        self.is_over = True
        rows = sorted(self._norms)
        values = read_values([self._norms[row][0] for row in rows])
        skipped = read_values([self._norms[row][1] for row in rows])
        return [(row, None if bad else value) for row, value, bad in zip(rows, values, skipped, strict=True)]

    def take(self, skipped_value: float) -> list[tuple[int, Any]]:
        """Row and norm (a device scalar) of what was noted since the last time; ``skipped_value`` where a GradScaler
        left the step out."""
        taken, self._norms = self._norms, {}
        return [
            (row, norm if bad is None else torch.where(bad > 0, norm.new_tensor(skipped_value), norm))
            for row, (norm, bad) in sorted(taken.items())
        ]

    def _note(self, optimizer: Any) -> None:
        row = self._row_number()
        if self.unseen or not is_noted(row) or (row not in self._norms and len(self._norms) >= MOST_NORMS):
            return
        if row != self._row:
            self._row = row
            self._noted.clear()
        if not self._depth:
            self._outer_storages.clear()
        gradients = self._new_gradients(optimizer)
        if not gradients or self.unseen or _is_capturing(gradients[0]):
            return
        norm = _total_norm(gradients)
        scale, bad = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if isinstance(scale, torch.Tensor):  # a fused step divides by the scaler's factor itself
            norm = norm / scale.detach().reshape(()).to(norm.dtype)
        skipped = bad.detach().reshape(()).clone() if isinstance(bad, torch.Tensor) else None
        before = self._norms.get(row)
        if before is not None:
            norm, skipped = torch.hypot(before[0], norm), before[1] if skipped is None else skipped
        self._norms[row] = (norm, skipped)

    def _new_gradients(self, optimizer: Any) -> list[Any]:
        """Gradients of the parameters that were not noted in this row: an optimizer may hand parts to others."""
        found: list[Any] = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None or id(parameter) in self._noted:
                    continue
                self._noted.add(id(parameter))
                if hasattr(gradient, "to_local"):
                    self.unseen = "the gradients are sharded over several ranks"
                elif self._is_part_of_outer(parameter):
                    continue
                elif gradient.layout is not torch.strided:
                    self.unseen = "some gradients are sparse"
                elif gradient.numel():
                    found.append(gradient.detach())
        before = self._norms.get(self._row)
        devices = {gradient.device for gradient in found} | ({before[0].device} if before is not None else set())
        if len(devices) > 1:
            self.unseen = "the gradients are on several devices"
        return found

    def _is_part_of_outer(self, parameter: Any) -> bool:
        """Whether a step inside another step gets a part of that step's parameters (a sharded optimizer's views)."""
        storage = parameter.untyped_storage().data_ptr()
        if self._depth:
            return storage in self._outer_storages
        self._outer_storages.add(storage)
        return False


def is_noted(row: int) -> bool:
    """Whether the norm of this row is noted.

    >>> [row for row in range(50) if is_noted(row)]
    [0, 1, 2, 3, 4, 5, 6, 7, 16, 32, 48]
    """
    return row < EACH_UNTIL or row % THEN_EVERY == 0


def _total_norm(gradients: Sequence[Any]) -> Any:
    with torch.no_grad():
        by_format: dict[Any, list[Any]] = {}
        for gradient in gradients:
            by_format.setdefault(gradient.dtype, []).append(gradient)
        parts = []
        for dtype, held in by_format.items():
            if dtype in _SINGLE:
                parts += [torch.stack(torch._foreach_norm(held))]
            else:  # float16 ends at 65504: the sum of squares is taken in float32
                wide = None if dtype.is_complex else torch.float32
                parts += [torch.stack([torch.linalg.vector_norm(one, dtype=wide) for one in held])]
        wide = torch.float64 if gradients[0].device.type == "cpu" else torch.float32
        return torch.linalg.vector_norm(torch.cat([part.to(wide) for part in parts]))


def _is_capturing(gradient: Any) -> bool:
    """A CUDA graph that is being captured would repeat the norm for ever, into one place."""
    return gradient.device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())
