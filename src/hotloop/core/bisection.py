"""Bisection: which of the changes between a fast and a slow run makes it slow? The contract hotloop.bisect/1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .environment import EnvironmentChange
from .proof import Proof

BISECT_SCHEMA = "hotloop.bisect/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectStep:
    """A run without some changes (A) against the run with them (B). ``is_slow`` is None if that is unknown, and
    ``proof`` if the budget ran out before the step.
    """

    changes: tuple[str, ...]
    is_slow: bool | None
    proof: Proof | None


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
