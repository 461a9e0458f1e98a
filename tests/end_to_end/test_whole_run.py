"""What lies outside the steady steps is told, and judged where it is worth a fix: seen in real trainings."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from .training import Ran, run_script

COLD_CACHE = """
import time
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __init__(self):
        self.decoded = {}
    def __len__(self):
        return 24 * 4
    def __getitem__(self, i):
        if i not in self.decoded:
            time.sleep(0.02)
            self.decoded[i] = torch.randn(32)
        return self.decoded[i], i % 8

optimizer = torch.optim.SGD(model.parameters())
loader = DataLoader(Pictures(), batch_size=4)
for epoch in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        loss_of(model(a), b).backward()
        optimizer.step()
        time.sleep(0.005)
"""

COLD_EPOCH_OF_UNEVEN_STEPS = """
import random, time
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __init__(self):
        self.decoded = {}
    def __len__(self):
        return 30 * 4
    def __getitem__(self, i):
        if i not in self.decoded:
            time.sleep(0.015)
            self.decoded[i] = torch.randn(32)
        return self.decoded[i], i % 8

random.seed(0)
optimizer = torch.optim.SGD(model.parameters())
loader = DataLoader(Pictures(), batch_size=4)
for epoch in range(5):
    for a, b in loader:
        optimizer.zero_grad()
        loss_of(model(a), b).backward()
        optimizer.step()
        time.sleep(random.uniform(0.0, 0.1))
"""

EIGHT_SHAPES = """
compiled = torch.compile(model, backend="aot_eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters())
for step in range(80):
    n = 8 * (1 + step % 8)
    optimizer.zero_grad()
    compiled(torch.randn(n, 32)).sum().backward()
    optimizer.step()
"""

PAST_THE_LIMIT = """
import time
torch._dynamo.config.recompile_limit = 3
compiled = torch.compile(model, backend="eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters())
for step in range(60):
    time.sleep(0.005)  # hooks that cost less than 1 % of a step never rest, so that the step is exact
    optimizer.zero_grad()
    compiled(torch.randn(8 + step // 10, 32)).sum().backward()
    optimizer.step()
"""

SLOW_TAIL = """
import time
optimizer = torch.optim.SGD(model.parameters())
for step in range(30):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
time.sleep(1.5)
"""

ENDS_IN_VALIDATION = """
import os, signal, time
from torch.utils.data import DataLoader, TensorDataset
optimizer = torch.optim.SGD(model.parameters())
held_out = TensorDataset(torch.randn(40_000, 32), torch.randint(0, 8, (40_000,)))
for step in range(30):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
model.eval()
until = time.monotonic() + {seconds}
with torch.no_grad():
    while time.monotonic() < until:
        for a, b in DataLoader(held_out, batch_size=512):
            loss_of(model(a), b).item()
{end}
"""

WAITS_AND_ENDS_IN_VALIDATION = """
import time
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 60 * 4

class Train(Data):
    def __getitem__(self, i):
        until = time.monotonic() + 0.01
        while time.monotonic() < until:
            pass
        return torch.randn(32), i % 8

class HeldOut(Data):
    def __getitem__(self, i):
        until = time.monotonic() + 0.03
        while time.monotonic() < until:
            pass
        return torch.randn(32), i % 8

optimizer = torch.optim.SGD(model.parameters())
for a, b in DataLoader(Train(), batch_size=4):
    optimizer.zero_grad()
    loss_of(model(a), b).backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    for a, b in DataLoader(HeldOut(), batch_size=4):
        loss_of(model(a), b).item()
"""


WAITS_BETWEEN_VALIDATIONS = """
import time
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.randn(32), i % 8

class HeldOut(Data):
    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.randn(32), i % 8

optimizer = torch.optim.SGD(model.parameters())
held_out = DataLoader(HeldOut(), batch_size=4)
for epoch in range(8):
    for a, b in DataLoader(Data(), batch_size=4):
        optimizer.zero_grad()
        loss_of(model(a), b).backward()
        optimizer.step()
        time.sleep(0.004)
    with torch.no_grad():
        for number, (a, b) in enumerate(held_out):
            loss_of(model(a), b).item()
            if number == 7:
                break
"""


def found(ran: Ran, rule: str) -> dict[str, Any]:
    """The rule's finding about the run; the steady steps may have one of their own."""
    (finding,) = [f for f in ran.seen["findings"] if f["rule"] == rule and f["base"] == "run"]
    return dict(finding)


def test_a_cache_that_fills_in_the_first_epoch_is_a_finding_about_the_run(tmp_path: Path) -> None:
    ran = run_script(tmp_path, COLD_CACHE)
    excluded = ran.seen["step"]["excluded"]
    assert excluded["ratio"] > 0.5
    assert excluded["count"] == 48 - ran.seen["step"]["steady_count"] >= 20
    assert excluded["warmup_ns"] + excluded["later_ns"] + excluded["tail_ns"] == excluded["total_ns"]
    finding = found(ran, "input-bound")
    assert (finding["base"], finding["severity"], finding["saving"]) == ("run", "medium", None)
    assert finding["evidence"]["cause"] == "cold-cache"
    # 24 batches of four samples of 20 ms, less the first batch.
    assert 23 * 0.08e9 * 0.9 < finding["cost_ns"] < excluded["total_ns"]
    # Beside other programs a few steps more are slow, and the epoch's end is not where they end.
    assert re.search(r"first (epoch|\d+ steps)", finding["title"])
    assert "most of it input wait" in " ".join(ran.stderr.split())
    assert any("of the run" in line["message"] for line in ran.seen["health"])


def test_a_cold_first_epoch_is_told_once_where_its_steps_count_as_steady(tmp_path: Path) -> None:
    """The steps are too uneven for the slow ones to stand out: the warm-up ends long before the epoch does."""
    ran = run_script(tmp_path, COLD_EPOCH_OF_UNEVEN_STEPS)
    assert ran.seen["step"]["steady_count"] > 5 * 30 - 30  # some of the first epoch's are among them
    (finding,) = [f for f in ran.seen["findings"] if f["rule"] == "input-bound"]
    assert (finding["base"], finding["evidence"]["cause"]) == ("run", "cold-cache")
    # 30 batches of four samples of 15 ms, less the first batch; on busy cores they take longer.
    assert 0.8 * 29 * 0.06e9 < finding["cost_ns"] < 3 * 29 * 0.06e9
    assert re.search(r"the first \d+ steps", finding["title"])


def test_compiling_for_eight_shapes_before_the_steps_are_steady_is_a_finding(tmp_path: Path) -> None:
    ran = run_script(tmp_path, EIGHT_SHAPES)
    finding = found(ran, "recompilation")
    assert finding["base"] == "run"
    assert finding["evidence"]["recompiles"] == 7
    assert finding["cost_ns"] <= ran.seen["step"]["excluded"]["compile_ns"]
    assert finding["fix"]["technique"] == "dynamic-shapes"


def test_the_limit_of_recompilations_is_told_with_the_step_from_which_shapes_run_eagerly(tmp_path: Path) -> None:
    ran = run_script(tmp_path, PAST_THE_LIMIT)
    finding = found(ran, "recompilation")
    assert "run eagerly from step 30 of 60 on" in finding["title"]
    assert finding["evidence"]["eager_steps"] == 30
    assert "size mismatch" in finding["evidence"]["failed_guard"]


def test_most_of_the_run_behind_the_last_step_is_no_clean_bill_of_health(tmp_path: Path) -> None:
    ran = run_script(tmp_path, SLOW_TAIL)
    assert ran.seen["step"]["excluded"]["tail_ns"] > 1.4e9


def test_a_validation_that_ends_the_run_is_named(tmp_path: Path) -> None:
    ran = run_script(tmp_path, ENDS_IN_VALIDATION.format(seconds=1.5, end=""))
    assert ran.seen["step"]["excluded"]["tail_phase"] == "validation"
    assert "after the last step (validation " in " ".join(ran.stderr.split())


@pytest.mark.skipif(sys.version_info < (3, 11) or sys.platform != "linux", reason="stacks are read from outside there")
def test_a_validation_in_which_a_signal_ends_the_run_is_named(tmp_path: Path) -> None:
    """The process writes no last row: what it did is known from its samples."""
    ran = run_script(tmp_path, ENDS_IN_VALIDATION.format(seconds=5, end="os.kill(os.getpid(), signal.SIGTERM)"))
    assert ran.seen["outcome"]["signal"] == "SIGTERM"
    assert 4.5e9 < ran.seen["step"]["tail_ns"] == ran.seen["step"]["excluded"]["tail_ns"]
    assert "after the last step (validation " in " ".join(ran.stderr.split())


def test_a_wait_of_training_is_not_blamed_on_the_validation_that_follows(tmp_path: Path) -> None:
    ran = run_script(tmp_path, WAITS_AND_ENDS_IN_VALIDATION)
    (finding,) = [f for f in ran.seen["findings"] if f["rule"] == "input-bound"]
    source = (tmp_path / "train.py").read_text().splitlines()
    held_out = source.index("class HeldOut(Data):") + 1
    assert finding["where"]
    assert not [one for one in finding["where"] if one["function"].endswith("__getitem__") and one["line"] > held_out]
    waits = [
        line for line in ran.seen["lines"] if line["phase"] == "input_wait" and line["function"].endswith("__getitem__")
    ]
    assert waits[0]["line"] < held_out  # the 2 s of samples around the last step are of both


def test_a_wait_of_training_is_not_blamed_on_validations_between_its_steps(tmp_path: Path) -> None:
    """The validations wait three times as long as the training does."""
    ran = run_script(tmp_path, WAITS_BETWEEN_VALIDATIONS)
    source = (tmp_path / "train.py").read_text().splitlines()
    held_out = source.index("class HeldOut(Data):") + 1

    def held_out_ratio(phase: str) -> float:
        """Of the samples of a phase in a ``__getitem__``, those of the validation's."""
        lines = [
            line for line in ran.seen["lines"] if line["phase"] == phase and line["function"].endswith("__getitem__")
        ]
        whole = sum(line["share_ratio"] for line in lines)
        return float(sum(line["share_ratio"] for line in lines if line["line"] > held_out) / whole)

    (finding,) = [f for f in ran.seen["findings"] if f["rule"] == "input-bound"]
    assert finding["where"]
    assert not [one for one in finding["where"] if one["function"].endswith("__getitem__") and one["line"] > held_out]
    # What the very first batch of a loader is for is not known while it is fetched.
    assert held_out_ratio("input_wait") < 0.2
    assert held_out_ratio("validation") == 1.0
