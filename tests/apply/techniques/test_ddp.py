"""Two gloo ranks: fewer exchanges train the same, and the scan goes only where it is proven needless."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.change.apply import TECHNIQUES
from hotloop.change.apply.applier import Applier, make_context
from hotloop.change.apply.compression import METHODS
from hotloop.core.strategy import Choice, Strategy
from tests.apply.ranks import TORCHRUN, run_ranks

HOTLOOP = (sys.executable, "-m", "hotloop")
TOLERANCE = 1e-6
"""Of the largest parameter, after up to 24 steps in float32: sums in another order."""

ROUNDED = {"bf16": 2**-7, "fp16": 2**-10, "int8": 2**-6}
"""The same, where each exchange rounds gradients to 8, 11 or about 7 bits."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_ranks(Path(__file__).with_name("ddp_ranks.py"), tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(
    ("scenario", "least_local"),
    [
        ("even", 45),
        ("uneven", 40),  # every third window is shorter than what was learned
        ("uneven_clipped", 40),
        ("carried", 30),
        ("dropped", 30),
        ("buffers", 40),
        ("view", 40),
        ("static", 40),
        ("small_buckets", 20),
    ],
)
def test_skipped_exchanges_change_the_order_of_sums_only(
    found: dict[str, Any], scenario: str, least_local: int
) -> None:
    one = found[scenario]
    assert [applied for _, applied in one["said"]] == [True]
    assert one["local"] >= least_local
    assert 0 < one["difference"] < TOLERANCE
    if scenario != "buffers":  # with BatchNorm each rank ends with its own running mean, as without hotloop
        assert one["ranks_agree"]


@pytest.mark.parametrize("method", METHODS)
def test_compressed_sums_keep_the_replicas_equal(found: dict[str, Any], method: str) -> None:
    one = found[f"sent_by_{method}"]
    assert [applied for _, applied in one["said"]] == [True]
    assert one["local"] >= 40
    assert one["ranks_agree"]
    if method in ROUNDED:  # the others send other elements of a sum than of its parts
        assert 0 < one["difference"] < ROUNDED[method]


@pytest.mark.parametrize(
    ("scenario", "why"),
    [
        ("clipped_each", "between the micro-batches"),
        ("single", "each step has only one backward"),
        ("varying", "the number of backwards per step varies"),
        ("closure", "a closure"),
    ],
)
def test_what_cannot_be_proven_stays(found: dict[str, Any], scenario: str, why: str) -> None:
    one = found[scenario]
    ((text, applied),) = one["said"]
    assert not applied
    assert why in text
    assert one["local"] == 0
    assert one["difference"] == 0


def test_the_comparison_sees_a_step_on_local_gradients(found: dict[str, Any]) -> None:
    assert found["sabotaged"]["difference"] > 100 * TOLERANCE
    assert not found["sabotaged"]["ranks_agree"]


@pytest.mark.parametrize("scenario", ["scan", "scan_view", "scan_assumed"])
def test_the_scan_goes_where_all_parameters_are_used(found: dict[str, Any], scenario: str) -> None:
    one = found[scenario]
    assert one["scans"] is False
    assert one["equal"]
    assert one["ranks_agree"]
    assert "exact" in one["told"][0]


@pytest.mark.parametrize(
    ("scenario", "why"), [("scan_branch", "(IfExp)"), ("scan_unused", "got no gradient in the first 8 backwards")]
)
def test_the_scan_stays_where_a_parameter_may_be_unused(found: dict[str, Any], scenario: str, why: str) -> None:
    one = found[scenario]
    assert one["scans"] is True
    assert one["equal"]
    assert why in one["told"][0]


@pytest.mark.parametrize(
    ("chosen", "override", "status", "becomes"),
    [
        ({"bucket_cap_mb": 1}, False, "not applicable", 1),
        ({"bucket_cap_mb": 1}, True, "applied", 50.0),
        ({"bucket_cap_mb": 25}, False, "applied", 50.0),  # torch's own, which Accelerate passes unasked
        ({}, False, "applied", 50.0),
    ],
)
def test_a_bucket_size_of_the_script_is_replaced_with_override_alone(
    chosen: dict[str, Any], override: bool, status: str, becomes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 4)
    choice = Choice(technique="ddp-buckets", settings={"bucket_cap_mb": 50.0}, override=override)
    strategy = Strategy(choices=(choice,))
    applier = Applier(strategy, TECHNIQUES, make_context(strategy, from_outside=True))
    arguments = dict(chosen)
    applier.ddp_arguments(arguments)
    assert [one.status for one in applier.records] == [status]
    assert applier.records[0].explicit == ("bucket_cap_mb=1" if 1 in chosen.values() else None)
    assert arguments["bucket_cap_mb"] == becomes


SCRIPT = """\
import time, torch, torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4)
    def forward(self, x):
        return self.b(self.a(x).tanh())
torch.manual_seed(0); torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=0.001, find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
torch.manual_seed(dist.get_rank())
for i in range(1, 91):
    model(torch.randn(8, 16)).pow(2).mean().backward()
    if i % 3 == 0 or i % 10 == 0:
        clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
if dist.get_rank() == 0:
    print(repr([p.double().sum().item() for p in model.parameters()]))
dist.destroy_process_group()
time.sleep(0.2)  # gloo's threads may still free what a backward gave them: at exit they would abort, alone as well
"""
STRATEGY = """\
schema = "hotloop.strategy/1"
[techniques.ddp-buckets]
override = true
[techniques.ddp-settings]
[techniques.no-sync-accumulation]
"""


def test_an_unmodified_script_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "fast.toml").write_text(STRATEGY)
    plain = subprocess.run([*TORCHRUN, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180)
    options = ("run", "--no-probe", "--strategy", "fast.toml", "--json", "out.json", "--")
    treated = subprocess.run(
        [*HOTLOOP, *options, *TORCHRUN, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert treated.returncode == 0, treated.stderr
    assert json.loads(treated.stdout) == pytest.approx(json.loads(plain.stdout), rel=1e-5)
    report = json.loads((tmp_path / "out.json").read_text())
    told = {one["technique"]: one for one in report["strategy"]}
    assert {key: one["status"] for key, one in told.items()} == dict.fromkeys(told, "applied"), told
    assert told["ddp-buckets"]["where"]["line"] == 12
    assert "sync-every-microstep" not in [finding["rule"] for finding in report["findings"]]
