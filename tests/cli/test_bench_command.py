"""hotloop bench, from the user's file to tables and JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.bench.loading import wait_share
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
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"train: {factory}:make"
    assert any(line.split() == ["part", "min", "median", "of", "step", "n"] for line in lines)
    found = json.loads(out.read_text())
    parts, memory = found["tables"]
    assert [row["part"] for row in parts][-2:] == ["compute", "whole step"]
    assert memory[0] == {"memory": "parameters", "size_bytes": 40}
    assert found["facts"]["optimizer"] == "SGD"
    assert page.read_text().count("<svg") == 2


def test_loader(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = measure(capsys, "loader", f"{factory}:make", "--workers", "0,1")
    (rows,) = found["tables"]
    assert [(row["workers"], row["prefetch"], row["present"]) for row in rows] == [(0, 0, True), (1, 2, False)]
    assert all(row["batches_per_s"] > 0 and row["n"] >= 2 for row in rows)


def test_the_share_of_a_step_that_waits() -> None:
    assert wait_share(30.0, 10.0, workers=0) == 0.75  # nothing overlaps in the main process
    assert wait_share(30.0, 10.0, workers=2) == pytest.approx(2 / 3)
    assert wait_share(5.0, 10.0, workers=2) == 0.0
    assert wait_share(None, 10.0, workers=2) is None


def test_gemm(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure(capsys, "gemm", "--sizes", "8x16x32", "--dtypes", "float32,bfloat16")
    rows, totals = found["tables"]
    assert [row["dtype"] for row in rows] == [row["dtype"] for row in totals] == ["float32", "bfloat16"]
    assert rows[0]["speedup"] == 1.0
    assert rows[0]["gflops_per_s"] == pytest.approx(2 * 8 * 16 * 32 / rows[0]["median_ns"], rel=0.01)


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
    assert captured.out == ""


@pytest.mark.parametrize(
    "words",
    [
        ["train", "nothing.py:make"],
        ["train", "no-colon"],
        ["gemm"],
        ["gemm", "--sizes", "1x1x1", "--dtypes", "int8"],
        ["gemm", "--sizes", "1x1x1", "--budget", "0"],
        ["gemm", "--sizes", "1x1x1", "--python", "/nonexistent/python"],
        ["scaling"],
        ["scaling", "--ranks", "x", "--", sys.executable, "a.py"],
        ["scaling", "--ranks", "3", "--", sys.executable, "a.py", "{64/ranks}"],
        ["scaling", "--", "/bin/echo", "a.py"],
        ["scaling", "--json", "-", "--", sys.executable, "a.py"],
    ],
)
def test_usage_errors_start_nothing(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("hotloop: ")
    assert len(error.splitlines()) == 1
