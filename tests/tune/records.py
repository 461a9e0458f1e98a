"""What a technique says that it did in a process of a trial."""

from __future__ import annotations

from hotloop.core.applied import AppliedTechnique
from hotloop.core.findings import Where


def applied(
    technique: str,
    status: str = "applied",
    detail: str = "",
    numerics: str = "exact",
    *,
    explicit: str | None = None,
    where: Where | None = None,
) -> AppliedTechnique:
    return AppliedTechnique(
        technique=technique,
        settings={},
        status=status,
        detail=detail,
        target=None,
        where=where,
        numerics=numerics,
        explicit=explicit,
    )
