"""Each row of the tables of YAML and JSON finds its fault at its severity, and nothing where the text is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cases import batch, manifests, near, needs, settings
from .cases.rows import ROWS
from .cases.texts import change
from .test_rules import lint_text

ALL = [*ROWS, *batch.ROWS, *manifests.ROWS, *settings.ROWS]
PAIRS = [*near.PAIRS, *needs.PAIRS]


@pytest.mark.parametrize(
    ("kind", "rule", "severity", "sound", "old", "new"), ALL, ids=[f"{row[1]}-{at}" for at, row in enumerate(ALL)]
)
def test_a_row_finds_its_fault(
    kind: str, rule: str, severity: str, sound: str, old: str, new: str, tmp_path: Path
) -> None:
    def judge(text: str) -> set[tuple[str, str]]:
        return {(finding.rule, finding.severity.value) for finding in lint_text(text, kind, tmp_path)}

    assert (rule, severity) in judge(change(sound, old, new))
    assert (rule, severity) not in judge(sound)


@pytest.mark.parametrize(
    ("kind", "rule", "faulty", "sound"), PAIRS, ids=[f"{row[1]}-{at}" for at, row in enumerate(PAIRS)]
)
def test_what_is_near_a_fault_is_not_serious(kind: str, rule: str, faulty: str, sound: str, tmp_path: Path) -> None:
    serious = [
        {one.rule for one in lint_text(text, kind, tmp_path) if one.severity.value in ("high", "medium")}
        for text in (faulty, sound)
    ]
    assert rule in serious[0]
    assert rule not in serious[1]
