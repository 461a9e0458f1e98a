"""The reports of three real traces, compared with what was reviewed: the text, and the JSON without what changes.

The traces lie beside the repository, in ../shared/traces. After a change that is meant, write the reports anew with

    HOTLOOP_UPDATE_GOLDEN=1 pytest tests/golden/test_real_traces.py

and review the difference like code. In the JSON, long lists are cut (their lengths stay) and fractions have nine
digits: the last ones may differ between releases of numpy.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from real_traces import TRACES

from hotloop.cli import main

HERE = Path(__file__).parent
NAMES = ("resnet50_workers_0", "dlrm_8ranks_v100", "mi300x_resnet_rccl")
SHOWN_ITEMS = 6
MANY_RANKS = 2
"""Every rank's timeline is long; these many are kept, and of the others what the report's own tables say."""

pytestmark = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the real traces lie beside the repository, in ../shared/traces"
)


def settle(value: Any) -> Any:
    """The value as it is on every machine, without the tails of its lists."""
    if isinstance(value, dict):
        return {key: settle(part) for key, part in value.items()}
    if isinstance(value, list):
        cut = [f"{len(value)} in all"] if len(value) > SHOWN_ITEMS else []
        return [settle(part) for part in value[:SHOWN_ITEMS]] + cut
    return float(f"{value:.9g}") if isinstance(value, float) else value


def settle_report(report: dict[str, Any]) -> str:
    del report["tool"], report["command"]
    ranks = report["trace"]["ranks"]
    report["trace"]["ranks"] = [*ranks[:MANY_RANKS], *(rank["facts"]["source"] for rank in ranks[MANY_RANKS:])]
    return json.dumps(settle(report), indent=1) + "\n"


def compare(name: str, text: str) -> None:
    path = HERE / name
    if os.environ.get("HOTLOOP_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_report_is_the_reviewed_one(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    arguments = ["trace", str(TRACES / name), "--workers", "1", "--exit-zero", "--json", str(target)]
    assert main(arguments) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("hotloop ")]
    compare(f"{name}.txt", "\n".join(lines) + "\n")
    compare(f"{name}.json", settle_report(json.loads(target.read_text())))
