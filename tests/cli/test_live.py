"""hotloop run --live: the block on a terminal, the lines elsewhere, and that neither touches the training."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli.live import ROWS, LiveView, Style, draw_block, draw_line
from hotloop.core.phases import PHASES
from hotloop.pipeline.live import LiveReader
from hotloop.pipeline.runs import read_report
from hotloop.report.text import format_duration
from tests.cli.live_terminal import Terminal
from tests.export.live_runs import make_device, make_rank, make_run

HOTLOOP = [sys.executable, "-m", "hotloop"]
LIVE = [*HOTLOOP, "run", "--live", "--no-probe", "--no-deep", "-q", "--", sys.executable]
TERMINAL = {"TERM": "xterm-256color", "NO_COLOR": "", "OMP_NUM_THREADS": "1"}
PLAIN = Style(has_color=False, has_unicode=True)

TRAINING = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

PRINTING = r"""
import json, os, sys, time
facts = [[os.isatty(fd), os.path.samestat(os.fstat(fd), os.stat(os.ttyname(0)))] for fd in (0, 1, 2)]
facts += [sys.stdout.line_buffering, sys.stdout.isatty(), sys.stderr.line_buffering, list(os.get_terminal_size())]
json.dump(facts, open(sys.argv[1], "w"))
for step in range(int(sys.argv[2])):
    sys.stderr.write(f"\rstep {step} \x1b[1m{'#' * (step % 30)}\x1b[0m\x1b[K")
    sys.stderr.flush()
    if step % 7 == 0:
        sys.stdout.write(f"\npartial {step} ")
        sys.stdout.flush()
        os.write(1, "\x1b[32mgrün 訓練\x1b[0m\n".encode())
    time.sleep(0.04)
print("\nlast", flush=True)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real run that is over."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.py").write_text(TRAINING)
    words = ["run", "--name", "one", "--no-probe", "--no-deep", "-q", "--watch-numbers", "--steps-total", "80"]
    subprocess.run([*HOTLOOP, *words, "--", sys.executable, "train.py"], cwd=folder, check=True, timeout=60)
    return folder / ".hotloop" / "one"


@pytest.fixture
def printing(tmp_path: Path) -> Path:
    (tmp_path / "printing.py").write_text(PRINTING)
    return tmp_path


def test_the_figures_are_the_report_s_over_the_same_steps(trained: Path) -> None:
    report = read_report(trained)
    assert report.step is not None
    assert report.breakdown is not None
    run = replace(LiveReader(trained, window_count=report.step.steady_count).read(), age_s=0.0)
    top, progress, phases, rest = draw_block(run, 0.5, PLAIN, 400)
    assert f"means of the last {report.step.steady_count} steps" in top
    assert progress.startswith(f"{report.step.count} of 80 steps (50%)  ")
    assert f"  {format_duration(report.step.mean_ns)} a step" in progress
    shown = dict(re.findall(r"(\w+) (\d+)% █+", phases))
    shares = {name: report.breakdown.phases[name].share_ratio for name in PHASES}
    assert shown == {name: f"{ratio * 100:.0f}" for name, ratio in shares.items() if ratio >= 0.005}
    assert re.match(r"CPU 50%  loss -?[\d.,]+(  memory [\d.]+ MiB)?$", rest)  # so short a run may know no memory
    line = draw_line(run, None)
    assert f"{format_duration(report.step.mean_ns)} a step".replace("µ", "u") in line


@pytest.mark.parametrize(
    ("state", "age_s", "said"),
    [("running", 0.4, "means of the last"), ("running", 12.2, "last step 12 s ago"), ("stale", 72.0, "stale for 72 s")],
)
def test_old_figures_say_how_old_they_are(state: str, age_s: float, said: str) -> None:
    run = make_run(make_rank(), state=state, age_s=age_s)
    assert said in draw_block(run, None, PLAIN, 80)[0]
    assert (said in draw_line(run, None)) == (age_s > 1)


def slow_rank() -> Any:
    rank = make_rank()
    return replace(
        rank, rank=3, window_ns=2 * rank.window_ns, phase_ns={name: 2 * ns for name, ns in rank.phase_ns.items()}
    )


@pytest.mark.parametrize("width", [1, 10, 39, 79, 200])
@pytest.mark.parametrize("has_unicode", [True, False])
def test_no_row_is_wider_than_the_terminal(width: int, has_unicode: bool) -> None:
    run = make_run(make_rank(metrics={"訓練損失": 0.5}), slow_rank(), devices=(make_device(),), steps_total=10**9)
    rows = draw_block(run, 0.5, Style(has_color=False, has_unicode=has_unicode), width)
    assert len(rows) == ROWS
    assert all(sum(2 if ord(one) > 0x2E80 else 1 for one in row) <= width for row in rows), rows
    assert has_unicode or "".join(rows).isascii()


def test_without_a_terminal_there_are_lines(trained: Path) -> None:
    stream = io.StringIO()
    view = LiveView(lambda: LiveReader(trained).read, stream, lambda: 0.25, line_every_s=0.05)
    view.start()
    until_s = time.monotonic() + 20
    while stream.getvalue().count("\n") < 2 and time.monotonic() < until_s:
        time.sleep(0.02)
    view.stop()
    first = stream.getvalue().splitlines()[0]
    assert re.match(r"hotloop: last step \d+ s ago; 40 of 80 steps \(50%\); .* left at this pace; ", first) or (
        first.startswith("hotloop: 40 of 80 steps (50%); ")
    )
    assert first.count("CPU 25%") == 1
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_the_training_writes_to_the_terminal_as_without_it(printing: Path) -> None:
    told = {}
    for name, command in (("plain", [sys.executable]), ("live", LIVE)):
        with Terminal([*command, "printing.py", name, "100"], printing, TERMINAL, 60, 20) as terminal:
            assert terminal.read_to_end() == 0
        told[name] = terminal
    assert json.loads((printing / "live").read_text()) == json.loads((printing / "plain").read_text())
    assert json.loads((printing / "live").read_text())[:3] == [[True, True]] * 3
    assert told["live"].foreign() == told["plain"].raw
    assert told["live"].raw.count(b"waiting for the first step") >= 3
    assert b"\x1b[2m" in told["live"].raw
    assert told["live"].text() == told["plain"].text()
    assert told["live"].screen.margins is None
    cursors = [(one.screen.cursor.x, one.text().count("\n")) for one in told.values()]
    assert cursors[0] == cursors[1]


def shows_block(terminal: Terminal, lines: int) -> bool:
    rows = terminal.rows()
    return len(rows) == lines and rows[-ROWS].startswith("── hotloop") and rows[1 - ROWS].startswith("waiting for")


def test_resizing_ctrl_z_and_kill_9_leave_the_terminal_in_order(printing: Path) -> None:
    shell = ["/bin/sh", "-c", '"$@"; sleep 60', "sh"]  # as a terminal has it: the shell stays when hotloop is gone
    with Terminal([*shell, *LIVE, "printing.py", "facts", "2000"], printing, TERMINAL, 60, 20) as terminal:
        terminal.read_until(lambda: shows_block(terminal, 20))
        assert (terminal.screen.margins.top, terminal.screen.margins.bottom) == (0, 19 - ROWS)
        for columns, lines in ((40, 12), (100, 30)):
            terminal.resize(columns, lines)
            terminal.read_until(lambda lines=lines: shows_block(terminal, lines))
            assert sum(row.startswith("── hotloop") for row in terminal.rows()) == 1
        terminal.resize(60, 2 * ROWS - 1)  # no room: the rows are given back
        given_back = terminal.raw.count(b"\x1b[r")
        terminal.read_until(lambda: terminal.raw.count(b"\x1b[r") > given_back)
        terminal.resize(60, 20)
        terminal.read_until(lambda: shows_block(terminal, 20))
        (manifest,) = (printing / ".hotloop").glob("*/run.json")
        pid = json.loads(manifest.read_text())["pid"]
        terminal.press(b"\x1a")
        terminal.read_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        terminal.read_until(lambda: is_given_back(terminal))
        os.kill(pid, signal.SIGCONT)
        terminal.read_until(lambda: shows_block(terminal, 20))
        os.kill(pid, signal.SIGKILL)
        terminal.read_until(lambda: is_given_back(terminal))
        at_kill = terminal.foreign().count(b"partial")
        terminal.read_until(lambda: terminal.foreign().count(b"partial") >= at_kill + 2)  # the training goes on


def is_given_back(terminal: Terminal) -> bool:
    return terminal.screen.margins is None and not any("hotloop" in row for row in terminal.rows())


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": "no-such-terminal"}])
def test_a_terminal_that_cannot_keep_rows_gets_none(printing: Path, variables: dict[str, str]) -> None:
    with Terminal([*LIVE, "printing.py", "facts", "40"], printing, {**TERMINAL, **variables}) as terminal:
        assert terminal.read_to_end() == 0
    assert terminal.foreign() == terminal.raw
