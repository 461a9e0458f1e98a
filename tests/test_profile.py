import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hotloop
from hotloop.core.errors import UsageError


def quiet(text: str) -> None:
    assert text.startswith("hotloop: the profiler ")


def work() -> torch.Tensor:
    return torch.randn(16, 16) @ torch.randn(16, 16)


def run(steps: int, **options: Any) -> hotloop.profile:
    with hotloop.profile(activities=["cpu"], write=quiet, **options) as prof:
        for _ in range(steps):
            work()
            prof.step()
    return prof


def events(path: str) -> list[dict[str, Any]]:
    data = Path(path).read_bytes()
    found: list[dict[str, Any]] = json.loads(gzip.decompress(data) if path.endswith(".gz") else data)["traceEvents"]
    return found


def test_the_plan_is_printed_with_its_steps():
    said: list[str] = []
    with hotloop.profile(activities=["cpu"], wait=5, warmup=2, active=3, write=said.append):
        pass
    assert said == ["hotloop: the profiler waits 5, warms up 2, records 3 steps, 1 time: steps 8-10\n"]


def test_every_cycle_leaves_a_trace_of_its_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    prof = run(9, wait=1, warmup=1, active=2, repeat=2, folder=tmp_path)
    assert prof.recordings_count == 2
    steps = [
        sorted({e["name"] for e in events(path) if "ProfilerStep" in e.get("name", "")}) for path in prof.trace_files
    ]
    assert steps == [["ProfilerStep#2", "ProfilerStep#3"], ["ProfilerStep#6", "ProfilerStep#7"]]
    for path in prof.trace_files:
        assert re.fullmatch(r"rank3_[^.]+_\d+\.\d+\.pt\.trace\.json", Path(path).name)


def test_without_a_plan_the_whole_block_is_recorded():
    with hotloop.profile(activities=["cpu"]) as prof:
        work()
    assert "aten::mm" in prof.table()


def test_the_callback_gets_every_recording():
    tables: list[str] = []
    run(6, wait=1, warmup=1, active=1, repeat=2, on_trace_ready=lambda prof: tables.append(prof.table(rows=1)))
    assert len(tables) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait": 3}, "need active"),
        ({"active": 0}, "records nothing"),
        ({"active": 1, "schedule": lambda step: None}, "give the plan either as"),
        ({"activities": ["gpu"]}, "activity 'gpu' is not known"),
        ({"activities": []}, "activities is empty"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        hotloop.profile(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_sorting_by_device_time_needs_a_device():
    with pytest.raises(UsageError, match="only the CPU was recorded; use self_cpu_time"):
        run(1).table("self_device_time")


def test_standard_error_holds_the_plan_and_what_torch_writes_alone():
    script = (
        "import os, sys, torch, hotloop\n"
        "with hotloop.profile(activities=['cpu'], wait=1, warmup=1, active=1, repeat=2) as prof:\n"
        "    for _ in range(7):\n"
        "        torch.ones(2).sum(); os.write(2, b'mine\\n'); prof.step()\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    plan = "hotloop: the profiler waits 1, warms up 1, records 1 step, 2 times: steps 3, 6\n"
    ours = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith("USDT:")]
    assert "".join(ours) == plan + "mine\n" * 7
