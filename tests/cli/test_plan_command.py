"""hotloop plan: what is printed and written, and the errors."""

import json
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.core.decode import decode_contract
from hotloop.core.planning import PlanReport
from hotloop.show.report import read_report_json, render

FILE = """
[model]
layers = 32
hidden = 4096
heads = 32
vocab = 50432
seq = 2048
[run]
micro_batch = {micro}
global_batch = 1024
precision = "bf16"
recompute = "none"
sharding = "fsdp"
[hardware]
gpu = "h100-80g-sxm"
count = 64
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a plan that fits and one that does not."""
    (tmp_path / "fits.toml").write_text(FILE.format(micro=2))
    (tmp_path / "large.toml").write_text(FILE.format(micro=16))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_that_fits(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "fits.toml"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("fits: ")
    assert "WHAT WOULD SAVE MEMORY" not in shown


def test_a_plan_that_does_not_fit_names_remedies(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "large.toml"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("does not fit: ")
    assert "recompute = " in shown
    assert "micro_batch = " in shown
    assert main(["plan", "--why-oom", "fits.toml", "--format", "markdown"]) == 0
    assert "| accumulation |" in capsys.readouterr().out


def test_the_json_contract(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "large.toml", "--json", "-", "--html", "plan.html"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == "hotloop.plan/1"
    memory = content["memory"]
    assert memory["peak_bytes"] == memory["states_bytes"] + memory["activations_bytes"] + memory["other_bytes"]
    assert content["basis"]["memory.states"] == "formula"
    again = read_report_json(content)
    assert again == decode_contract(PlanReport, content)
    assert render("json", again).strip() == json.dumps(content, indent=1, ensure_ascii=False)
    assert "does not fit" in (place / "plan.html").read_text(encoding="utf-8")
