"""One cause is one finding: what a validation logs and what a save flushes is told once, on real trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .training import Ran, run_script

HEAD = """
import json, os, shutil, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
loss_of = nn.CrossEntropyLoss()
"""


def findings_of(ran: Ran) -> dict[str, list[dict[str, Any]]]:
    assert ran.exit_code == 0, ran.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for one in ran.seen["findings"]:
        found.setdefault(one["rule"], []).append(one)
    # Whatever is told, no phase is told to hold more than it does.
    for name, phase in ran.seen["breakdown"].items():
        counted_ns = sum((one["time_ns"] or {}).get(name, 0) for group in found.values() for one in group)
        assert counted_ns <= 1.01 * phase["mean_ns"] + 10
    return found


def test_what_a_validation_logs_is_told_as_validation_alone(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8))
        x, y = torch.randn(64, 256), torch.randint(0, 8, (64,))
        held = [torch.randn(64, 256) for _ in range(12)]
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        out = open("val.log", "w")

        def evaluate():
            model.eval()
            with torch.no_grad():
                for index, part in enumerate(held):
                    log_scores(index, model(part))
            model.train()

        def log_scores(index, scores):
            for row in scores.tolist():
                out.write(json.dumps({"index": index, "row": row}) + "\\n")
                out.flush()

        for step in range(400):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
            if step % 8 == 7:
                evaluate()
        """,
        head=HEAD,
    )
    found = findings_of(ran)
    (validation,) = found["frequent-validation"]
    # What follows the last of a validation's 12 forwards lies outside of it: at most that part is told as logging.
    logged_ratio = sum(one["cost_ratio"] for one in found.get("logging-overhead", ()))
    assert logged_ratio <= validation["cost_ratio"] / 6
    others = sum((one["saving"] or {"mid_ratio": 0.0})["mid_ratio"] for group in found.values() for one in group)
    others -= (validation["saving"] or {"mid_ratio": 0.0})["mid_ratio"]
    assert ran.seen["combined_saving"]["mid_ratio"] <= validation["cost_ratio"] + others + 1e-9


def test_the_fsync_around_a_save_in_the_loop_is_the_checkpoint_s(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 8))
        x, y = torch.randn(8, 512), torch.randint(0, 8, (8,))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(250):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
            if step % 2:
                with open("last.tmp", "wb") as file:
                    torch.save(model.state_dict(), file)
                    file.flush()
                    os.fsync(file.fileno())
                    shutil.copyfile("last.tmp", "last.copy")  # where the disk takes a file at once
                os.replace("last.tmp", "last.pt")
        """,
        head=HEAD,
    )
    found = findings_of(ran)
    (saves,) = found["blocking-checkpoint"]
    assert "logging-overhead" not in found
    assert saves["time_ns"]["other"] > 0
    assert sum(saves["time_ns"].values()) <= 1.01 * saves["cost_ns"]


def test_two_kinds_of_repeated_computing_state_what_mending_both_wins(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.trunk = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(384, 384), nn.ReLU())])
                self.heads = nn.ModuleList([nn.Linear(384, 8) for _ in range(3)])
            def forward(self, x):
                h = self.trunk(x)
                return [head(h) for head in self.heads]
        model = Net()
        x, y = torch.randn(128, 384), torch.randint(0, 8, (128,))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(80):
            optimizer.zero_grad()
            losses = [loss_of(out, y) for out in model(x)]
            for index, loss in enumerate(losses):
                loss.backward(retain_graph=index < 2)
            with torch.no_grad():
                right = sum((out.argmax(1) == y).sum() for out in model(x))
            optimizer.step()
        """,
        head=HEAD,
    )
    found = findings_of(ran)["redundant-compute"]
    assert {one["phase"] for one in found} == {"forward", "backward"}
    parts = [one["saving"]["mid_ratio"] for one in found]
    assert [one["rule_saving"]["mid_ratio"] for one in found] == pytest.approx([sum(parts)] * 2)
    assert ran.seen["combined_saving"]["mid_ratio"] >= sum(parts) - 1e-9


def test_the_line_that_turns_anomaly_detection_on_is_named(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        def prepare():
            torch.autograd.set_detect_anomaly(True)
        prepare()
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        x, y = torch.randn(32, 64), torch.randint(0, 8, (32,))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(200):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
        """,
        head=HEAD,
    )
    (setting,) = findings_of(ran)["debug-settings"]
    assert [where["function"] for where in setting["where"]] == ["prepare"]
