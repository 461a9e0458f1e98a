"""One training with targets: its FLOPs by hand, the probe's peak, the finding, and what check, diff and doctor say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRAINING = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(64, 256)).sum().backward()
    optimizer.step()
"""
HOTLOOP = str(Path(sys.executable).with_name("hotloop"))
FLOPS = 2 * 2 * 64 * 256 * 512 + 3 * 2 * 64 * 512 * 8
"""Two products of the first layer, whose input needs no gradient, and three of the second."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("use")
    (place / "train.py").write_text(TRAINING)
    targets = ["--target", "mfu=1", "--target", "cpu_utilization=1%", "--target", "utilization=0.8"]
    command = [HOTLOOP, "run", "--deep", "--name", "one", "-q", "--json", "report.json", *targets, "--", sys.executable]
    subprocess.run([*command, "train.py"], cwd=place, check=True, timeout=120)
    return place


def ask(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HOTLOOP, *words], cwd=folder, check=False, timeout=60, capture_output=True, text=True)


def test_mfu_is_the_hand_count_over_the_measured_peak(folder: Path) -> None:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    used, step = report["utilization"], report["step"]
    assert used["flops_per_step"] == used["hardware_flops_per_step"] == FLOPS
    peak = json.loads((folder / ".hotloop/one/probe.json").read_text())["result"]["peak"]["flops_per_s"]
    assert list(peak) == ["float32"]
    assert used["peak_flops_per_s"] == peak["float32"]
    expected = FLOPS / (step["mean_ns"] * 1e-9) / peak["float32"]
    assert step["mfu_ratio"] == used["mfu_ratio"] == pytest.approx(expected, rel=1e-6)
    assert 0 < used["cpu_utilization_ratio"] <= 1
    assert used["utilization_ratio"] is None
    assert used["unknown"]["utilization_ratio"].startswith("training ran on the CPU")


def test_a_missed_target_is_a_finding_and_an_unmeasured_one_is_told(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    (found,) = (one for one in report["findings"] if one["rule"] == "low-utilization")
    assert found["severity"] == "medium"
    assert found["title"].startswith("MFU is ")
    assert found["saving"] is None
    assert "computing below the peak rate" in found["evidence"]["causes_ratio"]
    reasons = [one["reason"] for one in report["skipped"] if one["rule"] == "low-utilization"]
    assert reasons[0].startswith("the target utilization=0.8: training ran on the CPU")


def test_check_fails_on_the_recorded_target_and_on_one_of_its_own(folder: Path) -> None:
    missed = ask(folder, "check", "one")
    assert missed.returncode == 1
    assert missed.stdout.startswith("regression: one (")
    assert "mfu_ratio" in missed.stdout
    judged = {
        one["id"]: one["verdict"] for one in json.loads(ask(folder, "check", "one", "--json", "-").stdout)["judged"]
    }
    assert judged["budget/mfu_ratio"] == "regression"
    assert judged["budget/cpu_utilization_ratio"] == "pass"
    assert judged["budget/utilization_ratio"] == "inconclusive", "nobody measured it"
    reached = ask(folder, "check", "one", "--target", "mfu=0.00001", "--target", "utilization=0.5")
    assert reached.returncode == 0, "the target given here stands in place of the recorded one"
    assert ask(folder, "check", "one", "--target", "mfu=2").returncode == 2


def test_report_and_diff_show_it_in_a_line(folder: Path) -> None:
    text = ask(folder, "report", "one", "--exit-zero").stdout
    assert "UTILIZATION  of the steady steps: MFU " in text
    assert "CPU utilization" in text.partition("SCORECARD")[2]
    assert ask(folder, "diff", "one", "one").stdout.count("CPU utilization") == 2
    html = folder / "page.html"
    assert ask(folder, "report", "one", "--exit-zero", "--html", str(html)).returncode == 0
    assert "Utilization" in html.read_text()
