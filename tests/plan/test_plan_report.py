"""hotloop plan: time, cost, scaling and search in the report, the JSON and the messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.core.planning import plan_from_json, plan_to_json
from hotloop.pipeline.plans import make_plan
from hotloop.plan.workload_file import read_workload_file

FILE = """
[model]
layers = 32
hidden = 4096
heads = 32
vocab = 50432
seq = 2048
[run]
micro_batch = 4
global_batch = 1024
recompute = "full"
sharding = "fsdp"
[hardware]
gpu = "h100-80g-sxm"
count = 64
"""


@pytest.fixture
def workload_file(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return str(path)


def test_the_plan_has_time_and_cost_and_survives_json(workload_file: str) -> None:
    report = make_plan(
        read_workload_file(workload_file), tokens=10**12, scaling="weak", goal="cost", gpu_counts=[64, 128], hours=1e5
    )
    assert report.step is not None
    assert report.step.low_ns < report.step.mid_ns < report.step.high_ns
    assert report.cost is not None
    assert report.cost.tokens == 10**12
    assert report.cost.hours > report.cost.compute_hours
    assert [one.gpus for one in report.scaling] == [64 * 2**k for k in range(8)]
    assert report.scaling[0].efficiency_ratio == 1
    assert report.search is not None
    assert 0 < report.search.fitting < report.search.tried
    assert [one.usd for one in report.search.options] == sorted(one.usd or 0 for one in report.search.options)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(report)))) == report


def test_the_terminal_shows_step_cost_scaling_and_search(
    workload_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", workload_file, "--tokens", "1e11", "--scaling", "strong", "--optimize", "time"]
    assert main(arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for word in ("tokens/s per device", "MFU", "100,000,000,000 tokens", "SCALING", "BEST BY TIME", "lie within"):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "0"], "--tokens 0: give a number of 1 or more"),
        (["--gpu-counts", "8"], "--gpu-counts belongs to --optimize"),
        (["--optimize", "time", "--gpu-counts", "8,many"], "give whole numbers, such as 8,64,512"),
        (["--optimize", "time", "--gpus", "h900"], "unknown gpu 'h900'"),
        (["--optimize", "time", "--hours", "0"], "within 0 hours"),
    ],
)
def test_nonsense_is_one_line(
    workload_file: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["plan", workload_file, *arguments]) != 0
    assert message in capsys.readouterr().err
