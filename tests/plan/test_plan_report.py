"""hotloop plan: time, cost, scaling and search in the report, the JSON and the messages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.ahead.plan.workload_file import read_workload_file
from hotloop.cli import main
from hotloop.core.decode import decode_contract, encode_contract
from hotloop.core.planning import PLAN_SCHEMA, PlanReport
from hotloop.pipeline.plans import make_plan
from hotloop.show.report import render

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
    report = make_plan(read_workload_file(workload_file), tokens=10**12, goal="cost", gpu_counts=[64, 128], hours=1e5)
    assert report.step is not None
    assert report.step.low_ns < report.step.mid_ns < report.step.high_ns
    assert report.cost is not None
    assert report.cost.tokens == 10**12
    assert report.cost.hours > report.cost.compute_hours
    assert report.search is not None
    assert 0 < report.search.fitting < report.search.tried
    assert [one.usd for one in report.search.options] == sorted(one.usd or 0 for one in report.search.options)
    assert decode_contract(PlanReport, json.loads(json.dumps(encode_contract(PLAN_SCHEMA, report)))) == report


def write_more(workload_file: str, *, name: str = "small") -> None:
    """The same with rates, and a goal."""
    more = "gpu_hours_per_preemption = 400\nstorage_bytes_per_s = 5e9\n[goal]\ntokens = 1e11\n"
    Path(workload_file).write_text(FILE.replace("[model]", f"[model]\nname = {json.dumps(name)}") + more)


def test_the_page_has_plots_and_shows_a_hostile_name_as_text(workload_file: str, tmp_path: Path) -> None:
    write_more(workload_file, name="</title><script>alert(1)</script>")
    page = tmp_path / "plan.html"
    options = ["--optimize", "cost", "--gpu-counts", "64,128,256", "--html", str(page), "-q"]
    assert main(["plan", workload_file, *options]) == 0
    text = page.read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count('<svg class="plot"') == 2  # memory, time
    assert "http://" not in text.replace("http://www.w3.org", "")


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


@pytest.mark.parametrize(
    ("margin", "title"),
    [(0.2, "fits: "), (0.15, "fits narrowly: "), (0.06, "too close to call: "), (-0.1, "does not fit: ")],
)
def test_what_is_left_is_weighed_by_the_forecasts_error(workload_file: str, margin: float, title: str) -> None:
    report = make_plan(read_workload_file(workload_file))
    memory = replace(report.memory, margin_ratio=margin, error_ratio=0.18, is_tight=0 <= margin < 0.18)
    text = render("terminal", replace(report, memory=memory, fits=margin >= 0), width=100, color=False)
    assert text.startswith(title)
