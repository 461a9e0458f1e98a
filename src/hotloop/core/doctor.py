"""DoctorReport: how well a machine is set up; the contract hotloop.doctor/1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .findings import Value

DOCTOR_SCHEMA = "hotloop.doctor/1"
"""Version of the contract. Fields are added, never changed."""


Status = Literal["good", "warning", "harmful", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCheck:
    """The result of one check of a machine. ``measured`` includes units; ``values`` holds the same figures for
    programs."""

    id: str
    group: str
    title: str
    status: Status
    measured: str
    why: str = ""
    fix: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """``checks`` are sorted worst first."""

    tool_version: str
    python: str | None
    checks: tuple[MachineCheck, ...]
    next: str | None

    @property
    def counts(self) -> dict[str, int]:
        """How many checks have each status."""
        statuses = [check.status for check in self.checks]
        return {status: statuses.count(status) for status in ("harmful", "warning", "good", "unknown")}
