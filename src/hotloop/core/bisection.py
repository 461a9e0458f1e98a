"""Bisection: which of the changes between a fast and a slow run makes it slow? The contract hotloop.bisect/1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .environment import EnvironmentChange

BISECT_SCHEMA = "hotloop.bisect/1"
"""Version of the contract. Fields are added, never changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectStep:
    """One proof: the run with these ``changes`` against the run without them. ``is_slow`` is None if it is unknown.

    ``ratio`` (between ``low`` and ``high``) is the time with the changes over the time without them.
    """

    changes: tuple[str, ...]
    is_slow: bool | None
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UntriedChange:
    """A change that bisect cannot make, and why."""

    change: EnvironmentChange
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """``culprit``: the smallest set of changes that was found to be slow alone; mostly one. ``suspects``: the changes
    among which the culprit is, if it was not found.

    ``ratio`` (between ``low`` and ``high``) is the time with the culprit over the time without it, ``whole_ratio`` that
    with all changes, ``rest_ratio`` that with all but the culprit (None for revisions).
    """

    tool_version: str
    verdict: Literal["found", "cannot tell"]
    reason: str
    command: tuple[str, ...]
    culprit: tuple[EnvironmentChange, ...] = ()
    suspects: tuple[EnvironmentChange, ...] = ()
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    whole_ratio: float | None = None
    rest_ratio: float | None = None
    changes_count: int = 0
    steps: tuple[BisectStep, ...] = ()
    untried: tuple[UntriedChange, ...] = ()
    took_s: float = 0.0
