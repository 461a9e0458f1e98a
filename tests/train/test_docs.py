"""The example of docs/trainer.md runs as it is written."""

import random
from pathlib import Path

import pytest
import torch

from hotloop import latest_checkpoint


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    kept, python = torch.get_rng_state(), random.getstate()
    try:
        exec(code, {})
        exec(code, {})
    finally:
        torch.set_rng_state(kept)
        random.setstate(python)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("24 (")
    assert second == "24 ()"
    assert latest_checkpoint("checkpoints") == Path("checkpoints/step-00000024")
