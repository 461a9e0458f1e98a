"""Target: a place that numbers can be exported to, in one file under targets/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from .points import Snapshot


class SendFailed(Exception):
    """A snapshot did not arrive. The text goes into the report: it names no URL, header, token or answer."""

    def __init__(self, message: str, *, may_retry: bool) -> None:
        super().__init__(message)
        self.may_retry = may_retry


class Sender(Protocol):
    """An opened target. Its methods are called from one thread of its own and may take seconds."""

    def send(self, snapshot: Snapshot) -> None:
        """Raises SendFailed when the snapshot did not arrive."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``open`` takes what stands behind ``TARGET=`` and the environment, and raises UsageError where that makes no
    sense; nothing has been started by then. ``is_asked`` says from the environment that the target is wanted although
    nobody named it."""

    id: str
    summary: str
    where: str
    """What stands behind ``TARGET=``, for the help."""
    open: Callable[[str, Mapping[str, str]], Sender]
    is_asked: Callable[[Mapping[str, str]], bool] = lambda _: False
    read_interval_s: Callable[[Mapping[str, str]], float | None] = lambda _: None
    """How often the environment wants a snapshot to be sent there, in seconds; None where it does not say."""
