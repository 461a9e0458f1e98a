"""A GradScaler -> the same one, with a look at each loss that it is about to scale until enough was seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def watch_scale(scaler: Any, look: Callable[[], bool]) -> Callable[[], None]:
    """Call ``look()`` before every ``scaler.scale`` until it answers True; answers what ends it before."""
    watched = _Scale(scaler, look)
    object.__setattr__(scaler, "scale", watched)
    return watched.end


class _Scale:
    """``scale`` of one scaler; a copy or a pickle of the scaler has the plain method."""

    def __init__(self, scaler: Any, look: Callable[[], bool]) -> None:
        self.scaler = scaler
        self._look = look

    def __call__(self, outputs: Any) -> Any:
        if self._look():
            self.end()
        return type(self.scaler).scale(self.scaler, outputs)

    def end(self) -> None:
        if vars(self.scaler).get("scale") is self:
            object.__delattr__(self.scaler, "scale")

    def __reduce__(self) -> Any:
        return (getattr, (self.scaler, "scale"))
