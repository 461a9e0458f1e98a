"""The table of what-if changes: everything that says which there are says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.core.errors import UsageError
from hotloop.core.what_if_changes import CHANGES
from hotloop.evidence.analyze.timeline.what_if import parse_change

DOCS = Path(__file__).resolve().parents[2] / "docs" / "trace.md"


@pytest.mark.parametrize("kind", CHANGES)
def test_docs_help_and_errors_name_every_change(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    form = CHANGES[kind].text
    assert f"`{form}`" in DOCS.read_text(encoding="utf-8")
    with pytest.raises(UsageError) as unknown:
        parse_change("magic")
    assert form in str(unknown.value)
    with pytest.raises(SystemExit) as ended:
        main(["trace", "--help"])
    assert ended.value.code == 0
    assert form in "".join(capsys.readouterr().out.split())
