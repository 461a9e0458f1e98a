"""The examples of docs/integrations.md run as written, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

from .frameworks import ROOT, needs_frameworks, run, run_folders

pytestmark = needs_frameworks


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "integrations.md").read_text(), re.M | re.S)
    assert len(blocks) == 4
    done = run(tmp_path, "\n".join(blocks) + "\nprint(len(accelerator.trackers), handler.report.step.count)", head="")
    assert done.stdout.splitlines()[-1] == "1 4"
    assert sorted(path.name for path in (tmp_path / "reports").iterdir()) == ["lightning.html", "transformers.html"]
    assert len(list((tmp_path / "traces").glob("*.pt.trace.json"))) == 4  # 40 steps, 10 a cycle
    assert len(run_folders(tmp_path)) == 1
