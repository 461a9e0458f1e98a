"""hotloop bench, from the user's file to tables and JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import main

FACTORY = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def make():
    print("building")
    model = nn.Linear(4, 2)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
    return model, DataLoader(data, batch_size=4), torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.mse_loss

def broken():
    raise KeyError("no data")

def number():
    return 3
"""


@pytest.fixture
def factory(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(FACTORY)
    return str(tmp_path / "mine.py")


def measure(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["bench", *words, "--budget", "0.2", "--python", sys.executable, "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["schema"] == "hotloop.bench/1"
    return found


def test_train(factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    page = tmp_path / "out.html"
    words = ["train", f"{factory}:make", "--budget", "0.2", "--python", sys.executable, "--json", str(out)]
    words += ["--html", str(page)]
    assert main(["bench", *words]) == 0
    assert capsys.readouterr().out.startswith(f"train: {factory}:make\n")
    found = json.loads(out.read_text())
    parts, memory = found["tables"]
    assert [row["part"] for row in parts][-2:] == ["compute", "whole step"]
    assert memory[0] == {"memory": "parameters", "size_bytes": 40}
    assert found["facts"]["optimizer"] == "SGD"
    assert page.read_text().count("<tr>") == 2 + len(parts) + len(memory)


def test_loader(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = measure(capsys, "loader", f"{factory}:make", "--workers", "0,1")
    rows, (parts,) = found["tables"]
    assert [(row["workers"], row["prefetch"], row["present"]) for row in rows] == [(0, 0, True), (1, 2, False)]
    assert all(row["batches_per_s"] > 0 and row["n"] >= 2 for row in rows)
    assert min(parts["fetch_ns"], parts["collate_ns"]) > 0
    assert parts["fetch_cpu_ns"] <= parts["fetch_ns"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "{file}:broken"], "broken() raised KeyError"),
        (["loader", "{file}:number"], "returned an int; it must return a DataLoader"),
    ],
)
def test_what_the_users_file_does_wrong(
    factory: str, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["bench", *(word.format(file=factory) for word in words), "--python", sys.executable]) == 2
    captured = capsys.readouterr()
    assert said in captured.err


def test_an_interrupted_benchmark_is_one_line_and_leaves_no_process(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $$ >> {tmp_path / 'pids'}\nexec sleep 60\n", encoding="utf-8")
    python.chmod(0o755)
    command = [sys.executable, "-m", "hotloop", "bench", "comm", "--ranks", "2", "--python", str(python)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(30_000):
            if (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2:
                break
            time.sleep(0.001)  # soon: a child writes its number before Popen has returned in its parent
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "hotloop: interrupted\n")
    children = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(children) == 2
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
