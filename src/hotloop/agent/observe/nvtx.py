"""A recorder that marks phases and steps as NVTX ranges, for Nsight Systems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotloop.agent.replay.recorder import Recorder
from hotloop.core.recording import CLOSED_BY_END, STEP_FIELDS

_LABELS = {index: name.removesuffix("_ns") for index, name in enumerate(STEP_FIELDS)}


class NvtxRecorder(Recorder):
    """A recorder whose phases are NVTX ranges; steps are ranges that may overlap them."""

    def __init__(self, nvtx: Any, clock: Callable[[], int]) -> None:
        self._nvtx = nvtx
        self._step_range: Any = None
        super().__init__(clock)

    def reset(self) -> None:
        for _ in range(len(getattr(self, "stack", ())) - 1):
            self._nvtx.range_pop()
        super().reset()

    def enter(self, field: int) -> None:
        if self._step_range is None:
            self._step_range = self._nvtx.range_start(f"step {self.rows + 1}")
        self._nvtx.range_push(_LABELS[field])
        super().enter(field)

    def leave(self) -> None:
        was_open = len(self.stack) > 1
        super().leave()
        if was_open:
            self._nvtx.range_pop()

    def close_tail(self) -> None:
        for _ in range(len(self.stack) - 1):
            self._nvtx.range_pop()
        super().close_tail()

    def close(self, closed_by: int, optimizer_index: int) -> None:
        super().close(closed_by, optimizer_index)
        if self._step_range is not None:
            self._nvtx.range_end(self._step_range)
            self._step_range = None
        if closed_by != CLOSED_BY_END:
            self._step_range = self._nvtx.range_start(f"step {self.rows + 1}")
