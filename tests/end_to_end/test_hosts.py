"""Real torchrun on gloo: two hosts with clocks of their own, one of which is killed; ranks that are started anew."""

from __future__ import annotations

import socket
import sys
import textwrap
from pathlib import Path

import pytest

from hotloop.core.frames import KIND_ROW, decode_frames
from hotloop.core.report import report_to_json
from hotloop.pipeline.runs import read_report

from .training import run_command

TRAINING = """
import os, signal, socket, time
node = int(os.environ.get("GROUP_RANK", 0))
if os.environ.get("TWO_HOSTS"):  # before torch, so that the agent knows no other clock and no other name
    wall, monotonic, begin = time.time, time.perf_counter_ns, time.perf_counter_ns()
    socket.gethostname = lambda: "ab"[node]
    if node == 1:
        time.time = lambda: wall() + 3.0
        time.perf_counter_ns = lambda: monotonic() + (monotonic() - begin) // 20_000
import torch, torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)))
optimizer = torch.optim.AdamW(model.parameters())
x, y, first = torch.randn(32, 64), torch.randint(8, (32,)), 0
if attempt:
    kept = torch.load("kept.pt")
    first = kept["step"]
    optimizer.load_state_dict(kept["optimizer"])
for step in range(first, 80):
    optimizer.zero_grad()
    time.sleep(0.005)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not attempt and step == 29:
        if rank == 0:
            torch.save({"step": 30, "optimizer": optimizer.state_dict()}, "kept.pt")
        dist.barrier()
    if not attempt and step == 39 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.2)  # gloo's threads may still free what a backward gave them: at exit they would abort, alone as well
"""


def cut_behind_row(path: Path, index: int) -> None:
    """Keep what a disk holds of a recording whose machine lost power in the middle of writing the next row."""
    content = path.read_bytes()
    at = next(
        frame.end
        for frame in decode_frames(content)
        if frame.kind == KIND_ROW and int.from_bytes(frame.payload[:8], "little") == index
    )
    path.write_bytes(content[: at + 100])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


def test_a_killed_host_with_another_clock(folder: Path) -> None:
    """3 s ahead, 50 ppm faster, killed after step 40: one training, its offset, and where it stopped."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    node = (
        f"{sys.executable} -m torch.distributed.run --nnodes 2 --master-addr 127.0.0.1 --master-port {port} --node-rank"
    )
    (folder / "nodes.sh").write_text(
        textwrap.dedent(f"""
        {node} 1 train.py & other=$!
        {node} 0 train.py; code=$?
        wait $other
        exit $code
        """)
    )
    ran = run_command(folder, "bash", "nodes.sh", options=("--no-deep",), TWO_HOSTS="1", GLOO_SOCKET_IFNAME="lo")
    report = ran.seen
    assert ran.exit_code == 1
    assert [(one["rank"], one["host"]) for one in report["ranks"]] == [(0, "a"), (1, "b")]
    a, b = report["hosts"]
    assert b["offset_ns"] == pytest.approx(3e9, abs=3 * b["uncertainty_ns"])  # which no bound is, on busy cores
    assert b["uncertainty_ns"] < 1e9
    assert (a["stopped_after_step"], b["stopped_after_step"]) == (None, 40)
    assert any("host b (rank 1) stopped after step 40" in one["message"] for one in report["health"])
    (cut,) = (ran.run_folder / "processes").glob("b-*.hlr")
    cut_behind_row(cut, 24)
    shorter = report_to_json(read_report(ran.run_folder))
    last = shorter["hosts"][1]["stopped_after_step"]
    assert 20 < last <= 25
    assert [one["steps"] for one in shorter["ranks"]] == [last, last]
    assert shorter["hosts"][1]["stopped_before_end_ns"] > b["stopped_before_end_ns"]


def test_ranks_that_are_started_anew_after_a_kill(folder: Path) -> None:
    """Killed after step 40, resumed at step 30: ten steps are made again, as the optimizer's own count tells."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    # Without it, torch 2.13 may fail once more on what the killed attempt left in the store.
    apart = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    ran = run_command(folder, *torchrun, "--max-restarts", "3", "train.py", options=("--no-deep",), **apart)
    report = ran.seen
    assert ran.exit_code == 0, ran.stderr
    first, second = report["attempts"]
    assert (first["steps"], first["first_step"], first["world_size"]) == (40, 0, 2)
    assert (second["steps"], second["first_step"]) == (50, 30)
    assert (second["repeated_steps"], second["repeated_basis"]) == (10, "optimizer state")
    assert 0.5e9 < second["gap_ns"] < 60e9
    assert 10 * 5e6 < second["repeated_ns"] < first["trained_ns"]
    assert (first["restart"], second["restart"]) == (0, report["ranks"][0]["restart"])
    assert second["restart"] >= 1
    assert report["step"]["count"] == 50
