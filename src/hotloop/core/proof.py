"""Proof: is B faster than A? Two variants of one training, run in turn; the contract hotloop.prove/1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PROOF_SCHEMA = "hotloop.prove/1"
"""Version of the contract. Fields are added, never changed."""
ProofVerdict = Literal["faster", "slower", "same", "cannot tell", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofSide:
    """One of the two variants. ``change`` says how it differs if the command does not show it: a revision, a strategy,
    a Python. ``times_ns`` are the means of its processes in the order in which they ran, per ``Proof.unit``.
    """

    id: str
    command: tuple[str, ...]
    change: str = ""
    times_ns: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """``verdict`` is about B against A. ``ratio`` is B's time per ``unit`` over A's, between ``low`` and ``high`` at
    the level of the decision; None before there are enough ``pairs``.

    ``same``: the difference is smaller than ``at_least_ratio``. ``refused``: B fails, or its loss differs.
    ``guard_status`` is passed, rejected or unknown. ``words`` repeat the proof. ``machine`` is what it holds for.
    """

    tool_version: str
    verdict: ProofVerdict
    reason: str
    a: ProofSide
    b: ProofSide
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    unit: str = "step"
    steps_count: int | None = None
    at_least_ratio: float = 0.03
    spread_ratio: float | None = None
    guard_status: str = "unknown"
    guard_reason: str = ""
    took_s: float = 0.0
    machine: Mapping[str, Any] = field(default_factory=dict)
    limits: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
