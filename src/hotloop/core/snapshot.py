"""AttachReport: what a training that runs does now, or where it is stuck; the contract hotloop.attach/1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .decode import decode_contract, encode_contract

ATTACH_SCHEMA = "hotloop.attach/1"
"""Version of the contract. Fields are added, never changed."""

Verdict = Literal["hung", "slow", "healthy", "starting", "saving", "compiling", "cannot tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where a rank, or a process that it waits for, was in most of the samples.

    ``wait`` is the kind of wait, "computing" or "gone"; ``wait_detail`` names its object: the collective, the file, the
    address. ``idle_s`` is the time since the thread ran last, in seconds. ``stack`` is innermost first.
    """

    rank: int | None
    host: str
    pid: int | None
    role: str = "rank"
    file: str | None = None
    line: int | None = None
    function: str | None = None
    snippet: str | None = None
    wait: str = "computing"
    wait_detail: str | None = None
    idle_s: float | None = None
    cpu_ratio: float | None = None
    steps_count: int | None = None
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPlace:
    """A share of the samples of the ranks that is spent in one place, ``phase`` as in a step."""

    phase: str
    share_ratio: float
    rank: int | None
    file: str | None
    line: int | None
    function: str | None
    wait: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachReport:
    """``since_s``: seconds for which nothing has moved; a lower bound where ``since_is_bound``. ``culprits`` are the
    ranks or processes that differ; none where no rank does."""

    tool_version: str
    verdict: Verdict
    reason: str
    since_s: float | None = None
    since_is_bound: bool = True
    culprits: tuple[Stand, ...] = ()
    ranks: tuple[Stand, ...] = ()
    waits_for: str | None = None
    phase: str | None = None
    findings: tuple[SlowPlace, ...] = ()
    advice: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    watched_s: float = 0.0
    samples_count: int = 0

    def to_json(self) -> dict[str, Any]:
        """The plain dict of schema hotloop.attach/1."""
        return encode_contract(ATTACH_SCHEMA, self)

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> AttachReport:
        """The report that ``to_json`` wrote; raises RecordingError where a value is of the wrong kind."""
        return decode_contract(AttachReport, content)
