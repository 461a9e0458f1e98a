"""The one place where the agent's own failures end: counted, reported once, never raised into the training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .places import LIBRARIES

F = TypeVar("F", bound=Callable[..., Any])

MOST_FAILURES = 20
_modes_count = torch._C._len_torch_function_stack


class Guard:
    """Failures of the agent. ``failures`` maps 'place: error' to its count; ``tell`` gets each new one."""  # words: ok

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self.tell: Callable[[str], None] = _tell_nobody
        self._seen: dict[tuple[str, type], str] = {}

    def record(self, place: str, error: Exception) -> None:
        """Note a failure. What a person's signal handler raised while our code ran is theirs, and raised again."""
        if _is_theirs(error):
            raise error
        kind = (place, type(error))
        key = self._seen.get(kind)
        if key is not None:
            self.failures[key] += 1
        elif len(self._seen) < MOST_FAILURES:
            key = self._seen[kind] = f"{place}: {type(error).__name__}: {error}"[:300]
            self.failures[key] = 1
            self.tell(key)


def _is_theirs(error: BaseException) -> bool:
    """Whether the innermost frame that an exception left is neither ours nor a library's: our hooks call no others."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    name = trace.tb_frame.f_code.co_filename
    return not name.startswith((*LIBRARIES, "<frozen", "<string>", "<hotloop"))


def _tell_nobody(failure: str) -> None:
    """Until the process can report it to somebody."""


GUARD = Guard()


def undispatched(function: F) -> F:
    """The function, in which what it asks of tensors reaches no ``TorchFunctionMode`` of the script's."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not _modes_count():
            return function(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]


def guarded(function: F) -> F:
    """The function, returning None instead of raising; what it raised is in GUARD."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:  # one frame, as ``undispatched``: places are found by counting them
            if not _modes_count():
                return function(*args, **kwargs)
            with torch._C.DisableTorchFunction():
                return function(*args, **kwargs)
        except Exception as error:
            GUARD.record(function.__qualname__, error)
            return None

    return run  # type: ignore[return-value]
