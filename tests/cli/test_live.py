"""hotloop run --live: the lines, and that the training knows nothing of them."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.cli.live import draw_line, show_live
from hotloop.pipeline.live import LiveReader
from hotloop.pipeline.runs import read_report
from hotloop.show.report.text import format_duration
from tests.export.live_runs import make_device, make_rank, make_run
from tests.waiting import wait_until

HOTLOOP = [sys.executable, "-m", "hotloop"]

TRAINING = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real run that is over."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.py").write_text(TRAINING)
    words = ["run", "--name", "one", "--no-probe", "--no-deep", "-q", "--watch-numbers", "--steps-total", "80"]
    subprocess.run([*HOTLOOP, *words, "--", sys.executable, "train.py"], cwd=folder, check=True, timeout=60)
    return folder / ".hotloop" / "one"


def test_the_figures_are_the_report_s_over_the_same_steps(trained: Path) -> None:
    report = read_report(trained)
    assert report.step is not None
    assert report.breakdown is not None
    run = LiveReader(trained, window_count=report.step.steady_count).read()
    line = draw_line(replace(run, age_s=0.0), 0.5)
    assert line.startswith(f"{report.step.count} of 80 steps (50%); ")
    assert f"; {format_duration(report.step.mean_ns)} a step; ".replace("µ", "u") in line
    shares = sorted(
        (f"{phase.share_ratio:.0%}" for phase in report.breakdown.phases.values()), key=lambda one: -int(one[:-1])
    )
    assert re.findall(r"[a-z0-9_]+ (\d+%)[,;]", line)[:3] == shares[:3]
    assert "; CPU 50%; loss " in line


@pytest.mark.parametrize(
    ("state", "age_s", "said"),
    [("running", 0.4, ""), ("running", 12.2, "last step 12 s ago; "), ("stale", 72.0, "stale for 72 s; ")],
)
def test_old_figures_say_how_old_they_are(state: str, age_s: float, said: str) -> None:
    line = draw_line(make_run(make_rank(), state=state, age_s=age_s), None)
    assert line.startswith(f"{said}1,234 steps; ")


def test_the_slowest_rank_and_the_device_are_named() -> None:
    rank = make_rank(metrics={"訓練": 0.5})
    slow = replace(
        rank, rank=3, window_ns=2 * rank.window_ns, phase_ns={name: 2 * ns for name, ns in rank.phase_ns.items()}
    )
    line = draw_line(make_run(rank, slow, devices=(make_device(),)), None)
    assert "; slowest rank 3: " in line
    assert line.isascii()
    assert draw_line(replace(make_run(), ranks=()), None) == ""


def test_lines_come_until_the_end(trained: Path) -> None:
    stream, over = io.StringIO(), threading.Event()
    thread = threading.Thread(target=show_live, args=(trained, stream, lambda: 0.25, over, 0.05))
    thread.start()
    wait_until(lambda: stream.getvalue().count("\n") >= 2)
    over.set()
    thread.join(timeout=20)
    assert all(re.match(r"hotloop: .*CPU 25%", line) for line in stream.getvalue().splitlines())
    assert not set("\x1b\r") & set(stream.getvalue())


def test_the_training_s_streams_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('out', flush=True)\ntime.sleep(1.5)\n")
    words = ["run", "--live", "--no-probe", "-q", "--", sys.executable, "train.py"]
    done = subprocess.run([*HOTLOOP, *words], cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert done.stdout == b"out\n"
