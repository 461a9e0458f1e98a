"""The one place where the agent's own failures end: recorded, counted, never raised into the training."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

MAX_FAILURES_KEPT = 20


class Guard:
    """Failures of the agent by place. ``failures`` maps 'function: error' to how often it happened."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self.last_traceback = ""

    def record(self, place: str, error: BaseException) -> None:
        key = f"{place}: {type(error).__name__}: {error}"[:300]
        if key in self.failures or len(self.failures) < MAX_FAILURES_KEPT:
            self.failures[key] = self.failures.get(key, 0) + 1
        self.last_traceback = "".join(traceback.format_exception(error)[-3:])[-2000:]


GUARD = Guard()


def guarded(function: F) -> F:
    """The function, answering None instead of raising; what it raised is in GUARD."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            GUARD.record(function.__qualname__, error)
            return None

    return run  # type: ignore[return-value]
