"""hotloop plan --module, from the command line."""

import json
import sys
from pathlib import Path

import pytest

from hotloop.cli import main

SOURCE = """
from torch import nn

def build():
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SOURCE, encoding="utf-8")


def test_a_module_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--module", "train.py:build", "--batch", "float32[32,64]", "--precision", "bf16"]
    assert main([*words, "--python", sys.executable, "--json", "plan.json"]) == 0
    found = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    assert (found["schema"], found["fits"], found["gpu"]) == ("hotloop.plan/1", True, "h100-80g-sxm")
    assert found["params"] == 4 * (64 * 64 + 64)
    assert found["memory"]["params_bytes"] == 4 * (64 * 64 * 4 + 512)  # the allocator gives blocks of 512 bytes
    assert found["tokens_per_step"] is None
    text = capsys.readouterr().out
    assert "not yet compared with a GPU" in text


def test_a_trace_that_ended_is_no_benchmark(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "bare-python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    words = ["plan", "--module", "train.py:build", "--batch", "float32[2,64]", "--python", str(python)]
    assert main(words) == 2
    *_, why, what = capfd.readouterr().err.splitlines()
    assert "has no torch; activate its environment" in why
    assert what.startswith("hotloop: the trace of the module ended with exit code 1")
