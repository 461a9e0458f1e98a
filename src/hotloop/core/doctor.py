"""DoctorReport: how well a machine is set up, and a checklist; the contract hotloop.doctor/1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .decode import decode_contract
from .findings import Value

DOCTOR_SCHEMA = "hotloop.doctor/1"
"""Version of the contract. Fields are added, never changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCheck:
    """One answered question about a machine. ``status`` is harmful, warning, good or unknown."""

    id: str
    group: str
    title: str
    status: str
    measured: str
    why: str
    fix: str
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistItem:
    """One answered line of the checklist. ``tick`` is ticked, unticked, unknown or not-applicable."""

    id: str
    stage: str
    title: str
    tick: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """``checks`` stand worst first; ``checklist`` is None where it was not asked for."""

    tool_version: str
    python: str | None
    checks: tuple[MachineCheck, ...]
    checklist: tuple[ChecklistItem, ...] | None
    run: str | None
    next: str | None

    @property
    def counts(self) -> dict[str, int]:
        """How many checks have each status."""
        statuses = [check.status for check in self.checks]
        return {status: statuses.count(status) for status in ("harmful", "warning", "good", "unknown")}

    def to_json(self) -> dict[str, Any]:
        """The plain dict of schema hotloop.doctor/1."""
        fields = asdict(self)
        version = fields.pop("tool_version")
        python = fields.pop("python")
        return {
            "schema": DOCTOR_SCHEMA,
            "tool": {"version": version},
            "python": python,
            "counts": self.counts,
            **fields,
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> DoctorReport:
        """The report that ``to_json`` wrote; raises RecordingError where a value is of the wrong kind."""
        return decode_contract(DoctorReport, content)
