"""A number that is on a device -> its value some steps later, copied without ever waiting for the device."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from hotloop.core.errors import UsageError

MOST_WAITING = 256


class ScalarReader:
    """Numbers at once; tensors on an accelerator by an asynchronous copy into pinned memory and an event."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Any, Any]] = deque()

    def read(self, name: str, value: Any) -> tuple[bool, float | None]:
        """(whether the value is there, the value); (True, None) when it can never be read."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            if value.numel() != 1:
                raise UsageError(f"metric {name!r} is a tensor of shape {tuple(value.shape)}; give one number")
            value = value.detach()
            if value.device.type != "cpu":
                return self._read_later(name, value, torch)
        try:
            return True, float(value)
        except (TypeError, ValueError):
            raise UsageError(f"metric {name!r} is {value!r:.60}; give a number or a tensor with one element") from None

    def _read_later(self, name: str, value: Any, torch: Any) -> tuple[bool, float | None]:
        if value.device.type != "cuda" or len(self._waiting) >= MOST_WAITING:
            return True, None
        if torch.cuda.is_current_stream_capturing():
            return True, None
        with torch.no_grad(), torch.cuda.device(value.device):
            copy = torch.empty((), dtype=torch.float64, pin_memory=True)
            # Converted on the device first: a copy that also converts would go through a synchronous path.
            copy.copy_(value.reshape(()).double(), non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._waiting.append((name, copy, event))
        return False, None

    def arrived(self) -> list[tuple[str, float]]:
        """(name, value) of the copies that have completed since the last call, oldest first."""
        found: list[tuple[str, float]] = []
        waiting = self._waiting
        if not waiting or sys.modules["torch"].cuda.is_current_stream_capturing():
            return found
        try:
            while waiting and waiting[0][2].query():
                name, copy, _ = waiting.popleft()
                found.append((name, copy.item()))
        except RuntimeError:
            waiting.clear()  # the device failed; the training meets the error at its own next call
        return found
