"""AppliedTechnique: the outcome of a strategy's technique, as a training records it and its report shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .findings import Value, Where

APPLIED, NOT_APPLICABLE, FAILED = "applied", "not applicable", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedTechnique:
    """What one technique did to one object. ``status`` is APPLIED, NOT_APPLICABLE or FAILED.

    ``numerics`` is that of the change as it was made here (None if nothing was changed). ``ranks`` is empty in the
    training, where each process records its own, and if the processes have no rank.
    """

    technique: str
    settings: Mapping[str, Value]
    status: str
    detail: str
    target: str | None
    where: Where | None
    numerics: str | None
    explicit: str | None = None
    """The script's own setting that was overridden; if nothing was changed, the setting that prevented the change."""
    ranks: tuple[int, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)
    """What was set, by name; empty if nothing was, and in reports from before it was recorded."""

    @property
    def is_applied(self) -> bool:
        return self.status == APPLIED

    def as_fact(self) -> dict[str, Any]:
        """The fact that a process records; the reader adds the ranks."""
        where = None if self.where is None else [self.where.file, self.where.line, self.where.function]
        fact = {"kind": "applied", **asdict(self), "where": where}
        del fact["ranks"]
        return fact
