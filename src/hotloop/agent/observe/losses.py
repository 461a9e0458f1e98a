"""Roots of backward -> the loss of each row, copied where it is, never read here.

The roots of every outermost backward of a row are summed (micro-batches); a GradScaler's factor is divided out.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .guard import GUARD


class LossWatch:
    """``take`` returns the loss of the row that ends. ``unseen`` says why losses are unknown, if they are."""

    def __init__(self) -> None:
        self._row_loss: Any = None
        self._scaler: Callable[[], Any] = _no_scaler
        self._scalers = 0
        self.unseen = ""
        self.micro_losses = 0
        """How many losses were noted in all rows."""
        self.is_over = False

    def take(self) -> Any:
        """A scalar tensor, which nothing else changes; None for a row without a backward."""
        loss, self._row_loss = self._row_loss, None
        return loss

    def wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The roots of every backward are losses; copied where they are."""

        @functools.wraps(original)
        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self.is_over:
                return original(t_outputs, *args, **kwargs)
            try:
                self._note(t_outputs)
            except Exception as error:
                GUARD.record("noting a loss", error)
            return original(t_outputs, *args, **kwargs)

        return _engine_run_backward

    def wrap_scaler_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A GradScaler multiplies the loss: its factor is divided out."""

        @functools.wraps(original)
        def __init__(scaler: Any, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            if scaler.is_enabled():
                self._scalers += 1
                self._scaler = weakref.ref(scaler)

        return __init__

    def _note(self, roots: Any) -> None:
        if torch._C._current_graph_task_id() != -1:  # a backward inside a backward (checkpointing)
            return
        for root in roots:
            if root.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                self.unseen = "the backward was captured into a CUDA graph"  # a copy of ours would be replayed with it
                return
            if root.numel() != 1 or not root.is_floating_point():
                self.unseen = f"a backward started at a tensor of shape {list(root.shape)}, which is not a loss"
                return
            loss = (
                root.detach().reshape(()).double() if root.device.type == "cpu" else root.detach().reshape(()).float()
            )
            if self._scalers:
                scale = getattr(self._scaler(), "_scale", None)
                if self._scalers > 1 or scale is None:
                    self.unseen = "the losses are scaled by a GradScaler and cannot be unscaled"
                else:
                    loss = loss / scale.to(loss.dtype)
            self._row_loss = loss.clone() if self._row_loss is None else self._row_loss + loss
            self.micro_losses += 1


def read_values(scalars: list[Any]) -> list[float | None]:
    """Device scalars as floats, in one transfer per device kind; None stays None. This waits for the device."""
    found: list[float | None] = [None] * len(scalars)
    places = [i for i, scalar in enumerate(scalars) if scalar is not None]
    if places:
        values = torch.stack(
            [scalars[i].double().cpu() if scalars[i].device.type == "cpu" else scalars[i] for i in places]
        )
        for i, value in zip(places, values.double().cpu().tolist(), strict=True):
            found[i] = value
    return found


def _no_scaler() -> None:
    """Until a GradScaler is built."""
