"""Trainings in a known state -> the verdict, the culprit and its line, read from outside without hotloop in them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.core.decode import decode_contract
from hotloop.core.snapshot import AttachReport
from hotloop.evidence.snapshot import judge
from hotloop.evidence.snapshot.proc import descendants, list_processes
from hotloop.pipeline.attach import attach
from tests.end_to_end.training import clean_environment

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
HEAD = """
import os, sys, time, threading, queue, socket, subprocess, torch
from torch.utils.data import DataLoader, Dataset
import torch.distributed as dist
torch.set_num_threads(1)
def ready():
    print("ready", flush=True)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
step()
"""
TWO_RANKS = """
dist.init_process_group("gloo")
rank = dist.get_rank()
"""


@dataclass(frozen=True)
class Case:
    """A script that prints ``ready`` once it is in its state; its culprit's line says HERE."""

    id: str
    text: str
    verdict: str
    wait: str = ""
    ranks: int = 1
    rank: int | None = None
    role: str = "rank"


CASES = (
    Case("stdin", "ready(); input()  # HERE", "hung", "stdin"),
    Case("lock", "lock = threading.Lock(); lock.acquire(); ready()\nwith lock:  # HERE\n    step()", "hung", "lock"),
    Case("queue", "q = queue.Queue(); ready()\nq.get()  # HERE", "hung", "queue"),
    Case("fifo", "os.mkfifo('f'); ready()\nopen('f')  # HERE", "hung", "FIFO"),
    Case("socket", "a, b = socket.socketpair(); ready()\na.recv(1)  # HERE", "hung", "socket"),
    Case("child", "ready(); subprocess.run(['sleep', '100'])  # HERE", "hung", "child process"),
    Case(
        "retry",
        "ready()\nwhile not os.path.exists('never'):\n    time.sleep(0.05)  # HERE",
        "hung",
        "waiting loop",
    ),
    Case(
        "retry-count",
        "ready()\nfor _ in range(10_000):\n    try:\n        socket.create_connection(('127.0.0.1', 1))\n"
        "        break\n    except OSError:\n        time.sleep(0.05)  # HERE",
        "hung",
        "waiting loop",
    ),
    Case(
        "retry-read",
        "def read(): raise OSError\ndef load():\n    while True:\n        try:\n            return read()\n"
        "        except OSError:\n            time.sleep(0.2)  # HERE\nready()\nload()",
        "hung",
        "waiting loop",
    ),
    Case("spin", "done = False; ready()\nwhile not done: pass  # HERE", "hung", "waiting loop"),
    Case(
        "worker",
        "class Rows(Dataset):\n"
        "    def __len__(self): return 100\n"
        "    def __getitem__(self, i):\n"
        "        if i == 20:\n"
        "            ready(); threading.Event().wait()  # HERE\n"
        "        return torch.randn(16)\n"
        "for batch in DataLoader(Rows(), batch_size=4, num_workers=1):\n"
        "    step()",
        "hung",
        "lock",
        role="loader worker",
    ),
    Case(
        "barrier",
        TWO_RANKS + "step()\nif rank == 0:\n    ready()\n    dist.barrier()  # HERE\n"
        "dist.all_reduce(torch.ones(1 << 10))",
        "hung",
        "collective",
        ranks=2,
        rank=0,
    ),
    Case(
        "one-rank",
        TWO_RANKS + "if rank == 1:\n    q = queue.Queue(); ready()\n    q.get()  # HERE\ndist.barrier()",
        "hung",
        "queue",
        ranks=2,
        rank=1,
    ),
    Case(
        "fed-socket",
        "a, b = socket.socketpair()\n"
        "def feed():\n    while True:\n        time.sleep(0.3); b.send(b'x')\n"
        "threading.Thread(target=feed, daemon=True).start()\nready(); got = 0\n"
        "while got < 10_000:\n    got += len(a.recv(1))  # HERE",
        "slow",
    ),
    Case(
        "slow",
        "def draw():\n    time.sleep(0.1)  # HERE\nfor i in range(1000):\n    draw()\n    step()\n    i or ready()",
        "slow",
    ),
    Case(
        "healthy",
        "model = torch.nn.Linear(512, 512)\nready()\nwhile True:\n    model(torch.randn(512, 512)).sum().backward()",
        "healthy",
    ),
    Case("saving", "state = torch.zeros(1 << 24)\nready()\nwhile True:\n    torch.save(state, 'model.pt')", "saving"),
)


@pytest.fixture(autouse=True)
def shorter_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "MOVING_S", 1.0)
    monkeypatch.setattr(judge, "STUCK_S", 1.5)


@contextmanager
def running(folder: Path, text: str, ranks: int = 1) -> Iterator[subprocess.Popen[str]]:
    script = folder / "train.py"
    script.write_text(HEAD + text)
    launcher = [TORCHRUN, "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else [sys.executable]
    process = subprocess.Popen(
        [*launcher, script.name], cwd=folder, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "ready"
        time.sleep(0.5)
        yield process
    finally:
        for pid in (process.pid, *descendants(process.pid, list_processes())):  # a launcher's ranks have own sessions
            os.kill(pid, signal.SIGKILL)
        process.stdin.close()
        process.stdout.close()
        process.wait()


def line_of(text: str) -> int:
    return next(number for number, line in enumerate((HEAD + text).splitlines(), 1) if "HERE" in line)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_training_s_state_is_seen_from_outside(tmp_path: Path, case: Case) -> None:
    with running(tmp_path, case.text, case.ranks) as process:
        (report,) = attach(str(process.pid))
    assert report.verdict == case.verdict
    assert len(report.ranks) == case.ranks
    assert report.limits == ()
    if case.verdict == "hung":
        culprit = report.culprits[0]
        assert (culprit.line, culprit.wait, culprit.rank, culprit.role) == (
            line_of(case.text), case.wait, case.rank, case.role,
        )  # fmt: skip
        assert culprit.file is not None
        assert culprit.file.endswith("train.py")
        assert report.since_s is not None
        assert report.since_s >= 1.5
    elif case.verdict == "slow":
        assert report.findings[0].line == line_of(case.text)
        assert report.findings[0].share_ratio > 0.8


def test_a_stopped_training_is_said_at_once_and_left_stopped(tmp_path: Path) -> None:
    with running(tmp_path, "ready()\nwhile True:\n    step()") as process:
        os.kill(process.pid, signal.SIGSTOP)
        (report,) = attach(str(process.pid))
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert (report.verdict, report.culprits[0].wait, state) == ("hung", "stopped by a signal", "T")
    assert report.watched_s < 1.5


def test_the_command_prints_one_object_and_exits_with_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path, "ready(); input()") as process:
        code = main(["attach", str(process.pid), "--json", "-", "-q"])
    content = json.loads(capsys.readouterr().out)
    assert (code, content["schema"], content["verdict"]) == (1, "hotloop.attach/1", "hung")
    assert decode_contract(AttachReport, content).culprits[0].pid == process.pid
